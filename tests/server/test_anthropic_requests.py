"""Anthropic's protocol: what requests become, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_server.anthropic.convert import chat_messages
from dflash2_server.anthropic.schemas import MessagesRequest
from dflash2_server.inference import Inference, NamedTool
from tests.server import doubles
from tests.server.anthropic_running import MESSAGE, RICH, WEATHER, events_of, post

RECORDED = Path(__file__).parent / "recorded" / "claude_code.json"


def asked(**changes: Any) -> Inference:
    """The inference that a request becomes."""
    service = doubles.ScriptedService()
    answer = post(service, MESSAGE | changes)
    assert answer.status_code == 200, answer.text
    return service.inference


def refused(**changes: Any) -> str:
    """The message with which a request is refused, before the engine."""
    service = doubles.ScriptedService()
    answer = post(service, MESSAGE | changes)
    assert answer.status_code == 400, answer.text
    assert service.inferences == []
    assert answer.json()["error"]["type"] == "invalid_request_error"
    message: str = answer.json()["error"]["message"]
    return message


def turns(*messages: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    request = MessagesRequest.model_validate(MESSAGE | {"messages": list(messages)} | changes)
    return chat_messages(request)


def test_parameters() -> None:
    given = asked(temperature=0.5, top_p=1, top_k=20, stop_sequences=["a", "b", "c", "d"], metadata={"user_id": "u"})
    assert given.parameters == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 20,
        "stop": ["a", "b", "c", "d"],
    }


def test_what_is_not_given_is_not_passed_on() -> None:
    given = asked(temperature=None, stop_sequences=[], tools=[], unknown_field={"a": 1})
    assert given == Inference(
        model="demo", messages=[{"role": "user", "content": "hi"}], tools=[], parameters={"max_tokens": 5}
    )


def test_a_last_message_of_the_assistants_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "Name a city."}, {"role": "assistant", "content": "R"}]
    assert asked(messages=messages).continue_final
    assert not asked(messages=[*messages, messages[0]]).continue_final


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"enabled": False}, {"verify_mode": "off"}),
        ({"block_size": 3, "verify_mode": "dflash"}, {"block_size": 3, "verify_mode": "dflash"}),
        ({}, {}),
    ],
)
def test_the_dflash_object(options: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert asked(dflash=options).parameters == {"max_tokens": 5} | parameters


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, NamedTool("weather"), False),
        ({"type": "none"}, "none", True),
    ],
)
def test_tools_and_their_choice(choice: Any, expected: Any, parallel: bool) -> None:
    given = asked(tools=[WEATHER, WEATHER | {"name": "strict", "type": "custom", "strict": True}], tool_choice=choice)
    function = {"name": "weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}
    assert list(given.tools) == [
        {"type": "function", "function": function},
        {"type": "function", "function": function | {"name": "strict", "strict": True}},
    ]
    assert (given.tool_choice, given.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("changes", "reasoning", "budget"),
    [
        ({}, None, None),
        ({"thinking": {"type": "disabled"}}, "off", None),
        ({"thinking": {"type": "adaptive"}}, "on", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "on", 2000),
        ({"output_config": {"effort": "low"}}, "low", None),
        ({"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}}, "xhigh", None),
        ({"output_config": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 9}}, "high", 9),
        ({"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}, "off", None),
    ],
)
def test_thinking_and_effort(changes: dict[str, Any], reasoning: Any, budget: int | None) -> None:
    given = asked(**changes)
    assert (given.reasoning, given.thinking_budget) == (reasoning, budget)


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_a_json_schema_becomes_the_grammar(field: str) -> None:
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    assert asked(**{field: form if field == "output_format" else {"format": form}}).grammar == WEATHER["input_schema"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305' is not served"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'bash_20250124'"),
        ({"tools": [WEATHER, {"type": "text_editor_20250728", "name": "edit"}]}, "'text_editor_20250728'"),
        ({"tools": [{"name": "bare"}]}, "'bare' has no input_schema"),
        ({"tools": [WEATHER | {"name": ""}]}, "tools.0.name"),
        ({"tool_choice": {"type": "sometimes"}}, "'sometimes'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is 'any' and no tools are offered"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "no tools are offered"),
        (
            {"tool_choice": {"type": "tool", "name": "time"}},
            "tool_choice names 'time', which is not among the tools: none",
        ),
        ({"tool_choice": {"type": "tool", "name": "time"}, "tools": [WEATHER]}, "not among the tools: weather"),
        ({"thinking": {"type": "adaptive", "display": "some"}}, "thinking.display"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"stop_sequences": list("abcde")}, "stop_sequences has 5"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences.0"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1 (it is 0)"),
        ({"max_tokens": -3}, "-3"),
        ({"top_k": 1.5}, "top_k"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: Field required"),
        ({"thinking": {"type": "between_tools"}}, "'between_tools' is not served"),
        ({"output_config": {"effort": "utmost"}}, "'utmost'"),
        ({"output_config": {"format": {"type": "grammar", "schema": {}}}}, "'grammar'"),
        ({"system": [{"type": "image"}]}, "reads text only"),
        ({"system": 7}, "system"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content: "),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], told: str) -> None:
    assert told in refused(**changes)


def test_max_tokens_is_required() -> None:
    answer = post(doubles.ScriptedService(), {"messages": MESSAGE["messages"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "max_tokens: Field required"


@pytest.mark.parametrize(
    ("role", "block", "told"),
    [
        (
            "user",
            {"type": "image", "source": {}},
            "'image' is not served here, only 'text', 'document', 'tool_result': this",
        ),
        ("user", {"type": "document", "source": {"type": "base64", "data": "JVBERi0"}}, "this model reads text only"),
        ("user", {"type": "document", "source": {"type": "url", "url": "http://a"}}, "this model reads text only"),
        ("user", {"type": "document", "source": {}}, "messages.0.content.1.source: "),
        ("user", {"type": "document", "source": {"type": "text"}}, "messages.0.content.1.source.data: Field required"),
        ("user", {"type": "search_result"}, "'search_result'"),
        ("user", {"type": "tool_use", "id": "a", "name": "b", "input": {}}, "'tool_use'"),
        ("user", {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}, "reads text only"),
        ("user", {"type": "tool_result"}, "tool_use_id: Field required"),
        ("user", {"text": "no type"}, "messages.0.content.1: "),
        ("user", {"type": "text", "text": None}, "messages.0.content.1.text: "),
        ("user", "bare", "messages.0.content.1: "),
        ("assistant", {"type": "server_tool_use", "id": "a"}, "'server_tool_use'"),
        ("assistant", {"type": "tool_result", "tool_use_id": "a"}, "'tool_result'"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "b", "input": "{}"}, "input"),
        ("tool", {"type": "text", "text": "x"}, "'tool' is not served here, only 'user', 'assistant', 'system'"),
    ],
)
def test_blocks_that_are_refused(role: str, block: Any, told: str) -> None:
    message = refused(messages=[{"role": role, "content": [{"type": "text", "text": "a"}, block]}])
    assert told in message
    assert message.startswith("messages.0")


def test_the_system_prompt() -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}]
    user = {"role": "user", "content": "hi"}
    assert turns(user, system="One.") == [{"role": "system", "content": "One."}, user]
    assert turns(user, system=parts) == [{"role": "system", "content": "One.\n\nTwo."}, user]
    assert turns(user, system=[]) == turns(user, system=None) == turns(user) == [user]
    late = {"role": "system", "content": "Now three."}
    assert turns(user, late) == [user, late]


def test_the_billing_line_never_reaches_the_prompt() -> None:
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"}
    assert turns(MESSAGE["messages"][0], system=[bill]) == MESSAGE["messages"]
    shown = turns(MESSAGE["messages"][0], system=[bill, {"type": "text", "text": "Be brief."}])
    assert shown[0] == {"role": "system", "content": "Be brief."}
    # Only the line goes, wherever the client puts the instructions.
    one = bill["text"] + "\n\nYou are an agent.\nBe brief."
    for system in (
        one,
        [{"type": "text", "text": one}],
        [{"type": "text", "text": "You are an agent.\nBe brief."}, bill],
    ):
        shown = turns(MESSAGE["messages"][0], system=system)
        assert shown[0] == {"role": "system", "content": "You are an agent.\nBe brief."}


def test_results_of_tools_come_before_what_the_user_says() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
        {"type": "tool_result", "tool_use_id": "d", "content": "error: no", "is_error": True},
        {"type": "text", "text": "go"},
        {"type": "text", "text": "on"},
    ]
    assert turns({"role": "user", "content": blocks}) == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: 2"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "tool", "tool_call_id": "d", "content": "error: no"},
        {"role": "user", "content": "go\non"},
    ]
    assert turns({"role": "user", "content": blocks[:1]})[-1]["role"] == "tool"
    assert turns({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_documents_and_references_to_tools_are_text() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "1. Walk."}}
    parts = [{"type": "text", "text": "2. Run."}, {"type": "text", "text": "3. Rest."}]
    titled = {"type": "document", "title": "Plan", "context": "Draft.", "source": {"type": "content", "content": parts}}
    short = {"type": "document", "source": {"type": "content", "content": "4. Eat."}}
    found = [{"type": "tool_reference", "tool_name": "weather"}, {"type": "tool_reference", "tool_name": "time"}, plain]
    blocks = [plain, {"type": "tool_result", "tool_use_id": "a", "content": found}, titled, short]
    assert turns({"role": "user", "content": blocks}) == [
        {"role": "tool", "tool_call_id": "a", "content": "weather\ntime\n1. Walk."},
        {"role": "user", "content": "1. Walk.\nPlan\nDraft.\n2. Run.\n3. Rest.\n4. Eat."},
    ]


def test_numbers_beyond_all_bounds_are_refused() -> None:
    tool = '{"name": "far", "input_schema": {"maximum": 1e999}}'
    content = (
        f'{{"model": "demo", "max_tokens": 5, "messages": [{{"role": "user", "content": "a"}}], "tools": [{tool}]}}'
    )
    with doubles.test_client(doubles.ScriptedService()) as client:
        answer = client.post("/v1/messages", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "tools.0.input_schema: Input should hold finite numbers only"


def test_turns_of_the_assistant() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "text", "text": "I "},
        {"type": "text", "text": "ask."},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Zürich", "days": 3}},
    ]
    call = {"name": "weather", "arguments": '{"city": "Zürich", "days": 3}'}
    assert turns({"role": "assistant", "content": blocks}) == [
        {
            "role": "assistant",
            "content": "I ask.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "a", "type": "function", "function": call}],
        }
    ]
    assert turns({"role": "assistant", "content": blocks[4:]})[0]["content"] is None
    hidden = {"type": "thinking", "thinking": "", "signature": ""}
    assert "reasoning_content" not in turns({"role": "assistant", "content": [hidden, *blocks[2:]]})[0]
    assert turns({"role": "assistant", "content": "Hi"}) == [{"role": "assistant", "content": "Hi"}]


def test_count_tokens() -> None:
    service = doubles.ScriptedService(prompt_tokens=4321)
    body = {name: value for name, value in MESSAGE.items() if name != "max_tokens"}
    answer = post(service, body | {"system": "Be brief.", "tools": [WEATHER]}, "/v1/messages/count_tokens?beta=true")
    assert answer.json() == {"input_tokens": 4321}
    assert service.inferences == []
    (counted,) = service.counted
    assert counted.messages is not None
    assert [message["role"] for message in counted.messages] == ["system", "user"]
    assert len(counted.tools) == 1


def test_a_request_of_claude_code() -> None:
    body = json.loads(RECORDED.read_text(encoding="utf-8"))
    service = doubles.ScriptedService(RICH, models=[doubles.replaced(aliases=("claude-sonnet-4-5-20250929",))])
    answer = post(service, body, "/v1/messages?beta=true")
    assert answer.status_code == 200, answer.text
    assert events_of(answer.text)[-1] == {"type": "message_stop"}
    given = service.inference
    assert given.messages is not None
    assert [message["role"] for message in given.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert given.messages[0]["content"].startswith("You are Claude Code")
    assert given.messages[2]["reasoning_content"] == "I should read the file."
    assert [call["id"] for call in given.messages[2]["tool_calls"]] == ["call_0a1b", "call_0a1c"]
    assert [message["tool_call_id"] for message in given.messages[3:5]] == ["call_0a1b", "call_0a1c"]
    assert given.messages[4]["content"].startswith("Error: ls:")
    assert [tool["function"]["name"] for tool in given.tools] == ["Read", "Bash"]
    assert (given.reasoning, given.thinking_budget) == ("medium", None)
    assert given.parameters == {"max_tokens": 32000}
    assert "billing" not in json.dumps(given.messages)
