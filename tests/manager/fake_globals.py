"""The server's own settings in memory, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.server import SettingInForce

SECRETS = ("api_key", "hf_token")
RESTART = ("host", "port", "api_key", "allowed_host", "cors_origin", "max_body_mb", "no_ui")


class FakeGlobals:
    """A flag for the port, something in the environment, something in the file, defaults for the rest."""

    def __init__(self, settings: ServerSettings) -> None:
        self._in_force = settings.model_dump()
        self._file: dict[str, Any] = {"max_queue": 64}
        self._pending: dict[str, Any] = {}

    def all(self) -> list[SettingInForce]:
        return [self._one(name) for name in ServerSettings.model_fields]

    def save(self, changes: Mapping[str, Any]) -> None:
        unknown = [name for name in changes if name not in ServerSettings.model_fields]
        if unknown:
            raise RequestError(f"there is no setting {unknown[0]!r}", param=unknown[0])
        given = {name: value for name, value in changes.items() if value is not None}
        try:
            checked = ServerSettings(**given).model_dump()
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            shown = "" if name in SECRETS else f" is {changes[name]!r}"
            raise RequestError(f"{name}{shown}: {error.errors()[0]['msg']}", param=name) from None
        for name, value in changes.items():
            if value is None:
                self._file.pop(name, None)
                checked[name] = ServerSettings.model_fields[name].get_default(call_default_factory=True)
            else:
                self._file[name] = checked[name]
            (self._pending if _restarts(name) else self._in_force)[name] = checked[name]

    def _one(self, name: str) -> SettingInForce:
        field = ServerSettings.model_fields[name]
        extra: Any = field.json_schema_extra or {}
        value, default = self._in_force[name], field.get_default(call_default_factory=True)
        secret = name in SECRETS
        source: Any = "file" if name in self._file else "flag" if value != default else "default"
        pending = self._pending.get(name)
        return SettingInForce(
            name=name,
            value=bool(value) if secret else value,
            default=None if secret else default,
            source=source,
            requires_restart=_restarts(name),
            changed=name in self._pending,
            pending=bool(pending) if secret and name in self._pending else pending,
            group=extra.get("group", ""),
            description=field.description or "",
        )


def _restarts(name: str) -> bool:
    extra: Any = ServerSettings.model_fields[name].json_schema_extra or {}
    return bool(extra.get("restart", name in RESTART))
