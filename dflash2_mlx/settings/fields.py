"""What a form, a table or a command line needs to know of a setting: read from the schema, never written twice."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

Kind = Literal["bool", "int", "float", "text", "choice", "object", "bytes", "list", "secret"]

_KINDS: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "text", dict: "object", SecretStr: "secret"}


@dataclass(frozen=True, kw_only=True)
class FieldFacts:
    """One setting. Kind bytes is an int; list (of texts) and secret (one, or several in a list) are the server's."""

    name: str
    label: str
    description: str
    group: str
    kind: Kind
    unit: str = ""
    choices: tuple[Any, ...] = ()
    unavailable: Mapping[Any, str] = field(default_factory=dict)  # choices that this version cannot run: the reason
    minimum: float | None = None
    maximum: float | None = None
    above_minimum: bool = False  # the minimum itself is refused
    nullable: bool = False
    default: Any = None
    null_means: Any = None  # the value that null stands for; None: automatic, or nothing
    reload: bool = False  # of a model: a loaded one has to be loaded again; of the server: it has to be started again
    available: bool = True
    reason: str | None = None  # why it is not available


def facts_of(name: str, schema: FieldInfo, **more: Any) -> FieldFacts:
    """The facts of one field; `more` are those that the schema does not tell."""
    inner, nullable = _inner(schema.annotation)
    kind = _kind(inner, extra(schema, "unit"))
    minimum = _limit(schema, "ge", "gt")
    return FieldFacts(
        name=name,
        label=schema.title or name.replace("_", " ").capitalize(),
        description=schema.description or "",
        group=str(extra(schema, "group")),
        kind=kind,
        unit=str(extra(schema, "unit") or ""),
        choices=get_args(inner) if kind == "choice" else (),
        minimum=minimum,
        maximum=_limit(schema, "le", "lt"),
        above_minimum=minimum is not None and _limit(schema, "ge") is None,
        nullable=nullable,
        default=schema.get_default(call_default_factory=True) if kind != "secret" else None,
        **more,
    )


def extra(schema: FieldInfo, name: str) -> Any:
    """What the schema says of a field beside pydantic's own words; None where it says nothing."""
    told = schema.json_schema_extra
    return told.get(name) if isinstance(told, dict) else None


def _inner(annotation: Any) -> tuple[Any, bool]:
    """The type without None and Annotated, and whether None is allowed."""
    nullable = False
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
        nullable = True
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation, nullable


def _kind(inner: Any, unit: Any) -> Kind:
    origin = get_origin(inner)
    if origin is Literal:
        return "choice"
    if origin is list:
        return "secret" if _inner(get_args(inner)[0])[0] is SecretStr else "list"
    return "bytes" if unit == "bytes" else _KINDS[origin or inner]


def _limit(schema: FieldInfo, *names: str) -> float | None:
    found = (getattr(entry, name, None) for entry in schema.metadata for name in names)
    return next((value for value in found if value is not None), None)
