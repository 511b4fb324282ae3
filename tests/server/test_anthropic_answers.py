"""Anthropic's protocol: what answers become, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.types import Message

from dflash2_mlx.errors import DecodeError, EngineBusy
from dflash2_server.anthropic.blocks import BlockStream
from dflash2_server.inference import Text, ToolCall
from tests.server import doubles
from tests.server.anthropic_running import CALL, MESSAGE, RICH, WEATHER, events_of, post


def test_a_whole_answer() -> None:
    body = post(doubles.ScriptedService(RICH), MESSAGE | {"tools": [WEATHER]}).json()
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [
            {"type": "thinking", "thinking": "Let me see.", "signature": ""},
            {"type": "text", "text": "I ask."},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Zürich"}},
            {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"city": "Bern", "days": 3}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 30,
            "output_tokens_details": {"thinking_tokens": 5},
        },
        "timings": doubles.TIMINGS,
        "dflash": doubles.ENGINE,
    }


@pytest.mark.parametrize(
    ("done", "reason", "sequence"),
    [
        (doubles.done(), "end_turn", None),
        (doubles.done("length"), "max_tokens", None),
        (doubles.done("length", stop_sequence="END"), "max_tokens", None),
        (doubles.done("stop", stop_sequence="END"), "stop_sequence", "END"),
        (doubles.done("tool_calls"), "tool_use", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_stop_reasons(done: Any, reason: str, sequence: str | None, streamed: bool) -> None:
    answer = post(doubles.ScriptedService([Text("content", "a"), done]), MESSAGE | {"stream": streamed})
    told = events_of(answer.text)[-2]["delta"] if streamed else answer.json()
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_a_stream_has_its_events_in_order() -> None:
    service = doubles.ScriptedService(RICH)
    events = events_of(post(service, MESSAGE | {"stream": True, "tools": [WEATHER]}).text)
    start = events[0]["message"]
    assert start.pop("id").startswith("msg_")
    assert start == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert events[1] == {"type": "ping"}
    shown = [(e["type"][14:], e["index"], e.get("content_block", e.get("delta"))) for e in events[2:-2]]
    assert shown == [
        ("start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "Let me "}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "see."}),
        ("delta", 0, {"type": "signature_delta", "signature": ""}),
        ("stop", 0, None),
        ("start", 1, {"type": "text", "text": ""}),
        ("delta", 1, {"type": "text_delta", "text": "I "}),
        ("delta", 1, {"type": "text_delta", "text": "ask."}),
        ("stop", 1, None),
        ("start", 2, {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": CALL.arguments}),
        ("stop", 2, None),
        ("start", 3, {"type": "tool_use", "id": "call_2", "name": "weather", "input": {}}),
        ("delta", 3, {"type": "input_json_delta", "partial_json": '{"city": "Bern", "days": 3}'}),
        ("stop", 3, None),
    ]
    last = events[-2]
    assert last["type"] == "message_delta"
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (last["usage"]["input_tokens"], last["usage"]["cache_read_input_tokens"]) == (3, 4)
    assert (last["timings"], last["dflash"]) == (doubles.TIMINGS, doubles.ENGINE)
    assert events[-1] == {"type": "message_stop"}
    assert service.closed


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": NaN, "b": [-Infinity, 1.5]}', {"a": None, "b": [None, 1.5]}),
        ('{"a": 1e999}', {"a": None}),
        ('{"a": "\\ud83d"}', {"a": "?"}),
        ("{'a'", {"input": "{'a'"}),
        ("[1]", {"input": "[1]"}),
        ('{"a": ' + "9" * 5000 + "}", {"input": '{"a": ' + "9" * 5000 + "}"}),
        ('{"a": ' * 300 + "1" + "}" * 300, {"input": '{"a": ' * 300 + "1" + "}" * 300}),
    ],
    ids=range(7),
)
def test_a_call_of_any_arguments_is_an_answer(arguments: str, given: dict[str, Any]) -> None:
    service = doubles.ScriptedService([ToolCall(0, "call_1", "weather", arguments), doubles.done("tool_calls")])
    whole = post(service, MESSAGE)
    assert whole.status_code == 200, whole.text
    assert whole.json()["content"][0]["input"] == given
    (delta,) = [
        event["delta"]
        for event in events_of(post(service, MESSAGE | {"stream": True}).text)
        if event["type"] == "content_block_delta"
    ]
    assert json.loads(delta["partial_json"], parse_constant=pytest.fail) == given


@pytest.mark.parametrize("kind", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 9}])
def test_thinking_that_is_not_to_be_shown_is_an_empty_block(kind: dict[str, Any]) -> None:
    asked = MESSAGE | {"thinking": kind | {"display": "omitted"}}
    service = doubles.ScriptedService(RICH)
    whole = post(service, asked).json()
    assert [block.type for block in Message.model_validate(whole).content] == ["thinking", "text", *["tool_use"] * 2]
    assert whole["content"][0] == {"type": "thinking", "thinking": "", "signature": ""}
    streamed = post(service, asked | {"stream": True}).text
    first = [event for event in events_of(streamed) if event.get("index") == 0]
    assert [event["type"] for event in first] == ["content_block_start", "content_block_delta", "content_block_stop"]
    assert first[1]["delta"] == {"type": "signature_delta", "signature": ""}
    assert "Let me" not in streamed
    shown = post(service, MESSAGE | {"thinking": kind | {"display": "summarized"}}).json()
    assert shown["content"][0]["thinking"] == "Let me see."


def test_an_empty_answer_has_no_block() -> None:
    service = doubles.ScriptedService([Text("content", ""), doubles.done("length")])
    assert post(service, MESSAGE).json()["content"] == []
    types = [event["type"] for event in events_of(post(service, MESSAGE | {"stream": True}).text)]
    assert types == ["message_start", "ping", "message_delta", "message_stop"]


def test_thinking_after_text_opens_a_block_of_its_own() -> None:
    stream = BlockStream()
    texts = [Text("content", "a"), Text("reasoning", "b"), Text("content", "c")]
    events = [event for text in texts for event in stream.feed(text)] + list(stream.close())
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["text", "thinking", "text"]
    assert list(stream.close()) == [], "there is nothing left to close"


@pytest.mark.parametrize(
    ("steps", "kind", "status"),
    [
        ([Text("content", "a"), DecodeError("row 3 is not finite")], "api_error", 500),
        ([Text("content", "a"), EngineBusy("the server is stopping")], "overloaded_error", 503),
        ([Text("content", "a"), doubles.done("cancelled")], "overloaded_error", 503),
        ([Text("content", "a")], "api_error", 500),
    ],
)
def test_an_answer_that_fails_in_the_middle(steps: Sequence[doubles.Step], kind: str, status: int) -> None:
    service = doubles.ScriptedService(steps)
    whole = post(service, MESSAGE)
    assert (whole.status_code, whole.json()["error"]["type"]) == (status, kind)
    streamed = post(service, MESSAGE | {"stream": True})
    assert streamed.status_code == 200
    events = events_of(streamed.text)
    assert [event["type"] for event in events].count("error") == 1
    assert events[-1]["error"]["type"] == kind
    assert events[-1]["request_id"] == streamed.headers["request-id"]
    assert "message_stop" not in streamed.text
    assert service.closed
