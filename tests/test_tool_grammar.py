"""Forced tool calls: what mlx-lm's own parsers read out of any answer is a call that the tools allow."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import jsonschema_rs
import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.grammar import GrammarFactory
from dflash2_mlx.text.tool_grammar import tool_grammar
from tests.chat_doubles import make_tokenizer
from tests.constrained import allowed, single, speller

FORMATS = ("json_tools", "mistral", "qwen3_coder")
ALL_MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
END = make_tokenizer().eos_token_id

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "colour": {"$ref": "#/$defs/Colour"},
        "near": {
            "type": "object",
            "properties": {"x": {"type": "number", "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "colours": {"type": "array", "items": {"$ref": "#/$defs/Colour"}, "maxItems": 2},
        "raw": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "$defs": {"Colour": {"enum": ["red", "<blue>"]}},
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name, "description": "x"}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


TOOLS = [
    tool("get_weather", WEATHER),
    tool("get"),
    tool(
        "get_file",
        {"type": "object", "properties": {"path": {"type": "string", "format": "path"}}, "required": ["path"]},
    ),
]


@cache
def factory(markers: tuple[str, ...]) -> GrammarFactory:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(markers), special_tokens=True)
    return GrammarFactory(tokenizer)


def tokens_of(text: str, markers: tuple[str, ...] = ()) -> list[int]:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(markers), special_tokens=True)
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


def make(name: str | None, markers: tuple[str, ...] = (), tools: Any = TOOLS, **options: Any) -> Any:
    grammar = tool_grammar(name, tools, token_id=factory(markers).token_id, **options)
    return factory(markers).constraint(grammar, vocab_size=300)


def takes(constraint: Any, text: str, markers: tuple[str, ...] = ()) -> bool:
    tokens = [*tokens_of(text, markers), END]
    return all(token in allowed(row) for token, row in zip(tokens, constraint.masks(tokens), strict=False))


def parse(name: str, text: str, tools: Any = TOOLS) -> list[dict[str, Any]]:
    """What mlx-lm reads in the text between its markers."""
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    head, *parts = text.split(parser.tool_call_start, 1 if name == "mistral" else -1)
    assert not head.strip()
    inner = [part.split(parser.tool_call_end)[0] if parser.tool_call_end else part for part in parts]
    found = [parser.parse_tool_call(part, tools) for part in inner]
    return [call for calls in found for call in (calls if isinstance(calls, list) else [calls])]


def answers(name: str, markers: tuple[str, ...], **options: Any) -> list[str]:
    ending = [*tokens_of('"}]<\n,', markers), *(tokens_of(marker, markers)[0] for marker in markers), END]
    phrases = [tokens_of("\n</parameter>\n"), tokens_of("null\n</parameter>")]
    if name == "qwen3_coder":  # a JSON string may spell the marker out
        phrases.append(tokens_of("</tool_call>"))
    found = []
    for seed in range(6):
        tokens = single(make(name, markers, **options), speller(seed, ending, phrases), [END])
        found.append(make_tokenizer_of(markers).decode(tokens[:-1]))
    return found


@cache
def make_tokenizer_of(markers: tuple[str, ...]) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(markers), special_tokens=True)
    return tokenizer


@pytest.mark.parametrize("markers", [(), ALL_MARKERS], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FORMATS)
def test_any_answer_is_calls_that_the_tools_allow(name: str, markers: tuple[str, ...]) -> None:
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in TOOLS}
    numbers = set()
    for answer in answers(name, markers):
        calls = parse(name, answer)
        numbers.add(len(calls))
        for call in calls:
            jsonschema_rs.validator_for(schemas[call["name"]]).validate(call["arguments"])
            assert set(call["arguments"]) <= set(schemas[call["name"]].get("properties", ()))
    assert len(numbers) > 1
    assert 0 not in numbers


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_where_they_may_not_be_parallel_or_one_function_is_named(name: str) -> None:
    assert {len(parse(name, answer)) for answer in answers(name, ALL_MARKERS, parallel=False)} == {1}
    calls = [parse(name, answer) for answer in answers(name, ALL_MARKERS, choice="get_weather")]
    assert [[call["name"] for call in found] for found in calls] == [["get_weather"]] * 6


CALLS = {
    "json_tools": '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>',
    "mistral": "[TOOL_CALLS]get[ARGS]{}",
    "qwen3_coder": "<tool_call>\n<function=get>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_as_templates_write_it_after_reasoning(name: str) -> None:
    call = CALLS[name]
    lead, between = ("", "") if name == "mistral" else ("\n\n", "\n")
    assert takes(make(name, ALL_MARKERS), lead + call, ALL_MARKERS)
    assert takes(make(name, ALL_MARKERS), call + between + call, ALL_MARKERS)
    assert not takes(make(name, ALL_MARKERS, parallel=False), call + between + call, ALL_MARKERS)
    assert not takes(make(name, ALL_MARKERS), "Sure. " + call, ALL_MARKERS)
    assert not takes(make(name, ALL_MARKERS, choice="get_file"), call, ALL_MARKERS)


def test_markers_that_are_tokens_stand_as_these_and_never_spelled_out() -> None:
    (row,) = make("json_tools", ALL_MARKERS).masks([])
    assert tokens_of("<tool_call>", ALL_MARKERS)[0] in allowed(row)
    assert tokens_of("<")[0] not in allowed(row)
    (row,) = make("json_tools").masks([])
    assert tokens_of("<")[0] in allowed(row)


def test_mistrals_older_form_is_a_list() -> None:
    older = '[TOOL_CALLS] [{"name": "get", "arguments": {}}, {"name": "get", "arguments": {}}]'
    markers = ("[TOOL_CALLS]",)
    assert takes(make("mistral", markers), older, markers)
    assert [call["name"] for call in parse("mistral", older)] == ["get", "get"]
    assert {len(parse("mistral", answer)) for answer in answers("mistral", markers, parallel=False)} == {1}


def value(schema: Any, text: str, *, root: dict[str, Any] | None = None) -> bool:
    """Whether `text` may be a parameter of that schema between qwen3_coder's tags."""
    tools = [tool("f", {"type": "object", "properties": {"p": schema}, "required": ["p"], **(root or {})})]
    call = f"<tool_call>\n<function=f>\n<parameter=p>\n{text}\n</parameter>\n</function>\n</tool_call>"
    return takes(make("qwen3_coder", tools=tools), call)


STRING, OPTIONAL = {"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}
NODE = {"$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}, "S": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (STRING, ["", "two\nlines\n", "<b>&\"</b>", "null and void", '{"a": 1}'], ["null", "NULL", "</tool_call>"]),
        (OPTIONAL, ["null", "text"], ["a</parameter>b"]),
        ({}, ["null", "text", "1"], []),
        ({"type": "string", "enum": ["a b", "c"]}, ["a b", "c"], ["a", '"c"']),
        ({"enum": [1, None, "x"]}, ["1", "null", "x"], ["2", "None"]),
        ({"const": {"a": 1}}, ['{"a": 1}'], ["{}"]),
        ({"type": "boolean"}, ["true", "False"], ["1", "yes"]),
        ({"type": "integer"}, ["-12"], ["1.5", '"1"', ""]),
        ({"type": ["number", "null"]}, ["1.5", "null"], ["x"]),
        ({"type": "array", "items": STRING}, ['["a", "b"]', "[]"], ["a, b", "[1]"]),
        ({"$ref": "#/$defs/N"}, ['{"n": {"n": {}}}'], ['{"n": 1}', "x"]),
        ({"allOf": [{"$ref": "#/$defs/S"}], "description": "x"}, ["text"], ["null"]),
        ({"anyOf": [{"$ref": "#/$defs/N"}, {"type": "integer"}]}, ["{}", "3"], ["text"]),
    ],
)  # fmt: skip
def test_values_between_tags(schema: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not value(schema, text, root=NODE)] == []
    assert [text for text in bad if value(schema, text, root=NODE)] == []


def test_parameters_come_in_order_and_the_required_ones_must() -> None:
    tools = [tool("f", {"type": "object", "properties": dict.fromkeys("abc", STRING), "required": ["a", "c"]})]

    def call(*names: str) -> str:
        inner = "".join(f"<parameter={name}>\nx\n</parameter>\n" for name in names)
        return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"

    found = [
        names
        for names in ("abc", "ac", "ab", "cab", "acc", "")
        if takes(make("qwen3_coder", tools=tools), call(*names))
    ]
    assert found == ["abc", "ac"]


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        (None, "{}", '{"a": 1}'),
        ({"type": "object", "properties": {}}, "{}", '{"a": 1}'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', '{"b": 1}'),
        ({"properties": {"a": {"type": "integer"}}, "additionalProperties": True}, '{"b": 1}', '{"a": "x"}'),
        ({}, '{"a": 1}', "[]"),
        ({"type": "object"}, '{"a": 1}', "1"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "required": ["a"]}}}, '{"a": 1}', "{}"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, '{"a": [1, 1]}', '{"a": 1}'),
    ],
)
def test_arguments_by_schema(parameters: Any, good: str, bad: str) -> None:
    found = [
        takes(
            make("json_tools", tools=[tool("f", parameters)]),
            f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        )
        for arguments in (good, bad)
    ]
    assert found == [True, False]


@pytest.mark.parametrize("name", ["glm47", "pythonic", "harmony", None])
def test_a_format_without_a_grammar_is_refused_by_name(name: str | None) -> None:
    with pytest.raises(
        RequestError, match=rf'{name!r}.*json_tools, mistral, qwen3_coder.*tool_choice "auto"'
    ) as caught:
        make(name)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        (TOOLS, "gone", r"names 'gone'.*'get_weather', 'get', 'get_file'"),
        ([], None, "demands a call.*there are none"),
    ],
)
def test_a_choice_that_no_tool_answers(tools: Any, choice: str | None, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        make("json_tools", tools=tools, choice=choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        ("json_tools", tool("f", {"type": "objekt"}), "tool 'f' cannot be enforced: .*objekt"),
        ("json_tools", tool("f", [1]), "must be an object"),
        ("json_tools", tool("f g"), "'f g' has other characters"),
        ("mistral", tool("f.g"), "has a dot"),
        ("qwen3_coder", tool("f", {"properties": {"a b": STRING}}), "'a b'"),
        ("qwen3_coder", tool("f", {"properties": {"a": {"$ref": "#/$defs/gone"}}}), "gone"),
    ],
)
def test_tools_that_cannot_be_enforced(name: str, broken: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        make(name, ALL_MARKERS, tools=[broken])
    assert caught.value.param == "tools"


def test_references_in_a_circle() -> None:
    defs = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    with pytest.raises(RequestError):
        make("qwen3_coder", tools=[tool("f", {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": defs})])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'dflash2-mlx\[grammar\]'") as caught:
        make("json_tools")
    assert caught.value.param == "tool_choice"
