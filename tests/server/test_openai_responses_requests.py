"""Responses requests: items to messages, tools of all kinds, every refusal by its name."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_server.inference import Inference, NamedTool
from dflash2_server.openai.responses_inference import responses_inference
from dflash2_server.openai.schemas_responses import ResponsesRequest

from . import doubles
from .openai_running import WEATHER, Service, error_of, post, recorded

PATH = "/v1/responses"
FLAT = {"type": "function", "name": "weather", "description": "The weather.", "parameters": WEATHER, "strict": True}
CHAT = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}}


def read(**fields: Any) -> Inference:
    return responses_inference(ResponsesRequest.model_validate({"input": "Hi"} | fields))


def messages(*items: Any, **fields: Any) -> Any:
    return read(input=list(items), **fields).messages


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, {}),
        (
            {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 5},
            {"temperature": 0.5, "top_p": 0.9, "max_tokens": 5},
        ),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": 3}),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 0}, {}),
        ({"top_k": 5, "seed": 1, "stop": "x"}, {"top_k": 5, "seed": 1, "stop": ["x"]}),
        ({"dflash": {"enabled": False}}, {"verify_mode": "off"}),
        ({"store": True, "truncation": "auto", "user": "x", "service_tier": "flex", "background": False}, {}),
        ({"previous_response_id": None, "conversation": None, "prompt": None, "prompt_cache_key": "x"}, {}),
    ],
)
def test_sampling_fields_become_parameters(fields: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert read(**fields).parameters == parameters


def test_reasoning_and_formats() -> None:
    assert read(reasoning={"effort": "high", "summary": "auto"}).reasoning == "high"
    assert read(reasoning={"effort": None}).reasoning is None
    assert read(text={"format": {"type": "text"}, "verbosity": "low"}).grammar is None
    assert read(text={"format": {"type": "json_object"}}).grammar == "json_object"
    schema = {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}
    assert read(text={"format": schema}).grammar == WEATHER


def test_instructions_and_messages_in_every_form() -> None:
    assert read(instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(
        {"role": "user", "content": "easy"},
        {"type": "message", "role": "developer", "content": parts},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "system", "content": "s"},
    ) == [
        {"role": "user", "content": "easy"},
        {"role": "developer", "content": "a\nb"},
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "No."},
        {"role": "system", "content": "s"},
    ]


def _called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_items_of_one_turn_are_one_message() -> None:
    body = recorded("openai_codex_second")
    assert responses_inference(ResponsesRequest.model_validate(body)).messages == [
        {"role": "system", "content": body["instructions"]},
        {"role": "user", "content": "List the files, then add one."},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "I should look first.",
            "tool_calls": [
                _called("call_1", "exec_command", '{"cmd":"ls"}'),
                _called("call_2", "exec_command", '{"cmd":"pwd"}'),
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": "Chunk ID: 1\nProcess exited with code 0\nOutput:\na.py\n",
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "/repo"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                _called(
                    "call_3",
                    "apply_patch",
                    '{"input": "*** Begin Patch\\n*** Add File: b.py\\n+x = 1\\n*** End Patch"}',
                )
            ],
        },
        {"role": "tool", "tool_call_id": "call_3", "content": "Success. Updated the following files:\nA b.py\n"},
    ]


def test_reasoning_begins_a_turn_and_its_summary_stands_in_for_it() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "x"}
    answer = {"role": "assistant", "content": "A"}
    assert messages(answer, thought, answer, thought, thought) == [
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "A", "reasoning_content": "S"},
        {"role": "assistant", "content": None, "reasoning_content": "SS"},
    ]


def test_what_stands_between_a_call_and_its_result_belongs_to_the_calls_turn() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}
    other = call | {"call_id": "b"}
    result = {"type": "function_call_output", "call_id": "a", "output": "noon"}
    said = {"role": "assistant", "content": "I look."}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    turn = {"role": "assistant", "content": "I look.", "tool_calls": [_called("a", "now", "{}")]}
    told = {"role": "tool", "tool_call_id": "a", "content": "noon"}
    assert messages(call, said, result) == [turn, told]
    assert messages(said, call, said, result) == [turn | {"content": "I look.\nI look."}, told]
    assert messages(call, thought, other, result) == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [_called("a", "now", "{}"), _called("b", "now", "{}")],
        },
        told,
    ]
    assert messages(call, result, said) == [turn | {"content": None}, told, said]


def test_tools_are_offered_mapped_or_skipped() -> None:
    body = ResponsesRequest.model_validate(recorded("openai_codex_first"))
    inference = responses_inference(body)
    assert [tool["function"]["name"] for tool in inference.tools] == [
        "exec_command",
        "apply_patch",
        "mcp__docs__search",
    ]
    patch = inference.tools[1]["function"]
    assert patch["parameters"]["required"] == ["input"]
    assert patch["parameters"]["properties"]["input"]["type"] == "string"
    assert patch["description"].startswith("Use the `apply_patch` tool")
    assert "grammar (lark):\nstart: begin_patch hunk+ end_patch" in patch["description"]
    assert inference.reasoning == "medium"
    assert inference.parallel_tool_calls is False
    assert read(tools=[FLAT]).tools == [CHAT]


def test_skipped_tools_are_named_in_a_header_and_cannot_forge_one() -> None:
    for stream in (True, False):
        body = recorded("openai_codex_first") | {"stream": stream}
        response = post(Service(), PATH, body)
        assert response.headers["x-dflash2-skipped-tools"] == "web_search,local_shell"
    evil = {"input": "Hi", "tools": [{"type": "mcp\r\nset-cookie: é=1"}]}
    response = post(Service(), PATH, evil)
    assert response.headers["x-dflash2-skipped-tools"] == "mcp??set-cookie????1"
    assert "set-cookie" not in response.headers
    assert "x-dflash2-skipped-tools" not in post(Service(), PATH, {"input": "Hi"}).headers


@pytest.mark.parametrize(("count", "told"), [(16, "t15"), (17, "and 1 more"), (5000, "and 4984 more")])
def test_a_header_names_no_more_than_so_many(count: int, told: str) -> None:
    tools = [{"type": f"t{i}"} for i in range(count)]
    names = post(Service(), PATH, {"input": "Hi", "tools": tools}).headers["x-dflash2-skipped-tools"].split(",")
    assert names == [f"t{i}" for i in range(16)] + ([told] if count > 16 else [])
    assert names[-1] == told


def test_choices() -> None:
    custom = {"type": "custom", "name": "patch"}
    for choice in ("auto", "none", "required"):
        assert read(tools=[FLAT], tool_choice=choice).tool_choice == choice
    named = {"type": "function", "name": "weather"}
    assert read(tools=[FLAT], tool_choice=named).tool_choice == NamedTool("weather")
    assert read(tools=[FLAT, custom], tool_choice=custom).tool_choice == NamedTool("patch")


def _part(kind: str) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": kind, "image_url": "x"}]}]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole input"),
        ({"conversation": "conv_1"}, "conversation", "send the whole input"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "send the whole input"),
        ({"background": True}, "background", "stream"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "no stored prompts"),
        ({"moderation": {"model": "x"}}, "moderation", "does not moderate"),
        ({"top_logprobs": 2}, "top_logprobs", "message.output_text.logprobs"),
        ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice", "allowed_tools"),
        ({"tools": [FLAT], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "weather"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "without a schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "json_schema"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "item_reference"),
        ({"input": [{"id": "msg_1"}]}, "input[0]", "item_reference"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type", "web_search_call"),
        (_part("input_image"), "input[0].content[0]", "text only"),
        (_part("input_file"), "input[0].content[0]", "text only"),
        (_part("hologram"), "input[0].content[0].type", "hologram"),
        (
            {"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]},
            "input[0].output[0]",
            "text only",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read(**fields)
    assert caught.value.param == param


def test_wrong_types_are_400_in_the_envelope_before_the_engine() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [{"type": 5}]}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": None}]}, "input"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": {}, "call_id": "a"}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "0"}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"include": "x"}, "include"),
        ({"instructions": ["x"]}, "instructions"),
        ({"reasoning": {"effort": "huge"}}, "reasoning"),
        ({"truncation": "perhaps"}, "truncation"),
        ({"tools": [{"type": "function", "function": {"name": "nested"}}]}, "tools"),
        ({"tools": [{"name": "untyped"}]}, "tools"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]}, "tools"),
        ({"tools": ["x"]}, "tools"),
    ]
    service = Service()
    with doubles.test_client(service) as client:
        for fields, param in wrong:
            error = error_of(client.post(PATH, json={"input": "Hi"} | fields))
            assert error["param"].split(".")[0] == param, (fields, error)
        assert error_of(client.post(PATH, json={"model": "demo"}))["param"] == "input"
        # Valid JSON that reads as infinity: it could not be repeated in the response.
        tool = '{"type": "function", "name": "x", "parameters": {"maximum": 1e999}}'
        for body in (f'{{"input": "Hi", "tools": [{tool}]}}', '{"input": "Hi", "tool_choice": {"x": [-1e999]}}'):
            response = client.post(PATH, content=body, headers={"content-type": "application/json"})
            assert "finite" in error_of(response)["message"]
    assert service.inferences == []
