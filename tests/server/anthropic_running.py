"""Helpers of the tests of Anthropic's routes: requests, answers, and a reader of streams."""

from __future__ import annotations

import json
from typing import Any

from dflash2_server.inference import Text, ToolCall
from tests.server import doubles

MESSAGE: dict[str, Any] = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = ToolCall(0, "call_1", "weather", '{"city": "Zürich"}')
# An answer with everything in it.
RICH: list[doubles.Step] = [
    Text("reasoning", "Let me "),
    Text("reasoning", "see."),
    Text("content", "I "),
    Text("content", ""),
    Text("content", "ask."),
    CALL,
    ToolCall(1, "call_2", "weather", '{"city": "Bern", "days": 3}'),
    doubles.done("tool_calls", cached_tokens=4, completion_tokens=30, reasoning_tokens=5),
]


def post(service: doubles.ScriptedService, body: dict[str, Any], path: str = "/v1/messages") -> Any:
    with doubles.test_client(service) as client:
        return client.post(path, json=body)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; every frame has its type as its event."""
    events = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        head, _, data = frame.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        events.append(event)
    return events
