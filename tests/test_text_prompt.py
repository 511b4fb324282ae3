"""A client's conversation to a prompt: forms that templates take, tools, literal controls, borders."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.prompt import Prompt, build_prompt
from dflash2_mlx.text.template import ChatTemplate, Known
from tests.text_doubles import (
    HARMONY,
    MISTRAL,
    STRICT,
    THINKING,
    TOOLLESS,
    assistant,
    call,
    make_tokenizer,
    result,
    system,
    tool,
    user,
)

TEMPLATES = {
    "strict": ChatTemplate(make_tokenizer(STRICT, "qwen3_coder")),
    "thinking": ChatTemplate(make_tokenizer(THINKING, "json_tools")),
    "toolless": ChatTemplate(make_tokenizer(TOOLLESS)),
    "mistral": ChatTemplate(make_tokenizer(MISTRAL, "mistral")),
    "harmony": ChatTemplate(make_tokenizer(HARMONY)),
}
EVERY = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


def build(template: ChatTemplate, *messages: dict[str, Any], **options: Any) -> Prompt:
    prompt = build_prompt(template, messages, **options)
    assert template.tokenizer.decode(prompt.ids) == prompt.text, "the ids are those of the whole text"
    return prompt


AGENT_CHAT = [
    system("Be brief."),
    user("Weather?"),
    assistant(None, call(arguments='{"city": "Rome"}'), call("get_time", '{"zone": 1}', "call_2")),
    result("warm", "call_1"),
    result("noon", "call_2"),
    assistant("Warm, at noon."),
    user("Thanks"),
]


@EVERY
def test_a_growing_conversation_with_tools_keeps_its_prefix(template: ChatTemplate) -> None:
    tools = [tool(), tool("get_time", zone={"type": "integer"})]
    before: list[int] = []
    for end in (2, 5, 7):
        prompt = build(template, *AGENT_CHAT[:end], tools=tools)
        for said in (message["content"] for message in AGENT_CHAT[:end] if message["content"]):
            assert said in prompt.text
        if before:
            assert prompt.ids[: len(before)] == before
        end_of_messages = prompt.borders[-1] if template.source != MISTRAL else len(prompt.ids)
        before = prompt.ids[:end_of_messages]
    assert prompt.text.count("get_weather") >= 2, "told of and called"
    assert prompt.text.count("get_time") >= 2


# --- system messages --------------------------------------------------------------------------------------

LATE = [system("Be brief."), user("Hi"), assistant("Hello"), system("It is late."), user("And now?")]


@EVERY
def test_a_later_system_message_is_folded_and_none_is_lost(template: ChatTemplate) -> None:
    first = build(template, *LATE[:2])
    prompt = build(template, *LATE)
    assert "It is late." in prompt.text
    if template.source != THINKING:
        assert "<system-reminder>\nIt is late.\n</system-reminder>" in prompt.text or template.source == TOOLLESS
    start = first.borders[-1] if first.borders else len(first.ids)
    assert prompt.ids[:start] == first.ids[:start]


def test_the_control_the_strict_template_itself_refuses_it() -> None:
    with pytest.raises(RequestError, match=r"refuses these messages: System message must be at the beginning\."):
        TEMPLATES["strict"].render(LATE)


def test_a_system_message_after_a_result_begins_no_new_turn() -> None:
    prompt = build(TEMPLATES["strict"], *AGENT_CHAT[:5], system("Hurry."))
    assert "noon\n\n<system-reminder>\nHurry.\n</system-reminder>\n</tool_response>" in prompt.text


@EVERY
def test_leading_system_and_developer_messages_are_one(template: ChatTemplate) -> None:
    prompt = build(template, system("One."), {"role": "developer", "content": "Two."}, user("Hi"))
    assert "One.\n\nTwo." in prompt.text


def test_a_template_that_knows_no_system_message_gets_it_with_the_first_of_the_user() -> None:
    for refuse in ("{{ raise_exception('System role not supported') }}", ""):
        source = (
            "{% for m in messages %}{% if m.role == 'system' %}" + refuse + "{% else %}<|im_start|>{{ m.role }}\n"
            "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        )
        prompt = build(ChatTemplate(make_tokenizer(source)), system("Be brief."), user("Hi"))
        assert prompt.text == "<|im_start|>user\nBe brief.\n\nHi<|im_end|>\n", "refused or left out"


GATHERING = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("said", ["And now?", "You say: It is late."])
def test_a_later_system_message_does_not_move_to_the_front(said: str) -> None:
    template = ChatTemplate(make_tokenizer(GATHERING))
    first = build(template, *LATE[:2])
    assert first.text.startswith("Be brief.\n<|im_start|>user\nHi"), "the first one is there"
    prompt = build(template, *LATE[:4], user(said))
    assert prompt.ids[: len(first.ids)] == first.ids
    assert "<system-reminder>\nIt is late.\n</system-reminder>" in prompt.text


def test_a_system_message_that_is_left_out_is_not_found_in_another_text() -> None:
    source = (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    template = ChatTemplate(make_tokenizer(source))
    said = "x" * 32
    prompt = build(template, system(said + " first"), user(said), assistant("a"), system("a"), user("b"))
    assert said + " first" in prompt.text
    assert "<system-reminder>\na\n</system-reminder>" in prompt.text


def test_a_template_that_refuses_the_signs_is_asked_for_the_whole_text() -> None:
    source = GATHERING + "{% if messages | length < 4 %}{{ raise_exception('too few') }}{% endif %}"
    template = ChatTemplate(make_tokenizer(source))
    messages = [system("Be brief."), user("a"), assistant("b"), user("c")]
    assert build(template, *messages).text.startswith("Be brief.\n<|im_start|>user\na")


def test_what_is_refused_in_every_form_is_an_error_in_the_templates_words() -> None:
    with pytest.raises(RequestError, match=r"No user query found in messages\.") as caught:
        build(TEMPLATES["strict"], assistant("Hello"))
    assert caught.value.param == "messages"


# --- order of roles ---------------------------------------------------------------------------------------


def test_messages_of_one_role_are_joined_for_a_template_that_wants_turns() -> None:
    prompt = build(
        TEMPLATES["mistral"], user("One."), user("Two."), assistant("Yes."), assistant("So."), user("Three.")
    )
    assert prompt.text == "<s>[INST]One.\n\nTwo.[/INST]Yes.\n\nSo.</s>[INST]Three.[/INST]"
    plain = build(TEMPLATES["thinking"], user("One."), user("Two."))
    assert "One.<|im_end|>\n<|im_start|>user\nTwo." in plain.text, "only there"


def test_what_the_user_says_after_a_result_is_joined_to_it() -> None:
    messages = [user("Weather?"), assistant(None, call()), result("warm"), user("Go on")]
    assert "[TOOL_RESULTS]warm\n\nGo on[/TOOL_RESULTS]" in build(TEMPLATES["mistral"], *messages).text


@EVERY
def test_a_result_without_a_call_is_no_error(template: ChatTemplate) -> None:
    assert "warm" in build(template, user("Hi"), result("warm", "lost"), user("Go on")).text


# --- tools ------------------------------------------------------------------------------------------------


def test_ids_of_calls_are_made_fit_for_mistral_and_stay_the_same() -> None:
    messages = [user("Weather?"), assistant(None, call(call_id="toolu_01ABCDEFG")), result("warm", "toolu_01ABCDEFG")]
    assert build(TEMPLATES["mistral"], *messages).ids == build(TEMPLATES["mistral"], *messages).ids


@pytest.mark.parametrize("arguments", ['{"city": "Rome", "days": 2}', {"city": "Rome", "days": 2}])
def test_arguments_are_an_object_for_the_template(arguments: Any) -> None:
    messages = [user("Weather?"), assistant(None, call(arguments=arguments)), result("warm")]
    assert "<parameter=days>\n2\n</parameter>" in build(TEMPLATES["strict"], *messages).text
    assert '"arguments": {"city": "Rome", "days": 2}' in build(TEMPLATES["thinking"], *messages).text


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments(arguments: Any) -> None:
    messages = [user("Weather?"), assistant(None, call(arguments=arguments)), result("warm")]
    assert '"arguments": {}' in build(TEMPLATES["thinking"], *messages).text


@pytest.mark.parametrize("write", ["{{ c.function.arguments }}", "{{ 'call: ' + c.function.arguments }}"])
def test_arguments_are_text_for_a_template_that_prints_them(write: str) -> None:
    source = (
        "{{ tools }}{% for m in messages %}<|im_start|>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}" + write + "{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(make_tokenizer(source, "json_tools"))
    assert template.arguments_as_text
    prompt = build(template, user("Weather?"), assistant(None, call(arguments={"city": 'R"m'})), result("warm"))
    assert '{"city": "R\\"m"}' in prompt.text


def test_a_template_that_knows_no_tools_is_told_of_them() -> None:
    template = TEMPLATES["toolless"]
    assert not template.tool_format.native
    prompt = build(template, *AGENT_CHAT, tools=[tool(), tool("get_time")])
    head, _, rest = prompt.text.partition("<|im_end|>")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '{"name": "get_time", "description": "It is get_time."' in head
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n<tool_call>' in rest
    both = "<tool_response>\nwarm\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert f"<|im_start|>user\n{both}<|im_end|>" in rest
    assert "You are kind" not in prompt.text


def test_a_template_without_tools_is_left_alone_when_none_are_offered() -> None:
    assert "# Tools" not in build(TEMPLATES["toolless"], user("Hi")).text


def test_harmony_has_one_call_a_message_each_with_its_result() -> None:
    prompt = build(TEMPLATES["harmony"], *AGENT_CHAT[:5], tools=[tool(), tool("get_time")])
    order = [prompt.text.rindex(text) for text in ('"Rome"', '"warm"', '{"zone": 1}', '"noon"')]
    assert order == sorted(order)


def test_harmony_hears_what_it_thought_before_a_call() -> None:
    thought = {"reasoning_content": "I must look."}
    messages = [user("Weather?"), assistant(None, call(), **thought), result("warm")]
    assert "analysis<|message|>I must look.<|end|>" in build(TEMPLATES["harmony"], *messages).text
    messages[1] = assistant("Let me look.", call(), **thought)
    assert "analysis<|message|>I must look.\n\nLet me look.<|end|>" in build(TEMPLATES["harmony"], *messages).text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("strict", ("qwen3_coder", "<tool_call>", "</tool_call>", True)),
        ("thinking", ("json_tools", "<tool_call>", "</tool_call>", True)),
        ("toolless", ("json_tools", "<tool_call>", "</tool_call>", False)),
        ("mistral", ("mistral", "[TOOL_CALLS]", "", True)),
        ("harmony", ("harmony", "<|channel|>commentary to=functions.", "<|call|>", True)),
    ],
)
def test_the_format_of_calls(name: str, expected: tuple[str, str, str, bool]) -> None:
    found = TEMPLATES[name].tool_format
    assert (found.name, found.start, found.end, found.native) == expected


# --- control tokens ---------------------------------------------------------------------------------------


@EVERY
def test_literal_control_tokens_stay_text_wherever_they_are_said(template: ChatTemplate) -> None:
    controls = set(template._known_ids)
    hostile = "".join(template._controls)

    def said(text: str) -> list[int]:
        named = tool("f", **{f"a{text}": {"type": "string", "description": text, "enum": [text]}})
        messages = [
            system(f"s{text}"),
            user(f"u{text}"),
            assistant(f"a{text}", call("f", {"x": [text, {f"k{text}": text}]}, "abcdefghi")),
            result(f"r{text}", "abcdefghi"),
            assistant(f"b{text}", reasoning_content=f"t{text}"),
            user(text),
        ]
        ids = build(template, *messages, tools=[named], extra={"custom": text}).ids
        return [i for i in ids if i in controls]

    assert hostile
    assert said(hostile) == said("")


def test_no_argument_of_a_request_replaces_the_template() -> None:
    for name in ("chat_template", "add_generation_prompt", "tokenize", "continue_final_message"):
        with pytest.raises(RequestError, match=name) as caught:
            build(TEMPLATES["thinking"], user("Hi"), extra={name: "x"})
        assert caught.value.param == f"chat_template_kwargs.{name}"


# --- borders and known ids --------------------------------------------------------------------------------


@EVERY
def test_conversations_with_the_same_system_message_and_tools_share_their_first_border(template: ChatTemplate) -> None:
    one = build(template, system("Be brief."), user("\n\ufdd1One"), tools=[tool()])
    two = build(template, system("Be brief."), user("Two"), assistant("Yes"), user("2"), tools=[tool()])
    if template.source == MISTRAL:  # the system message stands with the first of the user
        assert "Be brief" not in template.tokenizer.decode(one.ids[: one.borders[0]])
    else:
        assert "Be brief" in template.tokenizer.decode(one.ids[: one.borders[0]])
    assert one.borders[0] == two.borders[0]
    assert one.ids[: one.borders[0]] == two.ids[: two.borders[0]]
    assert "get_weather" in template.tokenizer.decode(one.ids[: one.borders[0]])


def test_the_last_border_is_where_the_answer_is_opened() -> None:
    for name, opening in (("strict", "<|im_start|>assistant\n<think>\n"), ("harmony", "<|start|>assistant")):
        prompt = build(TEMPLATES[name], user("Hi"))
        assert TEMPLATES[name].tokenizer.decode(prompt.ids[prompt.borders[-1] :]) == opening
    off = build(TEMPLATES["strict"], user("Hi"), reasoning="off")
    assert TEMPLATES["strict"].tokenizer.decode(off.ids[off.borders[-1] :]).endswith("<think>\n\n</think>\n\n")


@EVERY
def test_borders_rise_and_leave_something_to_run(template: ChatTemplate) -> None:
    borders = build(template, *AGENT_CHAT, tools=[tool()]).borders
    assert list(borders) == sorted(set(borders))
    assert all(border > 0 for border in borders)
    assert build(TEMPLATES["mistral"], user("Hi")).borders == (), "nothing is shared, nothing opens the answer"


def test_a_template_that_refuses_the_probes_has_no_borders_and_the_same_ids() -> None:
    source = (
        "{% if messages | length < 3 %}{{ raise_exception('too few') }}{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    prompt = build(ChatTemplate(make_tokenizer(source)), system("a"), user("b"), assistant("c"), user("d"))
    assert prompt.borders == ()
    assert prompt.text == "<|im_start|>a<|im_start|>b<|im_start|>c<|im_start|>d>"


def test_the_longest_known_beginning_keeps_its_ids() -> None:
    template = TEMPLATES["toolless"]
    text = build(template, user("Hi"), assistant("Yes"), user("So?")).text
    known = [Known(text[:30], "", [1, 2]), Known(text[:50], text[50:60], [7, 8, 9]), Known("else", "", [5])]
    prompt = build_prompt(template, [user("Hi"), assistant("Yes"), user("So?")], known=known)
    assert prompt.ids[:3] == [7, 8, 9]
    assert template.tokenizer.decode(prompt.ids[3:]) == text[60:]


# --- reasoning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh"])
def test_an_effort_is_taken_for_every_model_when_lenient(effort: str) -> None:
    assert build(TEMPLATES["strict"], user("Hi"), reasoning=effort).text.endswith("<think>\n")
    word = {"minimal": "low", "xhigh": "high"}.get(effort, effort)
    assert f"Reasoning: {word}<" in build(TEMPLATES["harmony"], user("Hi"), reasoning=effort).text
    plain = build(TEMPLATES["toolless"], user("Hi")).text
    assert build(TEMPLATES["toolless"], user("Hi"), reasoning=effort).text == plain
    with pytest.raises(RequestError, match="knows no reasoning"):
        build(TEMPLATES["toolless"], user("Hi"), reasoning=effort, lenient=False)


def test_off_and_none_switch_off_or_do_as_much_as_there_is() -> None:
    for choice in ("off", "none"):
        assert build(TEMPLATES["strict"], user("Hi"), reasoning=choice).text.endswith("</think>\n\n")
        assert "Reasoning: low<" in build(TEMPLATES["harmony"], user("Hi"), reasoning=choice).text
        assert build(TEMPLATES["toolless"], user("Hi"), reasoning=choice).ids


def test_a_field_of_a_message_is_no_switch() -> None:
    with pytest.raises(RequestError, match="no switch for it"):
        TEMPLATES["harmony"].reasoning_arguments("off")


def test_an_effort_that_the_template_names_is_passed_as_it_is() -> None:
    source = TOOLLESS + "{% if reasoning_effort == 'xhigh' %}!{% endif %}"
    assert ChatTemplate(make_tokenizer(source)).reasoning_arguments("xhigh") == {"reasoning_effort": "xhigh"}
    with pytest.raises(RequestError, match="'warm': it must be one of"):
        ChatTemplate(make_tokenizer(source)).reasoning_arguments("warm")


@pytest.mark.parametrize("template", [THINKING, TOOLLESS])
def test_what_the_assistant_has_begun_is_gone_on_with(template: str) -> None:
    chat = ChatTemplate(make_tokenizer(template))
    begun = [{"role": "user", "content": "Name a city."}, {"role": "assistant", "content": "It is <|im_end|> R"}]
    asked = build_prompt(chat, begun[:1])
    prompt = build_prompt(chat, begun, continue_final=True)
    assert prompt.text == asked.text + "It is <|im_end|> R"
    assert prompt.ids[: len(asked.ids)] == asked.ids
    assert chat.tokenizer.eos_token_id not in prompt.ids[len(asked.ids) :]
    answered = build_prompt(chat, begun)
    assert answered.text.endswith(asked.text[-20:])


def test_opened_thinking_is_closed_before_what_the_assistant_has_begun() -> None:
    chat = ChatTemplate(make_tokenizer(STRICT))
    begun = [{"role": "user", "content": "Name a city."}, {"role": "assistant", "content": "Ro"}]
    assert build_prompt(chat, begun, continue_final=True).text.endswith("<think>\n\n</think>\n\nRo")
    called = {"role": "assistant", "content": "Ro", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    assert not build_prompt(chat, [begun[0], called], continue_final=True).text.endswith("Ro")


def test_a_literal_tag_of_thinking_is_text_also_where_no_template_writes_it() -> None:
    chat = ChatTemplate(make_tokenizer(TOOLLESS))
    think = chat.tokenizer.convert_tokens_to_ids("<think>")
    assert chat.tokenizer.think_start_id == think
    assert think not in build_prompt(chat, [{"role": "user", "content": "Say <think> twice"}]).ids
