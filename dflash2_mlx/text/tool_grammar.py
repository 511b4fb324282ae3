"""Forced tool calls: a grammar for a model's own call format, such that mlx-lm's parser of that name reads the answer.

A call's arguments follow the tool's schema as far as llguidance has its keywords. A JSON string may spell out the
marker that ends a call: the answer parser knows that it is inside one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError
from .grammar import LEAD, Grammar, check_schema, json_rule, lark_grammar, llguidance_for
from .tool_values import Values

TokenId = Callable[[str], int | None]

_PARAM = "tool_choice"
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
# Keywords beside which `properties` does not say all that an object may hold.
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf")


@dataclass(frozen=True)
class Tool:
    """A function: its name and the schema of its arguments, an object."""

    name: str
    schema: Mapping[str, Any]


def tool_grammar(
    format_name: str | None,
    tools: Sequence[Mapping[str, Any]],
    choice: str | None = None,
    parallel: bool = True,
    *,
    token_id: TokenId,
) -> Grammar:
    """A grammar of one or more calls (one, unless `parallel`) and nothing else.

    `format_name` is the name of mlx-lm's parser, `tools` are OpenAI's function tools, `choice` is the one function to
    call, None for any. `token_id` finds the marker tokens of a vocabulary (`GrammarFactory.token_id`). Raises
    RequestError with param "tool_choice" for a format that has no grammar, or "tools" for a schema that cannot be
    enforced.
    """
    make = _FORMATS.get(format_name or "")
    if make is None:
        raise RequestError(
            f"tool_choice cannot be enforced for this model, whose tool calls are in the format {format_name!r} (those "
            f'that can: {", ".join(sorted(_FORMATS))}): use tool_choice "auto"',
            param=_PARAM,
        )
    llguidance_for(_PARAM)
    chosen = [_tool(tool) for tool in _chosen(tools, choice)]
    # A named function is called once, as OpenAI's own models do.
    return lark_grammar(make(chosen, parallel and choice is None, token_id), _PARAM)


def calls_or_json_grammar(
    format_name: str | None,
    tools: Sequence[Mapping[str, Any]],
    schema: Mapping[str, Any],
    parallel: bool = True,
    *,
    token_id: TokenId,
    param: str = "response_format",
) -> Grammar:
    """Either calls as in `tool_grammar`, or JSON that `schema` validates: what is asked for beside tools on offer.

    Raises RequestError that names `param` for a format that has no grammar, or what is wrong with a schema.
    """
    make = _FORMATS.get(format_name or "")
    if make is None:
        raise RequestError(
            f"{param} cannot be enforced beside tools for this model, whose calls are in the format {format_name!r}: "
            'leave out one of them, or set tool_choice to "none"',
            param=param,
        )
    llguidance_for(param)
    check_schema(schema, "the JSON schema", param)
    calls = make([_tool(tool) for tool in _chosen(tools, None)], parallel, token_id).replace("start:", "calls:", 1)
    answer = f"json_answer: {LEAD} json_value\njson_value: {json_rule(schema)}\n"
    return lark_grammar(f"start: calls | json_answer\n{answer}{calls}", param)


def _chosen(tools: Sequence[Mapping[str, Any]], choice: str | None) -> list[Mapping[str, Any]]:
    functions: list[Mapping[str, Any]] = [tool["function"] for tool in tools if tool.get("function")]
    found = [function for function in functions if choice in (None, function["name"])]
    if not found:
        what = "demands a call" if choice is None else f"names {choice!r}"
        names = ", ".join(repr(function["name"]) for function in functions) or "there are none"
        raise RequestError(f"tool_choice {what}, which no tool answers ({names}): give it in tools", param=_PARAM)
    return found[:1] if choice is not None else found


def _tool(function: Mapping[str, Any]) -> Tool:
    name, parameters = function["name"], function.get("parameters")
    if not re.fullmatch(r"[\w.-]+", name):
        raise RequestError(
            f"the tool name {name!r} has other characters than letters, digits, _, - and .", param="tools"
        )
    schema = _NO_ARGUMENTS if parameters is None else parameters
    check_schema(schema, f"the schema of the tool {name!r}", "tools", lenient=True)
    schema = {"type": "object", **schema}
    if "properties" in schema and not any(keyword in schema for keyword in _OPEN):
        # JSON schema would let the model invent arguments beside those that the tool has.
        schema["additionalProperties"] = False
    return Tool(name, schema)


def _json_tools(tools: Sequence[Tool], parallel: bool, token_id: TokenId) -> str:
    body = f'"\\n" object "\\n" {_marker("</tool_call>", token_id)}'
    call = f"call: {_marker('<tool_call>', token_id)} {body}\n"
    return f"start: {LEAD} {_repeated('call', parallel, _quote(chr(10)))}\n{call}{_objects(tools)}"


def _mistral(tools: Sequence[Tool], parallel: bool, token_id: TokenId) -> str:
    """`[TOOL_CALLS]f[ARGS]{...}` where the vocabulary has `[ARGS]`, else `[TOOL_CALLS] [{"name": ...}, ...]`."""
    start = _marker("[TOOL_CALLS]", token_id)
    if token_id("[ARGS]") is None:
        return f'start: {start} / ?/ "[" {_repeated("object", parallel, _quote(", "))} "]"\n{_objects(tools)}'
    if dotted := [tool.name for tool in tools if "." in tool.name]:
        raise RequestError(
            f"the tool name {dotted[0]!r} has a dot, which this model's format cannot carry", param="tools"
        )
    rules = [f"start: {_repeated('call', parallel, '')}", f"call: {start} ({_any_of(tools, 'named')})"]
    for i, tool in enumerate(tools):
        rules += [
            f"named_{i}: {_quote(tool.name)} {_marker('[ARGS]', token_id)} arguments_{i}",
            f"arguments_{i}: {json_rule(tool.schema, lenient=True)}",
        ]
    return "\n".join(rules) + "\n"


def _qwen3_coder(tools: Sequence[Tool], parallel: bool, token_id: TokenId) -> str:
    values = Values(ends=("</parameter>", "</tool_call>"))
    body = f'"\\n" ({_any_of(tools, "named")}) "\\n" {_marker("</tool_call>", token_id)}'
    rules = [
        f"start: {LEAD} {_repeated('call', parallel, _quote(chr(10)))}",
        f"call: {_marker('<tool_call>', token_id)} {body}",
    ]
    for i, tool in enumerate(tools):
        parts = [_quote(f"<function={tool.name}>\n")]
        required = frozenset(tool.schema.get("required", ()))
        for j, (name, schema) in enumerate(tool.schema.get("properties", {}).items()):
            if not re.fullmatch(r"[^\s<>]+", name):
                raise RequestError(
                    f"the parameter name {name!r} of {tool.name!r} does not fit its format", param="tools"
                )
            rules.append(
                f"p_{i}_{j}: {_quote(f'<parameter={name}>')} {values.rule(schema, tool.schema)} {_quote(chr(10))}"
            )
            parts.append(f"p_{i}_{j}" + ("" if name in required else "?"))
        rules.append(f"named_{i}: {' '.join(parts)} {_quote('</function>')}")
    return "\n".join([*rules, *values.terminals()]) + "\n"


_FORMATS: dict[str, Callable[[Sequence[Tool], bool, TokenId], str]] = {
    "json_tools": _json_tools,
    "mistral": _mistral,
    "qwen3_coder": _qwen3_coder,
}


def _objects(tools: Sequence[Tool]) -> str:
    """`object`: `{"name": "f", "arguments": {...}}`, spaced as chat templates write it.

    The schema is not put into a larger one: references in it start at its own root.
    """
    rules = [f"object: {_any_of(tools, 'named')}"]
    for i, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        rules += [
            f'named_{i}: {_quote(head)} arguments_{i} "}}"',
            f"arguments_{i}: {json_rule(tool.schema, lenient=True)}",
        ]
    return "\n".join(rules) + "\n"


def _any_of(tools: Sequence[Tool], rule: str) -> str:
    return " | ".join(f"{rule}_{i}" for i in range(len(tools)))


def _repeated(rule: str, parallel: bool, between: str) -> str:
    return f"{rule} ({between} {rule})*" if parallel else rule


def _marker(text: str, token_id: TokenId) -> str:
    """The one token of that name where there is one: models write no other, and llguidance takes it for no text."""
    token = token_id(text)
    return _quote(text) if token is None else f"<[{token}]>"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
