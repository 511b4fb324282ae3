"""The field that an error names: one of the request's own, in the protocol's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.errors import PromptTooLong, RequestError
from dflash2_server.errors import param_names
from tests.server import doubles

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "x"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with doubles.test_client(doubles.ScriptedService()) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "changes", "param"),
    [
        (CHAT, {"stop": [1]}, "stop.0"),
        (CHAT, {"stop": list("abcde")}, "stop"),
        (CHAT, {"stop": 5}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": 5}]}]}, "messages.0.content.0.type"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages.0.role"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": 5}}]}, "tools.0.function.name"),
        (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        (CHAT, {"tool_choice": 5}, "tool_choice"),
        (CHAT, {"logit_bias": {"5": "x"}}, "logit_bias.5"),
        (COMPLETIONS, {"prompt": [1.5]}, "prompt.0"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input.0.content.0.type"),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        (RESPONSES, {"input": [RESULT | {"output": [{"text": "a"}]}]}, "input.0.output.0.type"),
        (RESPONSES, {"input": [RESULT, {"role": "wizard", "content": "x"}]}, "input.1.role"),
        (RESPONSES, {"tools": [{"type": "function", "name": 5}]}, "tools.0.name"),
        (RESPONSES, {"tools": [{"type": "function", "function": {"name": "nested"}}]}, "tools.0.name"),
        (RESPONSES, {"tools": [{"type": "custom", "custom": 1, "name": ""}]}, "tools.0.name"),
        (RESPONSES, {"metadata": {"list": 1}}, "metadata.list"),
    ],
)
def test_tags_of_unions_are_no_fields(path: str, changes: dict[str, Any], param: str, client: TestClient) -> None:
    answer = client.post(path, json=BODIES[path] | changes)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("path", "raised", "param"),
    [
        (CHAT, "messages", "messages"),
        (CHAT, "messages[2].content", "messages[2].content"),
        (COMPLETIONS, "messages", "prompt"),
        (COMPLETIONS, "top_k", "top_k"),
        (COMPLETIONS, None, None),
        (RESPONSES, "messages", "input"),
        (RESPONSES, "messages[2].content", "input"),
        (RESPONSES, "max_tokens", "max_output_tokens"),
        (RESPONSES, "response_format", "text.format"),
        (RESPONSES, "tools", "tools"),
    ],
)
@pytest.mark.parametrize(("kind", "code"), [(PromptTooLong, "context_length_exceeded"), (RequestError, None)])
def test_the_service_s_names_become_the_protocol_s(
    path: str, raised: str | None, param: str | None, kind: type[RequestError], code: str | None
) -> None:
    with doubles.test_client(doubles.ScriptedService(submit_error=kind("too long", param=raised))) as client:
        error = client.post(path, json=BODIES[path]).json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), param_names({"messages": "input"}):
        raise KeyError("messages")
