"""The server's settings in force: flag over environment (`DFLASH2_NAME`) over file (server.json) over default.

It knows no web and loads nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import SecretStr, TypeAdapter
from pydantic import ValidationError as Invalid

from ..errors import RequestError
from . import files
from .fields import FieldFacts, extra, facts_of
from .flags import add_setting_arguments, flag_name
from .model import no_such_field
from .server_schema import ServerSettings

__all__ = [
    "ServerSettings",
    "SettingInForce",
    "Source",
    "add_setting_arguments",
    "default_file",
    "environment_name",
    "flag_name",
    "from_text",
    "is_secret",
    "read_settings",
    "server_field_facts",
    "server_settings_in_force",
    "settings_with",
    "write_server_settings",
]

PREFIX = "DFLASH2_"
Source = Literal["flag", "environment", "file", "default"]


class Given(NamedTuple):
    """A value before it is checked, where it came from, also in words; `typed`: JSON's types, else text."""

    value: Any
    source: Source
    words: str
    typed: bool


@dataclass(frozen=True, kw_only=True)
class SettingInForce:
    """One setting as it stands. Of a secret, every value is only whether it is set."""

    name: str
    value: Any  # what runs
    default: Any
    source: Source  # of that value
    requires_restart: bool  # a change comes into force by a restart
    pending: Any = None  # what a restart would bring, where that is something else; a reset to None reads None too
    changed: bool = False  # there is something pending
    group: str = ""
    description: str = ""


def default_file() -> Path:
    """Where the settings are kept: server.json in the user's configuration folder."""
    from platformdirs import user_config_path

    return user_config_path("dflash2-mlx", appauthor=False) / "server.json"


def read_settings(
    args: argparse.Namespace, environment: Mapping[str, str], file: Path | None = None
) -> tuple[ServerSettings, list[str]]:
    """The settings in force, and notes for the user: keys of the file that no setting bears.

    `file` None is the default one, which may be missing. Raises RequestError for a damaged file and for wrong values,
    with the field, the value, where it came from and what is allowed.
    """
    path = default_file() if file is None else file
    content = _read_file(path, required=file is not None)
    notes = [f"{path}: no setting {name!r}, it is not in force" for name in content if not _known(name)]
    return settings_with(args, environment, content, path), notes


def settings_with(
    args: argparse.Namespace, environment: Mapping[str, str], content: Mapping[str, Any], path: Path
) -> ServerSettings:
    """The settings that would be in force, did the file at `path` hold that content. Raises RequestError."""
    given = _given(args, environment, content, path)
    return ServerSettings(**{name: _checked(name, entry) for name, entry in given.items()})


def server_settings_in_force(
    args: argparse.Namespace,
    environment: Mapping[str, str],
    file: Path | None = None,
    *,
    running: ServerSettings | None = None,
) -> list[SettingInForce]:
    """Every setting with where it comes from. `running` is what a server runs with, where the file may have changed.

    Raises RequestError as `read_settings` does; a file that is gone holds nothing.
    """
    path = default_file() if file is None else file
    given = _given(args, environment, _read_file(path, required=False), path)
    now = ServerSettings(**{name: _checked(name, entry) for name, entry in given.items()})
    return [_in_force(name, given.get(name), now, now if running is None else running) for name in _fields()]


def write_server_settings(
    path: Path | None, changes: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None] = lambda content: None
) -> tuple[str, ...]:
    """Change some settings in the file (None is the default one), None removes one; the names that have changed.

    `check` may refuse what the file would hold, before it is written.

    Values have JSON's types and are checked as those of the file; nothing is written where one is wrong. Keys that no
    setting bears stay. A damaged file is refused, not replaced: it may hold the key that protects the server. Raises
    RequestError with `param`, DFlashError where the file cannot be written.
    """
    target = default_file() if path is None else path
    with files.locked(target):
        before = _read_file(target, required=False)
        after = dict(before)
        for name, value in changes.items():
            if not _known(name) and not (value is None and name in before):
                raise no_such_field(name, _fields())
            after.pop(name, None)
            if value is not None:
                after[name] = _plain(_checked(name, Given(value, "file", "", True)))
        check(after)
        if after != before:
            files.write(target, after)
    return tuple(name for name in changes if before.get(name) != after.get(name))


def from_text(name: str, text: str) -> Any:
    """A setting's value as JSON has it, from a text as on the command line. Raises RequestError."""
    if not _known(name):
        raise no_such_field(name, _fields())
    return _plain(_checked(name, Given(text, "flag", "", False)))


def server_field_facts() -> list[FieldFacts]:
    """What a form needs to know, in the order of the flags."""
    return [facts_of(name, schema, reload=bool(extra(schema, "restart"))) for name, schema in _fields().items()]


def is_secret(name: str) -> bool:
    """Whether a setting's value is shown to nobody."""
    return facts_of(name, _fields()[name]).kind == "secret"


def environment_name(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _fields() -> dict[str, Any]:
    return dict(ServerSettings.model_fields)


def _known(name: str) -> bool:
    return name in ServerSettings.model_fields


def _given(
    args: argparse.Namespace, environment: Mapping[str, str], content: Mapping[str, Any], path: Path
) -> dict[str, Given]:
    """What is given for each setting, from the strongest source; not checked."""
    fields = _fields()
    return {
        **{name: Given(content[name], "file", f"the file {path}", True) for name in fields if name in content},
        **dict(_from_environment(environment)),
        **{
            name: Given(value, "flag", f"the flag {flag_name(name)}", False)
            for name in fields
            if (value := getattr(args, name, None)) is not None
        },
    }


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        found = files.read(path)
        content = {} if found is None else files.parse_object(found[0])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"the settings file {path} cannot be read: {error}; repair it or move it away", param="config"
        ) from None
    if found is None and required:
        raise RequestError(f"no settings file {path}", param="config")
    return content


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    """What is set to nothing is not given."""
    for name in _fields():
        variable = environment_name(name)
        if environment.get(variable):
            yield name, Given(environment[variable], "environment", f"the environment, {variable}", False)


def _checked(name: str, given: Given) -> Any:
    field = _fields()[name]
    annotated: Any = Annotated[field.annotation, field]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    try:
        return adapter.validate_python(given.value, strict=given.typed)
    except Invalid as error:
        reasons = dict.fromkeys(entry["msg"].removeprefix("Value error, ") for entry in error.errors())
        value = "" if is_secret(name) else f" is {given.value!r}"
        source = f" ({given.words})" if given.words else ""
        message = f"{name}{value}{source}: {'; '.join(reasons)}"
        raise RequestError(message, param=name) from None


def _in_force(name: str, given: Given | None, now: ServerSettings, running: ServerSettings) -> SettingInForce:
    schema = _fields()[name]
    value, next_value = getattr(running, name), getattr(now, name)
    default = schema.get_default(call_default_factory=True)
    source: Source = given.source if given else "default"
    if value != next_value:
        # Flags and environment are those of the start: what differs now was, or was not, in the file then.
        source = "default" if value == default else "file"
    secret = is_secret(name)
    return SettingInForce(
        name=name,
        value=_told(value, secret),
        default=_told(default, secret),
        source=source,
        requires_restart=bool(extra(schema, "restart")),
        pending=_told(next_value, secret) if value != next_value else None,
        changed=value != next_value,
        group=str(extra(schema, "group")),
        description=schema.description or "",
    )


def _told(value: Any, secret: bool) -> Any:
    return bool(value) if secret else value


def _plain(value: Any) -> Any:
    """A checked value as JSON has it, secrets in the clear: for the file only."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return [_plain(part) for part in value] if isinstance(value, list) else value
