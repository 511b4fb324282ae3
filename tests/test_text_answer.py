"""An answer's text to reasoning, content and calls: every format, and every way to chunk it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from dflash2_mlx.text.answer import answer_parser
from dflash2_mlx.text.parts import Call, Content, Part, Reasoning, merged
from dflash2_mlx.text.tools import ToolFormat, tool_format
from tests.text_doubles import HARMONY, TOOLLESS, make_tokenizer, tool

WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"}, metric={"type": "boolean"})
TOOLS = [WEATHER, tool("noop")]
ROME = Call("get_weather", {"city": "Rome", "days": 3, "metric": True})

# A template that only shows the tools, so that the parser of that name is taken.
SHOWS_TOOLS = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
FORMATS = {
    "json_tools": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": "3", "metric": "True"}}\n'
        "</tool_call>"
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=metric>\nTrue\n</parameter>\n</function>\n</tool_call>"
    ),
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": "3", "metric": true}',
    "pythonic": '<|tool_call_start|>[get_weather(city="Rome", days=3, metric=True)]<|tool_call_end|>',
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3,metric:true}<tool_call|>',
    "glm47": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n<arg_key>metric</arg_key>\n<arg_value>true</arg_value>\n</tool_call>"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="metric">true</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
}
TOKENIZERS = {name: make_tokenizer(SHOWS_TOOLS, name) for name in FORMATS}
CALLS_OF: dict[Any, ToolFormat] = {}
EVERY = pytest.mark.parametrize("name", FORMATS)
JSON = TOKENIZERS["json_tools"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parsed(
    tokenizer: Any, chunks: Sequence[str], *, prompt: str = "", tools: Sequence[Any] = TOOLS, **options: Any
) -> list[Part]:
    if tokenizer not in CALLS_OF:
        CALLS_OF[tokenizer] = tool_format(tokenizer)
    parser = answer_parser(tokenizer, prompt, tools=tools, calls=CALLS_OF[tokenizer], **options)
    found = [part for chunk in chunks for part in parser.feed(chunk)]
    return merged([*found, *parser.finish()])


def texts(parts: Sequence[Part], kind: type = Content) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind) and not isinstance(part, Call))


# --- calls ------------------------------------------------------------------------------------------------


@EVERY
def test_a_call_with_thinking_and_content_before_it(name: str) -> None:
    text = f"<think>\nI must look.\n</think>\n\nLet me look.\n\n{FORMATS[name]}"
    expected = [Reasoning("I must look."), Content("Let me look."), ROME]
    assert parsed(TOKENIZERS[name], [text]) == expected
    assert parsed(TOKENIZERS[name], list(text)) == expected


@EVERY
def test_calls_in_a_row_have_nothing_between_them(name: str) -> None:
    text = f"\n{FORMATS[name]}\n \n{FORMATS[name]}\n"
    assert parsed(TOKENIZERS[name], [text]) == [ROME, ROME]


@EVERY
def test_without_tools_a_call_is_content(name: str) -> None:
    text = f" Look:\n{FORMATS[name]}\n"
    assert parsed(TOKENIZERS[name], list(text), tools=()) == [Content(text)]


@EVERY
def test_a_call_of_an_unknown_tool_is_content_with_its_markers(name: str) -> None:
    text = f"Look:\n{FORMATS[name]}\n"
    assert parsed(TOKENIZERS[name], list(text), tools=[tool("other")]) == [Content(text)]


@EVERY
def test_a_call_that_is_cut_short_is_content(name: str) -> None:
    whole = FORMATS[name]
    for end in range(1, len(whole)):
        found = parsed(TOKENIZERS[name], [whole[:end]])
        assert found in ([Content(whole[:end])], [ROME]), "nothing is made up, nothing is lost"
    end_marker = TOKENIZERS[name].tool_call_end
    assert not end_marker or parsed(TOKENIZERS[name], [whole.removesuffix(end_marker)[:-2]]) != [ROME]


@pytest.mark.parametrize("name", ["json_tools", "qwen3_coder", "pythonic", "gemma4"])
def test_a_whole_call_needs_no_end_marker(name: str) -> None:
    text = FORMATS[name].removesuffix(TOKENIZERS[name].tool_call_end)
    assert parsed(TOKENIZERS[name], list(text)) == [ROME]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no JSON",
        "[]",
        "null",
        '"get_weather"',
        '{"name": "get_weather", "arguments": [1]}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '[{"name": "get_weather", "arguments": {}}, {"name": "unknown", "arguments": {}}]',
        "[" * 3000,
    ],
)
def test_what_is_no_call_is_content(body: str) -> None:
    text = f"a\n\n{OPEN}{body}{CLOSE}\n\nb\n"
    assert parsed(JSON, [text]) == [Content(text)]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "noop"}', {}),
        ('{"name": "noop", "arguments": null}', {}),
        ('{"name": "noop", "arguments": ""}', {}),
        ('{"name": "noop", "arguments": "{\\"city\\": 7}"}', {"city": "7"}),
        ('{"name": "noop", "parameters": {"city": "x"}}', {"city": "x"}),
    ],
)
def test_shapes_of_arguments(body: str, arguments: dict[str, Any]) -> None:
    assert parsed(JSON, [f"{OPEN}{body}{CLOSE}"]) == [Call("noop", arguments)]


def test_a_parser_may_give_several_calls() -> None:
    text = '<|tool_call_start|>[get_weather(city="Rome"), noop()]<|tool_call_end|>'
    assert parsed(TOKENIZERS["pythonic"], [text]) == [Call("get_weather", {"city": "Rome"}), Call("noop", {})]


def test_mistral_calls_follow_one_another_without_ends() -> None:
    text = "Look:\n" + FORMATS["mistral"] + "[TOOL_CALLS]noop[ARGS]{}"
    assert parsed(TOKENIZERS["mistral"], list(text)) == [Content("Look:"), ROME, Call("noop", {})]


def test_an_end_marker_inside_a_json_text_ends_nothing() -> None:
    text = f'{OPEN}{{"name": "noop", "arguments": {{"city": "a {CLOSE} b"}}}}{CLOSE}'
    for chunks in ([text], list(text)):
        assert parsed(JSON, chunks) == [Call("noop", {"city": f"a {CLOSE} b"})]
    both = f'{OPEN}[{{"name": "noop", "arguments": {{"city": "{CLOSE * 3}"}}}}, {{"name": "noop"}}]{CLOSE}'
    for chunks in ([both], list(both)):
        assert parsed(JSON, chunks) == [Call("noop", {"city": CLOSE * 3}), Call("noop", {})]
    cut = f'{OPEN}{{"name": "noop{CLOSE} and more'
    assert parsed(JSON, list(cut)) == [Content(cut)]


def test_values_of_tagged_formats_are_not_guessed_at() -> None:
    """mlx-lm's parsers would evaluate these as Python or JSON: quotes, zeros and spaces would be lost."""
    kinds: tuple[dict[str, Any], ...] = (
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "string"},
        {},
    )
    for value in ('"quoted"', "007", "1_000", '{"a":  1}', "0x10", "[1,2]", "  indented"):
        for kind in kinds:
            text = f"{OPEN}\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n{CLOSE}"
            assert parsed(TOKENIZERS["qwen3_coder"], [text], tools=[tool("f", x=kind)]) == [Call("f", {"x": value})]
            text = f"{OPEN}f<arg_key>x</arg_key><arg_value>{value.strip()}</arg_value>{CLOSE}"
            found = parsed(TOKENIZERS["glm47"], [text], tools=[tool("f", x=kind)])
            assert found == [Call("f", {"x": value.strip()})]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '[{"a": -1e999}]'])
def test_a_number_that_json_has_no_word_for_makes_no_call(value: str) -> None:
    text = f'{OPEN}{{"name": "noop", "arguments": {{"city": "x", "x": {value}}}}}{CLOSE}'
    assert parsed(JSON, [text]) == [Content(text)]
    text = f'{BARE}{{"x": {value}}}'
    assert parsed(GPT, [text], prompt=ASSISTANT) == [Content(text)]


def test_nor_does_one_that_a_text_turns_out_to_hold() -> None:
    body = '{"name": "f", "arguments": {"x": "[NaN]"}}'
    text = f"{OPEN}{body}{CLOSE}"
    assert parsed(JSON, [text], tools=[tool("f", x={"type": "array"})]) == [Content(text)]
    assert parsed(JSON, [text], tools=[tool("f", x={"type": "string"})]) == [Call("f", {"x": "[NaN]"})]


@pytest.mark.parametrize(
    ("said", "expected"),
    [("\\ud83d", "\ufffd"), ("a\\ude00b", "a\ufffdb"), ("\\ud83d\\ude00", "😀"), ("\\ufdd0 ä", "\ufdd0 ä")],
)
def test_half_a_character_is_replaced(said: str, expected: str) -> None:
    text = f'{OPEN}{{"name": "noop", "arguments": {{"{said}": ["{said}"]}}}}{CLOSE}'
    assert parsed(JSON, [text]) == [Call("noop", {expected: [expected]})]


def test_what_only_python_can_write_makes_no_call() -> None:
    text = '<|tool_call_start|>[noop(city={"a", "b"})]<|tool_call_end|>'
    found = parsed(TOKENIZERS["pythonic"], [text])
    assert found == [Content(text)] or isinstance(found[0], Call)
    json.dumps([part.arguments for part in found if isinstance(part, Call)])


# --- reasoning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", "Hello\n", [Content("Hello\n")]),
        ("", "\n Hello \n\n", [Content("\n Hello \n\n")]),
        ("", "\n\n", [Content("\n\n")]),
        ("", "", []),
        ("", "a <think> b", [Content("a <think> b")]),
        ("", "\n<think>\na\n\nb\n</think>\n\n  c\n", [Reasoning("a\n\nb"), Content("  c\n")]),
        ("", "<think>\n\n</think>\n\nc", [Content("c")]),
        ("<think>\n", "a</think>b", [Reasoning("a"), Content("b")]),
        ("<think>\n", "cut by the limit", [Reasoning("cut by the limit")]),
        ("<think>\n", "a\n</think>\n\n", [Reasoning("a")]),
        ("<think>\n\n</think>\n\n", "b", [Content("b")]),
        ("<think>\n", f"a {OPEN}b{CLOSE} c</think>d", [Reasoning(f"a {OPEN}b{CLOSE} c"), Content("d")]),
        ("", "<thin", [Content("<thin")]),
        ("", f"{OPEN[:-1]}", [Content(OPEN[:-1])]),
    ],
)
def test_reasoning_and_content(prompt: str, text: str, expected: list[Part]) -> None:
    for tools in (TOOLS, ()):
        assert parsed(JSON, [text], prompt=prompt, tools=tools) == expected
        assert parsed(JSON, list(text), prompt=prompt, tools=tools) == expected


def test_content_goes_on_after_a_call_as_it_was_written() -> None:
    call = f'{OPEN}{{"name": "noop", "arguments": {{}}}}{CLOSE}'
    for text in (f"a\n{call}\n\nb\n", f"a{call}\n\nb\n"):
        assert parsed(JSON, list(text)) == [Content("a"), Call("noop", {}), Content("\n\nb\n")]
    assert parsed(JSON, list(f"{call}\n\nb")) == [Call("noop", {}), Content("b")]


def test_a_response_format_of_mlx_lm() -> None:
    tokenizer = make_tokenizer(SHOWS_TOOLS, "muse_spark", response_format=RESPONSE_FORMAT)
    call = '<atem:function_calls><atem:invoke name="noop"><atem:parameter name="city">x</atem:parameter></atem:invoke>'
    text = (
        "to=self<|message|>I must look.<|eom|><|start|>assistant to=user<|message|>Let me.<|eom|>"
        f"<|start|>assistant to=noop<|message|>{call}</atem:function_calls>"
    )
    expected = [Reasoning("I must look."), Content("Let me."), Call("noop", {"city": "x"})]
    assert parsed(tokenizer, [text]) == expected
    assert parsed(tokenizer, list(text)) == expected


def test_a_model_without_a_parser_calls_in_json() -> None:
    text = f'{OPEN}{{"name": "noop", "arguments": {{}}}}{CLOSE}'
    assert parsed(make_tokenizer(TOOLLESS), [text]) == [Call("noop", {})]


# --- harmony ----------------------------------------------------------------------------------------------

GPT = make_tokenizer(HARMONY)
ASSISTANT = "<|start|>assistant"
CALLS = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome", "days": "3"}'
BARE = "<|channel|>commentary to=functions.noop <|constrain|>json<|message|>"
CALLED = Call("get_weather", {"city": "Rome", "days": 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Hello", [Content("Hello")]),
        ("<|channel|>final<|message|>Hello<|return|>", [Content("Hello")]),
        (
            f"<|channel|>analysis<|message|>Hm.<|end|>{ASSISTANT}<|channel|>final<|message|>Yes.\n\nNo.",
            [Reasoning("Hm."), Content("Yes.\n\nNo.")],
        ),
        (f"<|channel|>analysis<|message|>Hm.<|end|>{ASSISTANT}{CALLS}<|call|>", [Reasoning("Hm."), CALLED]),
        (CALLS, [CALLED]),
        (' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Rome"}', [
            Call("get_weather", {"city": "Rome"})
        ]),
        (f"<|channel|>commentary<|message|>Let me look.<|end|>{ASSISTANT}{CALLS}", [Content("Let me look."), CALLED]),
        (f"{CALLS}<|call|>{ASSISTANT}{CALLS}<|call|>", [CALLED, CALLED]),
        ("<|channel|>analysis<|message|>cut by the", [Reasoning("cut by the")]),
        ("<|channel|>ana", []),
        ("\n<|channel|>analysis<|message|>Hm.", [Reasoning("Hm.")]),
        (CALLS[:-4], [Content(CALLS[:-4])]),
        (f"{BARE}{{}}", [Call("noop", {})]),
        (f"{BARE}<|call|>", [Call("noop", {})]),
        (BARE, [Content(BARE)]),
        (f"{BARE} \n", [Content(f"{BARE} \n")]),
        (f"{BARE}<|end|>", [Content(f"{BARE}<|end|>")]),
        ("<|channel|>final<|message|>a<|end|>\n b \n<|start|>assistant<|channel|>final<|message|>c", [
            Content("a\n b\n\nc")
        ]),
        ("<|channel|>final<|message|>a<|end|>\n", [Content("a")]),
        (CALLS.replace("get_weather", "other"), [Content(CALLS.replace("get_weather", "other"))]),
        ("no channel at all", [Content("no channel at all")]),
        ('{"a": "to=b"}', [Content('{"a": "to=b"}')]),
        ("to=be or not", [Content("to=be or not")]),
        (
            f"<|channel|>analysis<|message|>a<|end|>{ASSISTANT}<|channel|>analysis<|message|>b<|end|>",
            [Reasoning("a\n\nb")],
        ),
    ],
)  # fmt: skip
def test_harmony(text: str, expected: list[Part]) -> None:
    assert parsed(GPT, [text], prompt=ASSISTANT) == expected
    assert parsed(GPT, list(text), prompt=f"<|start|>user<|message|>hi<|end|>{ASSISTANT}") == expected


def test_harmony_goes_on_from_an_open_message() -> None:
    prompt = f"<|start|>user<|message|>hi<|end|>{ASSISTANT}<|channel|>"
    assert parsed(GPT, ["final<|message|>b"], prompt=prompt) == [Content("b")]
    assert parsed(GPT, ["b<|return|>"], prompt=f"{prompt}final<|message|>") == [Content("b")]
    assert parsed(GPT, ["b"], prompt=f"{prompt}analysis<|message|>") == [Reasoning("b")]


def test_harmony_without_tools_shows_what_was_called() -> None:
    assert parsed(GPT, [CALLS], prompt=ASSISTANT, tools=()) == [Content(CALLS)]


# --- any chunking -----------------------------------------------------------------------------------------

_PIECES = ("<think>", "</think>", "\n", "\n\n", " ", "text", "<", "ä€😀", '{"a": 1}', "<tool_call>", "</tool_call>")


@st.composite
def _answers(draw: st.DrawFn, pieces: tuple[str, ...]) -> tuple[list[str], str]:
    text = "".join(draw(st.lists(st.sampled_from(pieces), max_size=8)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    edges = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)], draw(st.sampled_from(["", "<think>\n"]))


@EVERY
def test_any_chunking_gives_what_the_whole_text_gives(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    markers = (tokenizer.tool_call_start, tokenizer.tool_call_end or "x")

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(_answers((*_PIECES, *markers, FORMATS[name], FORMATS[name][:-7], '{"name": "noop", "arguments": {"a": "')))
    @example((list(FORMATS[name]), ""))
    def check(answer: tuple[list[str], str]) -> None:
        chunks, prompt = answer
        text = "".join(chunks)
        whole = parsed(tokenizer, [text], prompt=prompt)
        assert parsed(tokenizer, chunks, prompt=prompt) == whole
        if all(isinstance(part, Content) for part in whole) and "<think>" not in prompt + text:
            assert texts(whole) == text

    check()


def test_any_chunking_of_harmony() -> None:
    pieces = ("<|channel|>", "analysis", "final", "commentary", "<|message|>", "<|end|>", "<|start|>", "assistant")

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(
        _answers((*pieces, " to=functions.get_weather", '{"city": "Rome"}', "text", "\n", " ", CALLS, "<|call|>", "<|"))
    )
    @example((["<|message|>a<|end|>", "\n", "b", " ", "c", "\n"], ""))
    def check(answer: tuple[list[str], str]) -> None:
        chunks, _ = answer
        assert parsed(GPT, chunks, prompt=ASSISTANT) == parsed(GPT, ["".join(chunks)], prompt=ASSISTANT)

    check()


def test_plain_text_streams_at_once() -> None:
    parser = answer_parser(JSON, "", tools=())
    assert [merged(parser.feed(chunk)) for chunk in ("a ", "b\n")] == [[Content("a ")], [Content("b\n")]]
    assert parser.finish() == []
