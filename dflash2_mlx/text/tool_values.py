"""Argument values between tags, as text: what a schema allows there, in rules of llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError
from .grammar import json_rule

_DEEPEST = 16  # references and alternatives inside one another
_MOST = 100_000  # alternatives that are looked at: those that refer to one another may be without end
_LARGEST = 4_000_000  # characters of rules: every value brings along the definitions that it may refer to


class Values:
    """Rules for `value</parameter>`, the value on lines of its own.

    A value that may be a string is plain text (its length and pattern are not enforced, an `enum` is), any other is
    JSON. `ends` are the tags that no value may contain: the first closes it, the others would cut the call short.
    """

    def __init__(self, ends: Sequence[str]) -> None:
        self._ends = ends
        self._left, self._room = _MOST, _LARGEST

    def rule(self, schema: Any, root: Mapping[str, Any]) -> str:
        """The value, its newlines and its closing tag. `root` is the schema that references start from.

        Raises RequestError where a reference leads nowhere, or where the schemas are too much.
        """
        found = self._rule(schema, root)
        self._room -= len(found)
        if self._room < 0:
            raise _too_much()
        return found

    def _rule(self, schema: Any, root: Mapping[str, Any]) -> str:
        schema = _resolved(schema, root)
        end = _quote("\n" + self._ends[0])
        choices = _choices(schema)
        if choices is not None:
            return f'"\\n" ({" | ".join(_quote(choice) for choice in choices)}) {end}'
        if self._may_be("string", schema, root, _DEEPEST):
            return '"\\n" ANYTHING' if self._may_be("null", schema, root, _DEEPEST) else '"\\n" TEXT'
        if schema.get("type") == "boolean":
            # Templates that show an argument as Python's text taught the capitals; the parser takes both.
            return f'"\\n" ("true" | "false" | "True" | "False") {end}'
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return f'"\\n" {json_rule({**definitions, **schema}, lenient=True)} {end}'

    def _may_be(self, kind: str, schema: Any, root: Mapping[str, Any], depth: int) -> bool:
        """Whether a schema allows some value of that type; true where it does not say."""
        self._left -= 1
        if self._left < 0:
            raise _too_much()
        schema = _resolved(schema, root)
        kinds = schema.get("type")
        if kinds is not None:
            return kind in ([kinds] if isinstance(kinds, str) else kinds)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and depth:
                return any(self._may_be(kind, branch, root, depth - 1) for branch in schema[keyword])
        return True

    def terminals(self) -> list[str]:
        """What the rules stand on. The parser takes the text null for no value: where there must be one, it is none."""
        ends = "|".join(re.escape(end).replace("/", r"\/") for end in self._ends)
        inner = rf"/(?s:.*)/ & ~/(?s:.*)({ends})(?s:.*)/"
        return [
            f"INNER: {inner}",
            rf"VALUE: {inner} & ~/(?i:null)\n?/",
            f"ANYTHING: INNER {_quote(self._ends[0])}",
            f"TEXT: VALUE {_quote(self._ends[0])}",
        ]


def _choices(schema: Mapping[str, Any]) -> list[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not values:
        return None
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _too_much() -> RequestError:
    return RequestError("the schemas of the tools are too intricate to be enforced: simplify them", param="tools")


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a chain of local references ends at; `allOf` of one, as pydantic writes it, is that one."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        parts = schema.get("allOf", ())
        if "$ref" in schema:
            schema = _at(root, schema["$ref"])
        elif len(parts) == 1 and "type" not in schema:
            schema = parts[0]
        else:
            return schema
    raise RequestError("the references of a tool's schema go round in a circle", param="tools")


def _at(root: Any, reference: str) -> Any:
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            raise RequestError(f"a tool's schema refers to {reference!r}, which it does not have", param="tools")
        found = found[key]
    return found


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
