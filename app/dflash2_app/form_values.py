"""Between a setting's value and what stands in its control: texts, switches. It knows no elements.

A control holds a text (numbers, texts, lists, JSON), a bool (a switch) or a choice itself (its text, "" for null).
"""

from __future__ import annotations

import json
from typing import Any, Final

from dflash2_app.wording import count
from dflash2_mlx.settings.fields import FieldFacts

Typed = str | bool
GIB = 1 << 30
# Of a change: there is none.
UNCHANGED: Final = object()
_DECIMALS = 6


class Wrong(ValueError):
    """What was typed is no value of the field's kind; what values are allowed, the schema says when it is saved."""


def is_switch(facts: FieldFacts) -> bool:
    """On or off; where null is something else than these, it is a choice of three."""
    return facts.kind == "bool" and (not facts.nullable or facts.null_means is not None)


def has_automatic(facts: FieldFacts) -> bool:
    """Whether null is a choice of its own, since what it stands for will change with the program."""
    return facts.nullable and bool(facts.unavailable)


def typed_of(facts: FieldFacts, value: Any) -> Typed:
    """What the control shows for a value."""
    if value is None and facts.null_means is not None and not has_automatic(facts):
        value = facts.null_means
    if is_switch(facts):
        return bool(value)
    if value is None or facts.kind == "secret":
        return ""
    if facts.kind == "bool":
        return "on" if value else "off"
    if facts.kind == "bytes":
        return _gib(value)
    if facts.kind == "object":
        return json.dumps(value, ensure_ascii=False, indent=2)
    if facts.kind == "list":
        return "\n".join(str(part) for part in value)
    if facts.kind == "float":
        return f"{value:.{_DECIMALS}f}".rstrip("0").rstrip(".") if abs(value) >= 10**-_DECIMALS else repr(value)
    return str(value)


def value_of(facts: FieldFacts, typed: Typed) -> Any:
    """The value that was typed; None for nothing. Raises Wrong."""
    if isinstance(typed, bool):
        return typed
    text = typed.strip()
    if not text:
        return None
    if facts.kind == "bool":
        return text == "on"
    if facts.kind == "choice":
        return next((choice for choice in facts.choices if str(choice) == text), text)
    if facts.kind == "int":
        return _whole(text)
    if facts.kind == "float":
        return _number(text)
    if facts.kind == "bytes":
        return round(_number(text) * GIB)
    if facts.kind == "list":
        return [part for line in text.splitlines() if (part := line.strip())]
    return _object(text) if facts.kind == "object" else text


def change_of(facts: FieldFacts, saved: Any, typed: Typed) -> Any:
    """What to save for a field: UNCHANGED, None for its default, or the value. Raises Wrong."""
    if facts.kind == "secret":
        return value_of(facts, typed) or UNCHANGED
    if typed == typed_of(facts, saved):
        return UNCHANGED  # also where the control shows less digits than the value has
    value = value_of(facts, typed)
    if same(facts, value, saved):
        return UNCHANGED
    return None if value is None or same(facts, value, facts.default) else value


def same(facts: FieldFacts, one: Any, other: Any) -> bool:
    """Whether two values mean the same; null is the default of a field that takes no null."""
    return bool(_meaning(facts, one) == _meaning(facts, other))


def shown(facts: FieldFacts, value: Any) -> str:
    """A value in words: of a default, say."""
    if facts.kind == "secret":
        return "set" if value else "not set"
    if value is None and has_automatic(facts):
        return f"automatic, now {facts.null_means}"
    if value is None:
        value = facts.null_means
    if value is None or value == []:
        return null_words(facts)
    if facts.kind == "bool":
        return "on" if value else "off"
    if facts.kind == "bytes":
        return f"{_gib(value)} GiB"
    if facts.kind == "object":
        return json.dumps(value, ensure_ascii=False)
    if facts.kind == "list":
        return ", ".join(str(part) for part in value)
    if facts.kind == "int" and value >= 10_000:
        return count(value)
    return str(typed_of(facts, value))


def null_words(facts: FieldFacts) -> str:
    """What an empty field stands for, where no value does."""
    return "automatic" if "automatic" in facts.description else "empty"


def limits(facts: FieldFacts) -> str:
    """1 to 128; at least 1; empty where there are none worth saying."""
    low, high = facts.minimum, facts.maximum
    if facts.kind == "bytes" or (low is None and high is None):
        return ""
    if high is None or high >= 2**31:
        return "" if low is None else f"more than {low:g}" if facts.above_minimum else f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} to {high:g}"


def _meaning(facts: FieldFacts, value: Any) -> Any:
    if value is not None or has_automatic(facts):
        return value
    return facts.null_means if facts.nullable else facts.default


def _gib(count_of_bytes: int) -> str:
    return f"{count_of_bytes / GIB:.{_DECIMALS}f}".rstrip("0").rstrip(".")


def _whole(text: str) -> int:
    """Digits may be grouped by spaces."""
    try:
        return int("".join(text.split()))
    except ValueError:
        raise Wrong(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        number = float("".join(text.split()))
    except ValueError:
        hint = ": write it with a point" if "," in text else ""
        raise Wrong(f"{text!r} is no number{hint}") from None
    if number != number or abs(number) == float("inf"):
        raise Wrong(f"{text!r} is no finite number")
    return number


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Wrong(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Wrong('it is no JSON object: write {"name": value}')
    return value
