"""Text completions: prompts in their forms, refusals, the older log-probabilities, streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from dflash2_mlx.errors import DecodeError
from dflash2_server.inference import Text
from dflash2_server.openai.completions_frames import CompletionStyle, completion, completion_frames
from dflash2_server.openai.wire import Head, ending_with_done

from . import doubles
from .openai_running import TOKENS, Service, answers, chunks_of, error_of, post, tokens

PATH = "/v1/completions"
HEAD = Head(id="cmpl-1", model="demo", fingerprint="fp_1", created=5)


@pytest.mark.parametrize(
    ("prompt", "given_on"),
    [("Once", "Once"), ("", ""), ([1, 2, 3], [1, 2, 3]), (["Once"], "Once"), ([[4, 5]], [4, 5])],
)
def test_one_prompt_in_every_form(prompt: Any, given_on: Any) -> None:
    service = Service()
    assert post(service, PATH, {"prompt": prompt}).status_code == 200
    assert service.inference.prompt == given_on
    assert service.inference.messages is None
    assert service.inference.parameters == {"max_tokens": 16}


def test_fields_become_parameters() -> None:
    service = Service()
    body = {
        "prompt": "x", "model": "demo", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
        "seed": 1, "stop": ["a"], "logprobs": 5, "logit_bias": {"3": 1}, "presence_penalty": 1, "n": 1, "best_of": 1,
        "echo": False, "suffix": "", "dflash": {"block_size": 2}, "user": "u",
    }  # fmt: skip
    assert post(service, PATH, body).status_code == 200
    assert service.inference.parameters == {
        "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 1, "stop": ["a"],
        "logprobs": 5, "logit_bias": {3: 1.0}, "presence_penalty": 1.0, "block_size": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "the end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": "1"}, "temperature"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    service = Service()
    error = error_of(post(service, PATH, {"prompt": "x"} | fields))
    assert error["param"].split(".")[0] == param
    assert service.inferences == []


def test_whole_answer_with_the_older_logprobs() -> None:
    service = Service(
        [Text("content", "Hello", tokens(0)), Text("content", " thereé", tokens(1, 2, top=2)), doubles.done()]
    )
    body = post(service, PATH, {"prompt": "x", "logprobs": 2}).json()
    Completion.model_validate(body)
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0] == {
        "index": 0,
        "text": "Hello thereé",
        "finish_reason": "stop",
        "logprobs": {
            "tokens": ["Hello", " there", "é"],
            "token_logprobs": [-0.25, -0.5, -0.75],
            "top_logprobs": [
                {"Hello": -0.25},
                {" there": -0.5, "Hello": -0.5},
                {"é": -0.75, "Hello": -0.5, " there": -9999.0},
            ],
            "text_offset": [0, 5, 11],
        },
    }
    assert body["timings"] == doubles.TIMINGS
    assert body["dflash"] == doubles.ENGINE
    assert body["usage"]["total_tokens"] == 9
    assert post(service, PATH, {"prompt": "x"}).json()["choices"][0]["logprobs"] is None


@settings(deadline=None, max_examples=50)
@given(answers(calls=False), st.booleans(), st.booleans())
def test_joined_chunks_are_the_whole_answer(events: list[Any], logprobs: bool, usage: bool) -> None:
    how = CompletionStyle(token_text=TOKENS.__getitem__, logprobs=logprobs, include_usage=usage)
    whole = completion(events, HEAD, how)

    async def gather() -> str:
        frames = ending_with_done(completion_frames(doubles.ScriptedAnswer(events, 7), HEAD, how))
        return "".join([text async for text in frames])

    chunks = chunks_of(asyncio.run(gather()))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [
        whole["choices"][0]["finish_reason"]
    ]
    if logprobs:
        for column, values in whole["choices"][0]["logprobs"].items():
            assert [value for choice in choices for value in (choice["logprobs"] or {column: []})[column]] == values
    assert [chunk["id"] for chunk in chunks] == ["cmpl-1"] * len(chunks)
    assert all(("usage" in chunk) is usage for chunk in chunks)
    assert chunks[-1].get("usage") == (whole["usage"] if usage else None)
    assert chunks[-1]["timings"] == whole["timings"]


def test_streams_end_in_an_error_where_the_engine_fails() -> None:
    service = Service([Text("content", "He"), DecodeError("row 3 is not finite")])
    *chunks, last = chunks_of(post(service, PATH, {"prompt": "x", "stream": True}).text)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["He"]
    assert last["error"]["message"] == "row 3 is not finite"
    assert error_of(post(service, PATH, {"prompt": "x"}), 500)["type"] == "api_error"
    cut = chunks_of(post(Service([Text("content", "He")]), PATH, {"prompt": "x", "stream": True}).text)
    assert "error" in cut[-1]


def test_signs_of_life_while_the_prompt_is_read() -> None:
    body = {"prompt": "x", "stream": True}
    text = post(Service([0.1, *doubles.hello()]), PATH, body, keep_alive_seconds=0.03, keep_alive_style="chunk").text
    texts = [choice["text"] for chunk in chunks_of(text) for choice in chunk["choices"]]
    assert texts[0] == ""
    assert "".join(texts) == "Hello there"
    asked = body | {"stream_options": {"include_usage": True}}
    text = post(Service([0.1, *doubles.hello()]), PATH, asked, keep_alive_seconds=0.03, keep_alive_style="chunk").text
    first, *_, last = chunks_of(text)
    assert first["usage"] is None, "as in every chunk but the last one"
    assert last["usage"]["total_tokens"] == 9
    assert ": keep-alive" in post(Service([0.1, *doubles.hello()]), PATH, body, keep_alive_seconds=0.03).text
