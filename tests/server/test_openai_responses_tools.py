"""Tools of a namespace: flat for the model, in their namespace for the client, against the openai package's types."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response

from dflash2_server.inference import NamedTool, ToolCall
from dflash2_server.openai.responses_inference import responses_inference
from dflash2_server.openai.responses_tools import Origin, origins, skipped_tools
from dflash2_server.openai.schemas_responses import ResponsesRequest

from . import doubles
from .openai_running import WEATHER, Service, events_of, post

PATH = "/v1/responses"
SEARCH = {"type": "function", "name": "search", "description": "Searches.", "parameters": WEATHER, "strict": False}
DOCS = {
    "type": "namespace",
    "name": "docs",
    "description": "The documents.",
    "tools": [SEARCH, {"type": "custom", "name": "note"}, {"type": "web_search"}],
}
ASKED: dict[str, Any] = {"input": "Hi", "tools": [SEARCH, DOCS, DOCS | {"name": "mcp__b__", "tools": [SEARCH]}]}
CALLS = [
    ToolCall(0, "call_a", "docs__search", '{"city": "Oslo"}'),
    ToolCall(1, "call_b", "docs__note", '{"input": "N"}'),
    ToolCall(2, "call_c", "mcp__b__search", "{}"),
    ToolCall(3, "call_d", "search", "{}"),
]
NAMES = [("docs", "search"), ("docs", "note"), ("mcp__b__", "search"), (None, "search")]


def named(items: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    return [(item.get("namespace"), item["name"]) for item in items]


def test_the_model_is_offered_flat_functions() -> None:
    request = ResponsesRequest.model_validate(ASKED | {"tool_choice": {"type": "function", "name": "docs__search"}})
    inference = responses_inference(request)
    functions = [tool["function"] for tool in inference.tools]
    assert [function["name"] for function in functions] == ["search", "docs__search", "docs__note", "mcp__b__search"]
    assert functions[1] == {"name": "docs__search", "description": "Searches.", "parameters": WEATHER}
    assert functions[2]["parameters"]["required"] == ["input"]
    assert inference.tool_choice == NamedTool("docs__search")
    assert skipped_tools(request) == ["web_search"]
    assert origins(request)["docs__note"] == Origin("note", "docs", custom=True)


def test_calls_come_back_in_their_namespace() -> None:
    service = Service([*CALLS, doubles.done("tool_calls")])
    body = post(service, PATH, ASKED).json()
    read = Response.model_validate(body)
    assert [item.type for item in read.output] == ["function_call", "custom_tool_call", *["function_call"] * 2]
    assert named(body["output"]) == NAMES
    assert body["tools"][1]["tools"] == [SEARCH, {"type": "custom", "name": "note"}]
    streamed = [event for _, event in events_of(post(service, PATH, ASKED | {"stream": True}).text)]
    assert named([event["item"] for event in streamed if event["type"] == "response.output_item.added"]) == NAMES
    done = [event["name"] for event in streamed if event["type"].endswith(("arguments.done", "input.done"))]
    assert done == [name for _, name in NAMES]


def test_earlier_calls_are_flat_again() -> None:
    output = post(Service([*CALLS, doubles.done("tool_calls")]), PATH, ASKED).json()["output"]
    messages = responses_inference(ResponsesRequest.model_validate(ASKED | {"input": output})).messages
    assert messages is not None
    assert [call["function"]["name"] for call in messages[0]["tool_calls"]] == [call.name for call in CALLS]
