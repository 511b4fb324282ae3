"""Plain data as dataclasses, each value checked against its field's type: a stored figure that is none is named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(kind: type[T], data: Any, where: str = "") -> T:
    """A dataclass of plain data; lists become tuples, keys that it does not have are left out.

    Raises ValueError that names the field, such as `samples[3].generation_seconds`.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where or 'it'} is to be an object")
    hints = _hints(kind)  # type: ignore[arg-type]
    given = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in data:
            given[field.name] = _value(hints[field.name], data[field.name], f"{where}.{field.name}".lstrip("."))
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{where or 'it'} is not whole: {error}") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return typed(hint, value, where)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        (inner,) = (each for each in get_args(hint) if each is not NoneType)
        return _value(inner, value, where)
    if origin is Sequence and isinstance(value, list | tuple):
        (inner,) = get_args(hint)
        return tuple(_value(inner, each, f"{where}[{i}]") for i, each in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        key, inner = get_args(hint)
        return {_value(key, name, where): _value(inner, each, f"{where}.{name}") for name, each in value.items()}
    if origin is None and _fits(hint, value):
        return value
    raise ValueError(f"{where} is {value!r:.60}: {_WORDS.get(origin or hint, 'another type')} is expected")


_WORDS = {
    Sequence: "a list",
    Mapping: "an object",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
}


def _fits(kind: Any, value: Any) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)
