"""Chat answers: whole and streamed, against the types of the openai package, and one against the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from dflash2_mlx.errors import DecodeError, EngineBusy
from dflash2_server.inference import Text, ToolCall
from dflash2_server.openai.chat_frames import ChatStyle, chat_completion, chat_frames
from dflash2_server.openai.wire import Head, ending_with_done

from . import doubles
from .openai_running import CALL, TOKENS, Service, answers, chunks_of, error_of, events_of, post, tokens

HEAD = Head(id="chatcmpl-1", model="demo", fingerprint="fp_1", created=5)
USER = {"messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


def style(**fields: Any) -> ChatStyle:
    return ChatStyle(token_text=TOKENS.__getitem__, **fields)


def streamed(events: Sequence[Any], how: ChatStyle) -> list[dict[str, Any]]:
    """The chunks of a stream without the web."""

    async def gather() -> str:
        frames: AsyncIterator[str] = ending_with_done(chat_frames(doubles.ScriptedAnswer(events, 7), HEAD, how))
        return "".join([text async for text in frames])

    return chunks_of(asyncio.run(gather()))


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from the deltas, and the finish reasons and log-probabilities."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    reasons, logprobs = [], []
    for chunk in chunks:
        for choice in chunk["choices"]:
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            logprobs += (choice["logprobs"] or {"content": []})["content"]
            for name, value in choice["delta"].items():
                if name == "role":
                    assert name not in message
                    message[name] = value
                elif name == "tool_calls":
                    for piece in value:
                        if "id" in piece:
                            assert piece["index"] == len(calls)
                            assert piece["function"]["arguments"] == ""
                            calls[piece["index"]] = {k: v for k, v in piece.items() if k != "index"}
                        else:
                            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
                else:
                    message[name] = message.get(name, "") + value
    return {"message": message, "calls": list(calls.values()), "reasons": reasons, "logprobs": logprobs}


FIELDS = st.sampled_from(["both", "reasoning", "reasoning_content", "content", "hidden"])


@settings(deadline=None, max_examples=80)
@given(answers(), FIELDS, st.booleans(), st.booleans())
def test_joined_deltas_are_the_whole_answer(events: list[Any], field: Any, logprobs: bool, usage: bool) -> None:
    how = style(reasoning_field=field, logprobs=logprobs, include_usage=usage)
    whole = chat_completion(events, HEAD, how)
    ChatCompletion.model_validate(whole)
    chunks = streamed(events, how)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert {key: chunk[key] for key in ("id", "model", "created", "system_fingerprint")} == {
            key: whole[key] for key in ("id", "model", "created", "system_fingerprint")
        }
        assert ("usage" in chunk) is usage
    found, (choice,) = joined(chunks), whole["choices"]
    message = dict(choice["message"])
    assert message.pop("refusal") is None
    assert found["calls"] == message.pop("tool_calls", [])
    message["content"] = message["content"] or ""
    assert found["message"] == message
    assert found["reasons"] == [choice["finish_reason"]]
    assert found["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [key for key in ("timings", "dflash") if key in chunks[-1]] == ["timings", "dflash"]
    assert chunks[-1]["choices"] == [] if usage else chunks[-1]["choices"][0]["finish_reason"]


def test_plain_answer_with_usage_timings_and_engine() -> None:
    service = Service(
        [Text("reasoning", "Hm"), Text("content", "Hello"), doubles.done(cached_tokens=4, reasoning_tokens=1)]
    )
    response = post(service, PATH, USER | {"model": "gpt-4o"})
    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "demo")
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "reasoning_content": "Hm",
        "reasoning": "Hm",
    }
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert body["timings"] == doubles.TIMINGS
    assert body["dflash"] == doubles.ENGINE
    assert service.inference.model == "gpt-4o"
    assert service.closed


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("both", {"content": "A", "reasoning": "R", "reasoning_content": "R"}),
        ("reasoning", {"content": "A", "reasoning": "R"}),
        ("reasoning_content", {"content": "A", "reasoning_content": "R"}),
        ("content", {"content": "<think>\nR\n</think>\n\nA"}),
    ],
)
def test_where_reasoning_goes_is_a_setting(setting: str, expected: dict[str, str]) -> None:
    service = Service([Text("reasoning", "R"), Text("content", "A"), doubles.done()])
    message = post(service, PATH, USER, reasoning_field=setting).json()["choices"][0]["message"]
    assert {key: value for key, value in message.items() if key not in ("role", "refusal")} == expected
    hidden = post(service, PATH, USER | {"reasoning": {"exclude": True}}, reasoning_field=setting)
    assert hidden.json()["choices"][0]["message"] == {"role": "assistant", "content": "A", "refusal": None}


def test_thinking_that_is_cut_stays_reasoning() -> None:
    events = [Text("reasoning", "R"), doubles.done("length")]
    whole = chat_completion(events, HEAD, style())["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == ("", "length")
    tagged = chat_completion(events, HEAD, style(reasoning_field="content"))["choices"][0]["message"]
    assert tagged["content"] == "<think>\nR\n</think>\n\n"


def test_calls_are_named_once_and_end_the_turn() -> None:
    second = ToolCall(1, "call_b", "weather", "{}")
    events = [CALL, second, doubles.done("stop")]
    choice = chat_completion(events, HEAD, style())["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_a", "call_b"]
    deltas = [choice["delta"].get("tool_calls") for chunk in streamed(events, style()) for choice in chunk["choices"]]
    assert [delta for delta in deltas if delta][:2] == [
        [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": CALL.arguments}}],
    ]
    assert chat_completion([CALL, doubles.done("length")], HEAD, style())["choices"][0]["finish_reason"] == "length"


def test_logprobs_have_texts_bytes_and_a_floor() -> None:
    service = Service([Text("reasoning", "x", tokens(1)), Text("content", "é", tokens(2, 3, top=2)), doubles.done()])
    body = post(service, PATH, USER | {"logprobs": True, "top_logprobs": 2}).json()
    tops = [
        {"token": "Hello", "logprob": -0.5, "bytes": list(b"Hello")},
        {"token": " there", "logprob": -9999.0, "bytes": list(b" there")},
    ]
    assert body["choices"][0]["logprobs"]["content"] == [
        {"token": "é", "logprob": -0.75, "bytes": [0xC3, 0xA9], "top_logprobs": tops},
        {"token": "\ufffd", "logprob": -1.0, "bytes": None, "top_logprobs": tops},
    ]
    assert post(service, PATH, USER).json()["choices"][0]["logprobs"] is None


def test_usage_comes_in_one_last_chunk_only_when_asked_for() -> None:
    chunks = chunks_of(post(Service(), PATH, USER | {"stream": True}).text)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    asked = USER | {"stream": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of(post(Service(), PATH, asked).text)
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (DecodeError("row 3 is not finite"), "api_error"),
        (EngineBusy("the server stops"), "overloaded_error"),
        (KeyError("secret"), "api_error"),
    ],
)
def test_an_error_in_the_middle_is_one_frame_and_the_end(failure: Exception, kind: str) -> None:
    service = Service([Text("content", "He"), failure])
    response = post(service, PATH, USER | {"stream": True})
    assert response.status_code == 200
    *chunks, last = chunks_of(response.text)
    assert last["error"]["type"] == kind
    assert set(last) == {"error"}
    assert "secret" not in response.text
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert service.closed
    status = 503 if isinstance(failure, EngineBusy) else 500
    assert error_of(post(Service([failure]), PATH, USER), status)["type"] == kind


def test_an_answer_without_an_end_is_an_error() -> None:
    assert "error" in streamed([Text("content", "He")], style())[-1]
    with pytest.raises(DecodeError, match="without saying why"):
        chat_completion([Text("content", "He")], HEAD, style())
    with pytest.raises(DecodeError):
        chat_completion([], HEAD, style())


@pytest.mark.parametrize("kind", ["comment", "chunk"])
def test_signs_of_life_while_the_prompt_is_read(kind: str) -> None:
    service = Service([0.12, *doubles.hello()])
    text = post(service, PATH, USER | {"stream": True}, keep_alive_seconds=0.03, keep_alive_style=kind).text
    assert json.loads(text.split("\n\n", 1)[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    idle = [data for _, data in events_of(text)[:-1] if data["choices"][0]["delta"] == {}][:-1]
    assert (": keep-alive" in text) is (kind == "comment")
    assert bool(idle) is (kind == "chunk")
    assert joined(chunks_of(text))["message"] == {"role": "assistant", "content": "Hello there"}
    for chunk in idle:
        ChatCompletionChunk.model_validate(chunk)
