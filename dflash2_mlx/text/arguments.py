"""A call's arguments by the types that the tool's JSON schema asks for: "30" becomes 30 where an integer is wanted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_INTEGER = re.compile(r"[+-]?\d{1,400}(\.0+)?")
_DEEPEST = 32  # references inside one another, and levels of values
# Schemas that are looked at for one call. Alternatives that refer to one another have no end that could be waited for.
_MOST = 10_000
_LISTS = ("enum", "anyOf", "oneOf", "allOf", "type")  # what is long counts as much as what is many
_MISSING = object()


def coerce(arguments: Any, schema: Any) -> Any:
    """`arguments` with values that are of the wrong type, but say one of the right type, turned into it.

    Follows properties, items, local references, anyOf, oneOf and allOf. What it cannot make fit stays as it is, and
    so does what is left when it has looked at some thousands of schemas; it never raises.
    """
    return _Coercion(schema).coerced(arguments, schema, _DEEPEST)


def arguments_of(said: Any) -> dict[str, Any] | None:
    """The object that a parsed call gives as its arguments, as JSON text or not at all; None where it is none."""
    if isinstance(said, str):
        said = _from_json(said, dict) if said.strip() else {}
    if said is None:
        return {}
    return dict(said) if isinstance(said, Mapping) else None


def as_texts(tool: Mapping[str, Any], *, every: bool) -> dict[str, Any]:
    """A tool for a parser of a tagged format, which would guess at values: it hands them on as they were written.

    That is, each argument is said to be a string, or with `every` false each that may be one; `coerce` knows better.
    """
    function = tool.get("function", tool)
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    may_be_text = _TextTest(schema)
    kinds = {
        name: {"type": "string" if every or may_be_text(inner) else "number"}
        for name, inner in (properties if isinstance(properties, Mapping) else {}).items()
    }
    return {"type": "function", "function": {**function, "parameters": {"type": "object", "properties": kinds}}}


class _Schemas:
    """The schemas within `root`, of which no more than `_MOST` are looked at."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST
        self._found: dict[str, Any] = {}

    def resolved(self, schema: Any) -> Any:
        """The schema that a chain of local references ends at; None where it leads nowhere."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                return schema
            reference = schema["$ref"]
            if reference not in self._found:
                self._found[reference] = _at(self._root, reference)
            schema = self._found[reference]
        return None

    def has_room(self, schema: Mapping[str, Any], value: Any = None) -> bool:
        """Whether a schema may still be looked at, for this value; long texts are converted at a cost."""
        self._left -= 1 + sum(len(_list(schema.get(key))) for key in _LISTS)
        self._left -= len(value) // 1000 if isinstance(value, str) else 0
        return self._left >= 0


class _TextTest(_Schemas):
    """Whether a schema allows some text; true where it does not say."""

    def __call__(self, schema: Any, depth: int = _DEEPEST) -> bool:
        schema = self.resolved(schema)
        if not isinstance(schema, Mapping) or depth == 0 or not self.has_room(schema):
            return True
        if choices := _choices(schema):
            return any(isinstance(choice, str) for choice in choices)
        if types := _types(schema):
            return "string" in types
        branches = [branch for key in ("anyOf", "oneOf") for branch in _list(schema.get(key))]
        return not branches or any(self(branch, depth - 1) for branch in branches)


class _Coercion(_Schemas):
    """One call of `coerce`."""

    def coerced(self, value: Any, schema: Any, depth: int) -> Any:
        schema = self.resolved(schema)
        if depth == 0 or not isinstance(schema, Mapping) or not self.has_room(schema, value):
            return value
        choices = _choices(schema)
        if choices:
            return _one_of(value, choices)
        branches = [self.resolved(branch) for key in ("anyOf", "oneOf") for branch in _list(schema.get(key))]
        if branches and "type" not in schema:
            return self._by_branch(value, branches, depth)
        for part in _list(schema.get("allOf")):
            value = self.coerced(value, part, depth - 1)
        types = _types(schema)
        if types:
            value = _typed(value, types)
        return self._inside(value, schema, depth)

    def _by_branch(self, value: Any, branches: list[Any], depth: int) -> Any:
        """The value by the first branch that it fits, else by the first one that it can be made to fit."""
        types = list(dict.fromkeys(kind for branch in branches for kind in _types(branch)))
        value = _typed(value, types) if types else value
        for branch in branches:
            found = self.coerced(value, branch, depth - 1)
            if _accepts(branch, found):
                return found
        return value

    def _inside(self, value: Any, schema: Mapping[str, Any], depth: int) -> Any:
        """The members of an object or an array, each by its own schema."""
        if isinstance(value, Mapping):
            properties = schema.get("properties")
            known = properties if isinstance(properties, Mapping) else {}
            other = schema.get("additionalProperties")
            return {key: self.coerced(item, known.get(key, other), depth - 1) for key, item in value.items()}
        if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            return [self.coerced(item, schema["items"], depth - 1) for item in value]
        return value


def _accepts(branch: Any, value: Any) -> bool:
    if not isinstance(branch, Mapping):
        return False
    choices = _choices(branch)
    if choices:
        return value in choices
    types = _types(branch)
    if types and not any(_is(value, kind) for kind in types):
        return False
    required = (key for key in _list(branch.get("required")) if isinstance(key, str))
    return not isinstance(value, Mapping) or all(key in value for key in required)


def _typed(value: Any, types: list[str]) -> Any:
    """`value` as one of the types. The text null is no value where none is allowed, even beside texts."""
    if isinstance(value, str) and value.strip() == "null" and "null" in types:
        return None
    if any(_is(value, kind) for kind in types):
        # JSON has one kind of number: 30.0 is an integer
        whole = isinstance(value, float) and "number" not in types
        return int(value) if whole else value
    for kind, convert in _CONVERSIONS.items():
        if kind in types and (found := convert(value)) is not _MISSING:
            return found
    return value


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return _is_number(value) and math.isfinite(value) and value == int(value)
    test = {
        "string": lambda: isinstance(value, str),
        "number": lambda: _is_number(value),
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
        "object": lambda: isinstance(value, Mapping),
        "array": lambda: isinstance(value, list),
    }.get(kind)
    return test is not None and test()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_boolean(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.strip().lower(), _MISSING) if isinstance(value, str) else _MISSING


def _to_integer(value: Any) -> Any:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    return _MISSING


def _to_number(value: Any) -> Any:
    if (whole := _to_integer(value)) is not _MISSING:
        return whole
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return _MISSING
    return number if math.isfinite(number) else _MISSING


def _to_null(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip() in ("null", "None") else _MISSING


def _from_json(value: Any, wanted: type) -> Any:
    if not isinstance(value, str):
        return _MISSING
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return _MISSING
    return found if isinstance(found, wanted) else _MISSING


def _to_text(value: Any) -> Any:
    """A number, a switch or a structure as JSON; no text stands for null."""
    if value is None:
        return _MISSING
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return _MISSING


# In this order where a schema allows several types.
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "null": _to_null,
    "boolean": _to_boolean,
    "integer": _to_integer,
    "number": _to_number,
    "object": lambda value: _from_json(value, dict),
    "array": lambda value: _from_json(value, list),
    "string": _to_text,
}


def _one_of(value: Any, choices: list[Any]) -> Any:
    """The choice that the value is, or whose text it is."""
    if any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        return value
    said = value.strip() if isinstance(value, str) else _to_text(value)
    for choice in choices:
        text = choice if isinstance(choice, str) else _to_text(choice)
        if (isinstance(text, str) and text == said) or (choice is None and said in ("null", "None")):
            return choice
        if isinstance(choice, bool) and _to_boolean(value) is choice:
            return choice
    return value


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _list(schema.get("enum"))


def _types(schema: Any) -> list[str]:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    found = [kinds] if isinstance(kinds, str) else _list(kinds)
    return [kind for kind in found if isinstance(kind, str)]


def _at(root: Any, reference: str) -> Any:
    if not reference.startswith("#"):
        return None
    found = root
    for step in _steps(reference[1:]):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _steps(pointer: str) -> Iterator[str]:
    return (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
