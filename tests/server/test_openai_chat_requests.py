"""Chat requests: every field lands where it belongs in the Inference, or is refused by name before the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash2_mlx.errors import QueueFull, RequestError
from dflash2_server.inference import Inference, NamedTool
from dflash2_server.openai.chat_inference import chat_inference
from dflash2_server.openai.schemas_chat import ChatRequest

from . import doubles
from .openai_running import WEATHER, Service, error_of, post, recorded

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}}


def read(**fields: Any) -> Inference:
    return chat_inference(ChatRequest.model_validate({"messages": USER} | fields))


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": None, "top_p": None, "stop": None, "seed": None}, {}),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7},
        ),
        (
            {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.1},
            {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.1},
        ),
        ({"presence_context_size": 64, "ignore_eos": True}, {"presence_context_size": 64, "ignore_eos": True}),
        ({"logit_bias": {"5": -100, "17": 2.5}}, {"logit_bias": {5: -100.0, 17: 2.5}}),
        ({"logit_bias": {}}, {}),
        ({"stop": "###"}, {"stop": ["###"]}),
        ({"stop": ["a", "b", "c", "d"]}, {"stop": ["a", "b", "c", "d"]}),
        ({"stop": []}, {}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": 9, "max_completion_tokens": 4}, {"max_tokens": 4}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False}, {}),
        ({"dflash": {"enabled": False, "block_size": 3}}, {"verify_mode": "off"}),
        ({"dflash": {"enabled": True}}, {}),
        ({"dflash": {"block_size": 3, "verify_mode": "dflash"}}, {"block_size": 3, "verify_mode": "dflash"}),
        ({"n": 1, "user": "x", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "unheard_of": [1]}, {}),
    ],
)
def test_sampling_fields_become_parameters(fields: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert read(**fields).parameters == parameters


@pytest.mark.parametrize(
    ("fields", "reasoning", "budget"),
    [
        ({}, None, None),
        ({"reasoning_effort": "low"}, "low", None),
        ({"reasoning_effort": "none"}, "none", None),
        ({"reasoning_effort": "max"}, "xhigh", None),
        ({"reasoning": {"effort": "high"}}, "high", None),
        ({"reasoning": {"enabled": True, "max_tokens": 50}}, "on", 50),
        ({"reasoning": {"enabled": False}}, "off", None),
        ({"enable_thinking": False, "reasoning_effort": "high"}, "off", None),
        ({"enable_thinking": True}, "on", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "on", 64),
        ({"thinking": {"type": "disabled"}}, "off", None),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, "low", None),
        ({"thinking_budget": 5}, None, 5),
        ({"thinking_budget_tokens": 0}, None, 0),
    ],
)
def test_ways_to_ask_for_thinking(fields: dict[str, Any], reasoning: str | None, budget: int | None) -> None:
    inference = read(**fields)
    assert (inference.reasoning, inference.thinking_budget) == (reasoning, budget)


def test_template_arguments_are_passed_on() -> None:
    assert read(chat_template_kwargs={"enable_thinking": False, "x": [1]}).template_arguments == {
        "enable_thinking": False,
        "x": [1],
    }


@pytest.mark.parametrize(
    ("wanted", "grammar"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_object", "schema": {"type": "array"}}, {"type": "array"}),
        ({"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": WEATHER}}, WEATHER),
        ({"type": "json_schema", "json_schema": {"name": "w", "schema": {}}}, {}),
    ],
)
def test_response_formats(wanted: Any, grammar: Any) -> None:
    assert read(response_format=wanted).grammar == grammar


def test_tools_and_choices() -> None:
    bare = {"type": "function", "function": {"name": "now", "strict": True}}
    inference = read(tools=[TOOL, bare], parallel_tool_calls=False)
    assert inference.tools == [
        TOOL,
        {
            "type": "function",
            "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    assert inference.parallel_tool_calls is False
    assert inference.tool_choice == "auto"
    assert read(tools=[TOOL]).parallel_tool_calls is True
    for choice in ("auto", "none", "required"):
        assert read(tools=[TOOL], tool_choice=choice).tool_choice == choice
    named = {"type": "function", "function": {"name": "weather"}}
    assert read(tools=[TOOL], tool_choice=named).tool_choice == NamedTool("weather")


def test_messages_of_every_role_and_form() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    loose = {"id": "call_2", "function": {"name": "weather", "arguments": {"city": "Å"}}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call, loose]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "tool", "tool_call_id": "call_2", "content": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning_content": "Why?"},
        {"role": "assistant", "function_call": {"name": "now", "arguments": ""}},
        {"role": "function", "name": "now", "content": "noon"},
        {"role": "assistant"},
        {"role": "system", "content": ""},
    ]
    legacy = {"id": "call_now", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    told = {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Å"}'}}
    assert read(messages=messages).messages == [
        {"role": "developer", "content": "a\nb"},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call, told]},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
        {"role": "tool", "content": "", "tool_call_id": "call_2"},
        {"role": "assistant", "content": "No.", "reasoning_content": "Why?"},
        {"role": "assistant", "content": None, "tool_calls": [legacy]},
        {"role": "tool", "content": "noon", "name": "now", "tool_call_id": "call_now"},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": ""},
    ]


def _content(*parts: Any) -> dict[str, Any]:
    return {"messages": [*USER, {"role": "user", "content": list(parts)}]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 2}, "n", "one answer"),
    ({"n": 0}, "n", "one answer"),
    ({"modalities": ["text", "audio"]}, "modalities", "text only"),
    ({"audio": {"voice": "a", "format": "wav"}}, "audio", "text only"),
    ({"functions": [{"name": "f"}]}, "functions", "tools"),
    ({"function_call": "auto"}, "function_call", "tool_choice"),
    ({"web_search_options": {}}, "web_search_options", "does not search"),
    ({"moderation": {"model": "x"}}, "moderation", "does not moderate"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs to true"),
    ({"logprobs": False, "top_logprobs": 0}, "top_logprobs", "logprobs to true"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids"),
    ({"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "without a schema"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only functions"),
    ({"tools": [TOOL, {"type": "custom", "custom": {"name": "x"}}]}, "tools[1].type", "'custom'"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "no function"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": "any", "tools": [TOOL]}, "tool_choice", "'any'"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [TOOL]}, "tool_choice", "weather"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}, "tools": [TOOL]}, "tool_choice", "allowed_tools"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort", "contradict"),
    ({"thinking_budget": 1, "reasoning": {"max_tokens": 2}}, "thinking_budget", "contradict"),
    (_content({"type": "image_url", "image_url": {"url": "x"}}), "messages[1].content[0]", "text only"),
    (_content({"type": "text", "text": "a"}, {"type": "input_audio"}), "messages[1].content[1]", "text only"),
    (_content({"type": "file", "file": {}}), "messages[1].content[0]", "text only"),
    (_content({"type": "hologram"}), "messages[1].content[0].type", "hologram"),
    (_content({"type": "text"}), "messages[1].content[0].text", "no text"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "no content"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]}]},
        "messages[0].tool_calls[0].type",
        "only functions",
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read(**fields)
    assert caught.value.param == param


TYPES: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": float("inf")}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"seed": "7"}, "seed"),
    ({"seed": True}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": [None]}, "stop"),
    ({"stream": "true"}, "stream"),
    ({"logprobs": 2}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"thinking": {"type": "perhaps"}}, "thinking"),
    ({"thinking_budget": -1}, "thinking_budget"),
    ({"dflash": {"enabled": "no"}}, "dflash"),
    ({"dflash": {"block_size": 2.0}}, "dflash"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages"),
    ({"messages": None}, "messages"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "x", "parameters": "y"}}]}, "tools"),
    ({"tool_choice": 5}, "tool_choice"),
]


def test_wrong_types_and_refusals_are_400_in_the_envelope_before_the_engine() -> None:
    service = Service()

    with doubles.test_client(service) as client:
        for fields, param in TYPES:
            # NaN and infinities are no JSON, but Python's clients send them and its parser reads them.

            body = json.dumps({"messages": USER} | fields)
            response = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
            error = error_of(response)
            assert error["type"] == "invalid_request_error"
            assert error["message"]
            assert param in (error["param"] or param), (fields, error)
        error = error_of(client.post("/v1/chat/completions", json={"messages": USER, "n": 2}))
        assert error["param"] == "n"
        assert error_of(client.post("/v1/chat/completions", json={}))["param"] == "messages"
    assert service.inferences == []


def test_errors_of_the_service_keep_their_status() -> None:
    body = {"messages": USER, "model": "another"}
    assert error_of(post(Service(), "/v1/chat/completions", body), 404)["code"] == "model_not_found"
    full = Service(submit_error=QueueFull("64 requests wait: come again", retry_after=3))
    response = post(full, "/v1/chat/completions", {"messages": USER, "stream": True})
    assert error_of(response, 429)["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "3"
    wrong = Service(submit_error=RequestError("top_k is -1", param="top_k"))
    assert error_of(post(wrong, "/v1/chat/completions", {"messages": USER}))["param"] == "top_k"


def test_recorded_requests_of_clients() -> None:
    opencode = chat_inference(ChatRequest.model_validate(recorded("openai_opencode")))
    assert opencode.messages is not None
    assert [message["role"] for message in opencode.messages] == ["system", "system", "user", "assistant", "tool"]
    assert opencode.messages[3]["reasoning_content"] == "I read the file."
    assert opencode.messages[3]["tool_calls"][0]["function"]["arguments"] == '{"filePath":"/repo/a.py"}'
    assert opencode.messages[4]["tool_call_id"] == "call_9f3"
    assert opencode.parameters == {"temperature": 0.55, "top_p": 1.0, "max_tokens": 32000}
    assert opencode.tools[0]["function"]["parameters"]["additionalProperties"] is False

    cline = chat_inference(ChatRequest.model_validate(recorded("openai_cline")))
    assert cline.messages is not None
    assert cline.messages[1]["content"].startswith("<task>\nName the files.\n</task>\n<environment_details>")
    assert cline.parameters == {"temperature": 0.0}

    webui = chat_inference(ChatRequest.model_validate(recorded("openai_open_webui")))
    assert webui.reasoning == "low"
    assert webui.parameters == {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "seed": 42,
        "logit_bias": {5: -100.0, 7: 2.0},
        "stop": ["###", "User:"],
        "max_tokens": 512,
    }
    for name in ("openai_opencode", "openai_cline", "openai_open_webui"):
        assert post(Service(), "/v1/chat/completions", recorded(name)).status_code == 200
