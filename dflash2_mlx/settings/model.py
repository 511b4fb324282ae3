"""The rules of a model's settings: what may be changed, what needs a reload, what the file holds, what a form needs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import RequestError
from .fields import FieldFacts, extra, facts_of
from .model_schema import NULL_MEANS, UNAVAILABLE, UNAVAILABLE_FIELDS, ModelSettings, draft_quant_fields, is_json

__all__ = [
    "FieldFacts",
    "ModelSettings",
    "changed",
    "draft_quant_fields",
    "field_facts",
    "from_stored",
    "needs_reload",
    "no_such_field",
    "not_in_force",
    "shown",
    "stored",
]

_SSD_NEEDS_MEMORY = "dflash_ssd_cache needs dflash_in_memory_cache: turn both on, or the SSD cache off"
_LONGEST = 120  # characters of a value in a message


def changed(settings: ModelSettings, changes: Mapping[str, Any]) -> ModelSettings:
    """The settings with `changes` over them; None puts a field back to its default, or drops an unknown key.

    Raises RequestError for what is wrong, all of it in one message, `param` the first: each with its value and what is
    allowed. An unknown key can be dropped or kept, not added; what this version cannot do can be kept, not chosen.
    """
    fields = ModelSettings.model_fields
    unknown = settings.model_extra or {}
    wrong = {name: fault for name, value in changes.items() if (fault := _fault(settings, name, value))}
    values = settings.model_dump(exclude_unset=True) | {k: v for k, v in changes.items() if v is not None}
    for name, value in changes.items():
        if value is None or (name not in fields and name not in unknown):
            values.pop(name, None)
    after, faults = _parsed(values)
    wrong = {name: wrong.get(name) or faults[name] for name in changes if name in wrong or name in faults}
    if not wrong and (fault := _contradiction(after)):
        name = "dflash_ssd_cache" if "dflash_ssd_cache" in changes else "dflash_in_memory_cache"
        wrong = {name: f"{name} is {getattr(after, name)!r}: {fault}"}
    if wrong:
        raise RequestError("; ".join(wrong.values()), param=next(iter(wrong)))
    return after


def needs_reload(before: ModelSettings, after: ModelSettings) -> tuple[str, ...]:
    """The fields for which a pair that was loaded with `before` has to be loaded again to run with `after`.

    A field that stands for the same thing, or that DFlash or its quantisation being off leaves without effect, is none.
    """
    return tuple(
        name
        for name, schema in ModelSettings.model_fields.items()
        if extra(schema, "reload")
        and _meaning(before, name) != _meaning(after, name)
        and _effect(before, name) != _effect(after, name)
    )


def stored(settings: ModelSettings) -> dict[str, Any]:
    """What the file holds: the fields that are not at their default, and the unknown keys."""
    fields = ModelSettings.model_fields
    values = settings.model_dump()
    return {name: value for name, value in values.items() if name not in fields or value != fields[name].default}


def from_stored(entry: Any) -> tuple[ModelSettings, dict[str, str]]:
    """Settings from one model's entry in a file, and by key what of it is wrong: there the default is in force."""
    if not isinstance(entry, Mapping):
        return ModelSettings(), {"": f"the entry is {shown(entry)}, not a JSON object"}
    unsound = {
        name: f"{name}: it is not plain JSON (a number that is not finite, or a broken text)"
        for name, value in entry.items()
        if name not in ModelSettings.model_fields and not (is_json(name) and is_json(value))
    }
    values = {
        k: v for k, v in entry.items() if k not in unsound and (v is not None or k not in ModelSettings.model_fields)
    }
    settings, faults = _parsed(values)
    if fault := _contradiction(settings):
        faults["dflash_ssd_cache"] = f"dflash_ssd_cache is {settings.dflash_ssd_cache!r}: {fault}"
        settings = _parsed({k: v for k, v in values.items() if k != "dflash_ssd_cache"})[0]
    return settings, unsound | faults


def not_in_force(settings: ModelSettings) -> dict[str, str]:
    """By name: what is kept and does nothing, each with the reason."""
    found = {name: f"{name} is unknown to this program: kept, and ignored" for name in settings.model_extra or {}}
    for name, reasons in UNAVAILABLE.items():
        value = getattr(settings, name)
        if value in reasons:
            found[name] = f"{name} is {value!r}, which runs as {NULL_MEANS[name]}: {reasons[value]}"
    for name, reason in UNAVAILABLE_FIELDS.items():
        if getattr(settings, name) != ModelSettings.model_fields[name].default:
            found[name] = f"{name} is {getattr(settings, name)!r}: {reason}"
    return found


def field_facts() -> list[FieldFacts]:
    """All fields in the order of a form."""
    return [
        facts_of(
            name,
            schema,
            reload=bool(extra(schema, "reload")),
            null_means=NULL_MEANS.get(name),
            unavailable=UNAVAILABLE.get(name, {}),
            available=name not in UNAVAILABLE_FIELDS,
            reason=UNAVAILABLE_FIELDS.get(name),
        )
        for name, schema in ModelSettings.model_fields.items()
    ]


def no_such_field(name: str, known: Any) -> RequestError:
    """The error for a name that no field bears, with the nearest ones."""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
    return RequestError(f"there is no setting {shown(name)}{hint}", param=name[:_LONGEST])


def shown(value: Any) -> str:
    """A value in a message."""
    text = ascii(value) if isinstance(value, str) and not is_json(value) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _parsed(values: Mapping[str, Any]) -> tuple[ModelSettings, dict[str, str]]:
    """Settings from those values that are right, and what is wrong with the others."""
    try:
        return ModelSettings.model_validate(dict(values)), {}
    except ValidationError as error:
        faults: dict[str, str] = {}
        for entry in error.errors(include_url=False):
            name = str(entry["loc"][0])
            reason = entry["msg"].removeprefix("Value error, ")
            faults.setdefault(name, f"{name} is {shown(values[name])}: {reason[:1].lower()}{reason[1:]}")
    right = {name: value for name, value in values.items() if name not in faults}
    return ModelSettings.model_validate(right), faults


def _fault(settings: ModelSettings, name: str, value: Any) -> str | None:
    """Why a change of this one is refused, where the schema alone would take it."""
    unknown = settings.model_extra or {}
    if name not in ModelSettings.model_fields:
        kept = name in unknown and (value is None or value == unknown[name])
        return None if kept else str(no_such_field(name, ModelSettings.model_fields))
    if value is None or value == getattr(settings, name):
        return None
    if name in UNAVAILABLE_FIELDS and value != ModelSettings.model_fields[name].default:
        return f"{name} is {shown(value)}: {UNAVAILABLE_FIELDS[name]}"
    reasons = UNAVAILABLE.get(name, {})
    return f"{name} is {value!r}: {reasons[value]}" if isinstance(value, str) and value in reasons else None


def _contradiction(settings: ModelSettings) -> str | None:
    """What one field forbids another."""
    return _SSD_NEEDS_MEMORY if settings.dflash_ssd_cache and not settings.dflash_in_memory_cache else None


def _meaning(settings: ModelSettings, name: str) -> Any:
    value = getattr(settings, name)
    return NULL_MEANS.get(name) if value is None else value


def _effect(settings: ModelSettings, name: str) -> Any:
    """What loading makes of a field; None where it does nothing."""
    if name.startswith("dflash_draft_") and not settings.dflash_enabled:
        return None
    if name.startswith("dflash_draft_quant_") and settings.draft_quant is None:
        return False if name == "dflash_draft_quant_enabled" else None
    return _meaning(settings, name)
