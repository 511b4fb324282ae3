"""Settings as texts of a terminal: what is typed becomes a value, values become aligned lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings.fields import FieldFacts
from dflash2_mlx.settings.model import ModelSettings, draft_quant_fields, field_facts, not_in_force

SHORT_FORM = "draft_quant"  # stands for the four fields of the drafter's quantisation
_SWITCH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_PARSERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "object": json.loads}
_BYTES = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([kmgt]ib)?", re.IGNORECASE)


def assignments(words: Sequence[str]) -> dict[str, str]:
    """FIELD=VALUE words by field. Raises RequestError for any other word, and for a field that comes twice."""
    if not words:
        raise RequestError("name at least one FIELD=VALUE", param="fields")
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise RequestError(f"{word!r} is no FIELD=VALUE, such as dflash_block_size=5", param="fields")
        if name in found:
            raise RequestError(f"{name} is given twice: {found[name]!r} and {value!r}", param=name)
        found[name] = value
    return found


def model_changes(texts: Mapping[str, str]) -> dict[str, Any]:
    """What is typed for a model's fields, as values; None clears. What is no such value stays a text, to be refused."""
    facts = {fact.name: fact for fact in field_facts()}
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        if name == SHORT_FORM:
            changes |= draft_quant_fields(text or None)
        else:
            changes[name] = None if is_nothing(text) else _value(facts.get(name), text)
    return changes


def is_nothing(text: str) -> bool:
    """Whether a text clears its field."""
    return text in ("", "null")


def text_of(value: Any) -> str:
    """A value in one line: texts as they are where that is one line, lists with commas, the rest as JSON."""
    if isinstance(value, str) and value.isprintable():
        return value
    if isinstance(value, list) and all(isinstance(part, str) and part.isprintable() for part in value):
        return ", ".join(value) or "none"
    return json.dumps(value, ensure_ascii=False)


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as lines in columns, the last of which may be of any width."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in table), strict=True)]
    return [
        indent + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]


def every_field(settings: ModelSettings) -> list[str]:
    """All fields of a model in groups: name, value, label and what is allowed."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    without = not_in_force(settings)
    for fact in field_facts():
        told = f"{fact.label}{_allowed(fact)}" + (
            f"; NOT IN FORCE: {without[fact.name]}" if fact.name in without else ""
        )
        groups.setdefault(fact.group, []).append((fact.name, _shown(fact, getattr(settings, fact.name)), told))
    rows = aligned([row for group in groups.values() for row in group], "  ")
    lines: list[str] = []
    for group, fields in groups.items():
        lines += ["", group, *rows[: len(fields)]]
        rows = rows[len(fields) :]
    return [*lines[1:], *unknown_keys(settings)]


def unknown_keys(settings: ModelSettings) -> list[str]:
    """The keys that are kept and ignored, under a heading; nothing where there are none."""
    rows = [(name, text_of(value)) for name, value in (settings.model_extra or {}).items()]
    return ["", "Unknown to this program, kept and ignored", *aligned(rows, "  ")] if rows else []


def _value(fact: FieldFacts | None, text: str) -> Any:
    if fact is None:
        return text
    if fact.kind == "bool":
        return _SWITCH.get(text.lower(), text)
    if fact.kind == "choice":
        return next((choice for choice in fact.choices if str(choice) == text), text)
    if fact.kind == "bytes":
        match = _BYTES.fullmatch(text)
        return int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else text
    parse = _PARSERS.get(fact.kind, str)
    with suppress(ValueError, RecursionError):
        return parse(text)
    return text


def _shown(fact: FieldFacts, value: Any) -> str:
    if value is None and fact.null_means is not None:
        return f"null ({text_of(fact.null_means)})"
    if fact.kind == "bytes" and value and not value % (1 << 20):
        return f"{value / (1 << 30):g}GiB"
    return text_of(value)


def _allowed(fact: FieldFacts) -> str:
    """What a field takes, where it is not any value of its kind."""
    if fact.kind == "choice":
        return ": " + ", ".join(
            f"{choice} (not yet)" if choice in fact.unavailable else f"{choice}" for choice in fact.choices
        )
    if fact.kind in ("int", "float") and fact.maximum is not None and fact.maximum < 1 << 31:
        return f": {fact.minimum:g} to {fact.maximum:g}"
    return ""
