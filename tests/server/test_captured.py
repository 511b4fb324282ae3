"""Requests that real clients sent (Claude Code 2.1, Codex 0.171, opencode 1.18; their texts left out), played again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_server.inference import Inference, Text, ToolCall
from tests.server.doubles import ScriptedService, done, test_client

CAPTURED = sorted((Path(__file__).parent / "recorded").glob("captured_*.json"))
LAST = {"/v1/messages": "message_stop", "/v1/responses": "response.completed", "/v1/chat/completions": "[DONE]"}


def played(path: Path) -> tuple[dict[str, Any], Inference, str]:
    """A request, what the engine was asked, and the stream that came back."""
    request = json.loads(path.read_text(encoding="utf-8"))
    service = ScriptedService([Text("content", "I look."), ToolCall(0, "call_1", "read", "{}"), done("tool_calls")])
    query = f"?{request['query']}" if request["query"] else ""
    body = {**request["body"], "model": "demo"}
    response = test_client(service).post(request["path"] + query, json=body)
    assert response.status_code == 200, response.text
    return request, service.inference, response.text


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_a_captured_request_is_served(path: Path) -> None:
    request, inference, stream = played(path)
    assert request["body"]["stream"] is True
    assert LAST[request["path"]] in stream.rstrip().splitlines()[-1] + stream.rstrip().splitlines()[-2]
    assert "I look." in stream
    assert inference.messages
    offered = [tool["function"]["name"] for tool in inference.tools]
    assert len(offered) == len(set(offered))
    assert bool(offered) == bool(request["body"].get("tools"))


@pytest.mark.parametrize("name", ["claude_code", "codex", "opencode"])
def test_the_second_request_brings_the_tools_result_back(name: str) -> None:
    (path,) = (path for path in CAPTURED if path.stem == f"captured_{name}_second")
    _, inference, _ = played(path)
    assert inference.messages is not None
    called = next(message for message in inference.messages if message.get("tool_calls"))
    result = next(message for message in inference.messages if message["role"] == "tool")
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]


def test_there_are_captures_of_each() -> None:
    assert len(CAPTURED) == 7
