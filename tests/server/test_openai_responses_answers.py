"""Responses: order, numbers and ids of events, and the final object, against the types of the openai package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from dflash2_mlx.errors import DecodeError, EngineBusy
from dflash2_server.inference import Text, ToolCall
from dflash2_server.openai.responses_frames import ResponseFrames, response
from dflash2_server.openai.responses_object import ResponseObject
from dflash2_server.openai.responses_output import OutputStyle
from dflash2_server.openai.responses_tools import Origin
from dflash2_server.openai.schemas_responses import ResponsesRequest
from dflash2_server.openai.wire import Head

from . import doubles
from .openai_running import CALL, TOKENS, Service, answers, error_of, events_of, post, recorded, tokens

PATH = "/v1/responses"
HEAD = Head(id="resp_1", model="demo", fingerprint="fp_1", created=5)
EVENT_TYPES = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}


def style(**fields: Any) -> OutputStyle:
    return OutputStyle(token_text=TOKENS.__getitem__, origins={"patch": Origin("patch", custom=True)}, **fields)


def about(**fields: Any) -> ResponseObject:
    return ResponseObject(ResponsesRequest.model_validate({"input": "Hi"} | fields), HEAD)


def streamed(events: Sequence[Any], how: OutputStyle) -> list[dict[str, Any]]:
    async def gather() -> str:
        frames = ResponseFrames(about(), how)
        return "".join([text async for text in frames.frames(doubles.ScriptedAnswer(events, 7))])

    return checked(asyncio.run(gather()))


def checked(text: str) -> list[dict[str, Any]]:
    """The events of a stream: of known types, complete, named on the event line, numbered without gaps."""
    found = []
    for number, (name, data) in enumerate(events_of(text)):
        assert name == data["type"]
        assert data["sequence_number"] == number
        EVENT_TYPES[name].model_validate(data)
        found.append(data)
    return found


DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "text",
    "response.reasoning_summary_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


class Reader:
    """A client that keeps what the events add up to, and complains about an event out of its place."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.texts: dict[str, str] = {}

    def read(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert self.open is None
            assert event["output_index"] == len(self.items)
            assert event["item"]["status"] == "in_progress"
            self.open, self.texts = event["item"], {}
            return
        assert self.open is not None, kind
        assert event["output_index"] == len(self.items)
        if kind == "response.output_item.done":
            assert event["item"]["id"] == self.open["id"]
            self._finish(event["item"])
            return
        assert event["item_id"] == self.open["id"]
        if kind in DELTAS:
            key = DELTAS[kind]
            self.texts[key] = self.texts.get(key, "") + event["delta"]
        elif kind.endswith(("text.done", "arguments.done", "input.done")):
            said = event.get("text", event.get("arguments", event.get("input")))
            assert said in self.texts.values()

    def _finish(self, item: dict[str, Any]) -> None:
        if item["type"] in ("message", "reasoning"):
            assert [part["text"] for part in item["content"]] == [self.texts["text"]]
        if item["type"] == "reasoning":
            assert [part["text"] for part in item["summary"]] == [
                self.texts[key] for key in ("summary",) if key in self.texts
            ]
        for key in ("arguments", "input"):
            assert item.get(key) == self.texts.get(key)
        self.items.append(item)
        self.open = None


def without_ids(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


@settings(deadline=None, max_examples=60)
@given(answers(), st.booleans(), st.booleans(), st.booleans())
def test_events_add_up_to_the_whole_answer(events: list[Any], summary: bool, logprobs: bool, reasoning: bool) -> None:
    how = style(summary=summary, logprobs=logprobs, reasoning=reasoning)
    whole = response(events, about(), how)
    Response.model_validate(whole)
    found = streamed(events, how)
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    cut = events[-1].finish_reason in ("length", "cancelled")
    assert found[-1]["type"] == ("response.incomplete" if cut else "response.completed")
    reader = Reader()
    for event in found[2:-1]:
        reader.read(event)
    final = found[-1]["response"]
    assert reader.open is None
    assert reader.items == final["output"]
    assert without_ids(final["output"]) == without_ids(whole["output"])
    assert final | {"output": [], "completed_at": 0} == whole | {"output": [], "completed_at": 0}
    ids = [item["id"] for item in final["output"]]
    assert len(set(ids)) == len(ids)


def test_order_of_events_of_a_turn() -> None:
    events = [Text("reasoning", "R"), Text("content", "A"), CALL, ToolCall(1, "call_b", "patch", '{"input": "P"}')]
    kinds = [
        event["type"].removeprefix("response.") for event in streamed([*events, doubles.done()], style(summary=True))
    ]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]


def test_final_object_of_a_whole_answer() -> None:
    service = Service(
        [Text("reasoning", "R"), Text("content", "A"), CALL, doubles.done(cached_tokens=4, reasoning_tokens=1)]
    )
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    asked = {
        "input": "Hi", "instructions": "Be brief.", "tools": [tool], "metadata": {"a": "b"}, "store": True,
        "truncation": "auto", "reasoning": {"effort": "low"}, "temperature": 0.5, "max_output_tokens": 9,
        "model": "org/aliased",
    }  # fmt: skip
    body = post(service, PATH, asked).json()
    Response.model_validate(body)
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["model"], body["error"]) == ("response", "completed", "demo", None)
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 9,
    }
    assert (body["store"], body["truncation"]) == (False, "disabled"), "as it was served"
    assert body["metadata"] == {"a": "b"}
    assert body["instructions"] == "Be brief."
    assert body["tools"] == [tool | {"strict": None}]
    assert body["reasoning"] == {"effort": "low", "summary": None}
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 9)
    assert (body["timings"], body["dflash"]) == (doubles.TIMINGS, doubles.ENGINE)
    assert without_ids(body["output"]) == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "R"}],
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "weather",
            "arguments": CALL.arguments,
        },
    ]
    assert [item["id"].split("_")[0] for item in body["output"]] == ["rs", "msg", "fc"]
    assert service.closed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "*** Begin"}', "*** Begin"),
        ('{"input": ""}', ""),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("*** Begin", "*** Begin"),
        ('"quoted"', '"quoted"'),
    ],
)
def test_calls_of_custom_tools_come_back_as_free_text(arguments: str, text: str) -> None:
    events = [ToolCall(0, "call_a", "patch", arguments), doubles.done("tool_calls")]
    (item,) = response(events, about(), style())["output"]
    assert item | {"id": ""} == {
        "id": "",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_a",
        "name": "patch",
        "input": text,
    }


def test_an_answer_that_was_cut_is_incomplete() -> None:
    events = [Text("reasoning", "R"), Text("content", "A"), doubles.done("length")]
    whole = response(events, about(), style())
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert whole["completed_at"] is None


def test_logprobs_of_the_text() -> None:
    service = Service([Text("reasoning", "x", tokens(1)), Text("content", "é", tokens(2, 3, top=1)), doubles.done()])
    asked = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    body = post(service, PATH, asked).json()
    Response.model_validate(body)
    top = [{"token": "Hello", "logprob": -9999.0, "bytes": list(b"Hello")}]
    assert body["output"][1]["content"][0]["logprobs"] == [
        {"token": "é", "logprob": -0.75, "bytes": [0xC3, 0xA9], "top_logprobs": top},
        {"token": "\ufffd", "logprob": -1.0, "bytes": [], "top_logprobs": top},
    ]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DecodeError("row 3 is not finite"), "server_error"),
        (EngineBusy("the server stops"), "server_error"),
        (KeyError("secret"), "server_error"),
    ],
)
def test_an_error_in_the_middle_is_told_twice(failure: Exception, code: str) -> None:
    service = Service([Text("content", "He"), failure])
    text = post(service, PATH, {"input": "Hi", "stream": True}).text
    *_, error, failed = checked(text)
    assert (error["type"], error["code"]) == ("error", code)
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": error["message"]}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert failed["response"]["output"][0]["content"][0]["text"] == "He"
    assert "secret" not in text
    status = 503 if isinstance(failure, EngineBusy) else 500
    assert error_of(post(Service([failure]), PATH, {"input": "Hi"}), status)
    assert streamed([Text("content", "He")], style())[-1]["type"] == "response.failed"


def test_signs_of_life_are_numbered_with_the_rest() -> None:
    service = Service([0.1, Text("content", "Hello"), 0.1, doubles.done()])
    found = checked(post(service, PATH, {"input": "Hi", "stream": True}, keep_alive_seconds=0.03).text)
    kinds = [event["type"] for event in found]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    first_item = kinds.index("response.output_item.added")
    assert kinds[1:first_item].count("response.in_progress") > 1
    assert "response.in_progress" in kinds[first_item:]


def test_codex_reads_what_it_needs() -> None:
    events = [
        Text("reasoning", "Look first."),
        ToolCall(0, "call_1", "exec_command", '{"cmd": "ls"}'),
        ToolCall(1, "call_2", "apply_patch", json.dumps({"input": "*** Begin Patch"})),
        doubles.done("tool_calls"),
    ]
    found = checked(post(Service(events), PATH, recorded("openai_codex_first")).text)
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "function_call", "custom_tool_call"]
    assert done[0]["summary"] == [{"type": "summary_text", "text": "Look first."}]
    assert (done[1]["name"], done[1]["arguments"], done[1]["call_id"]) == ("exec_command", '{"cmd": "ls"}', "call_1")
    assert done[2]["input"] == "*** Begin Patch"
    completed = found[-1]["response"]
    assert completed["output"] == done
    assert completed["usage"]["input_tokens_details"]["cached_tokens"] == 0
