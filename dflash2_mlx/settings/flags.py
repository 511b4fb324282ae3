"""The server's settings on the command line: a flag for every field of the schema."""

from __future__ import annotations

import argparse
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .fields import extra
from .server_schema import ServerSettings


def add_setting_arguments(parser: argparse.ArgumentParser, model: type[BaseModel] = ServerSettings) -> None:
    """A flag for every field, in groups. Values stay text, and what is not given stays None, for `read_settings`."""
    groups: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        title = str(extra(field, "group"))
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        group.add_argument(flag_name(name), dest=name, default=None, help=_help(field), **_action(name, field))


def flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _action(name: str, field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": "store_true"} if name.startswith("no_") else {"action": argparse.BooleanOptionalAction}
    repeated = {"action": "append"} if get_origin(field.annotation) is list else {}
    return repeated | {"metavar": str(extra(field, "metavar") or "") or _metavar(field)}


def _metavar(field: FieldInfo) -> str:
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    choices = [choice for kind in kinds for choice in (get_args(kind) or (kind,)) if isinstance(choice, str)]
    if choices:
        return "|".join(choices)
    return {int: "N", float: "X"}.get(kinds[0], "TEXT")


def _help(field: FieldInfo) -> str:
    """A `%` would be a placeholder of argparse's."""
    default = field.default
    text = (field.description or "").replace("%", "%%")
    return text if default is None or isinstance(default, bool | list) else f"{text} (default: {default})"
