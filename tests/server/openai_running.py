"""Helpers of the tests of OpenAI's routes: a service that knows tokens' texts, requests, and readers of streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from hypothesis import strategies as st

from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_server.inference import ToolCall

from . import doubles

RECORDED = Path(__file__).parent / "recorded"
TOKENS = ["Hello", " there", "é", "\ufffd", "<x>"]

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
CALL = ToolCall(0, "call_a", "weather", '{"city": "Oslo", "days": 3}')


class Service(doubles.ScriptedService):
    """The scripted service, with a vocabulary."""

    def token_text(self, token: int) -> str:
        return TOKENS[token]


def recorded(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return body


def post(service: Service, path: str, body: Any, **settings: Any) -> httpx.Response:
    """One request over the whole application."""
    with doubles.test_client(service, **settings) as client:
        return client.post(path, json=body)


def events_of(text: str) -> list[tuple[str | None, Any]]:
    """The (event, data) pairs of a stream; data is read as JSON, except for [DONE]. Comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        assert set(fields) <= {"event", "data"}
        assert len(fields) == len(lines)
        data = fields["data"]
        found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream of chat or completions, which ends with [DONE]."""
    data = [data for _, data in events_of(text)]
    assert data[-1] == "[DONE]"
    assert "[DONE]" not in data[:-1]
    return data[:-1]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a response in OpenAI's envelope."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def tokens(*ids: int, top: int = 0) -> list[TokenLogprobs]:
    """Log-probabilities of tokens, each with `top` alternatives; the last alternative is impossible."""
    alternatives = [(i, -0.5 - i) for i in range(top)]
    if alternatives:
        alternatives[-1] = (alternatives[-1][0], float("-inf"))
    return [TokenLogprobs(token, -0.25 * (token + 1), alternatives) for token in ids]


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_some_text = st.tuples(st.sampled_from(["reasoning", "content"]), _texts, st.lists(st.integers(0, 4), max_size=2))
_some_call = st.tuples(st.just("call"), st.sampled_from(["weather", "patch"]), _texts)


@st.composite
def answers(draw: Any, calls: bool = True) -> list[Any]:
    """The events of any answer: reasoning, content and calls in any order, then its end."""
    from dflash2_server.inference import Text

    events: list[Any] = []
    index = 0
    for kind, first, second in draw(st.lists(st.one_of(_some_text, _some_call) if calls else _some_text, max_size=8)):
        if kind == "call":
            events.append(ToolCall(index, f"call_{index}", first, json.dumps({"input": second})))
            index += 1
        else:
            events.append(Text(kind, first, tokens(*second, top=1)))
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "cancelled"] if index else ["stop", "length"]))
    return [*events, doubles.done(reason)]
