"""The server's settings: one schema gives the flags, the environment (`DFLASH2_NAME`) and the file (server.json).

Flag over environment over file over default. It knows no web and loads nothing.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, TypeAdapter
from pydantic import ValidationError as Invalid
from pydantic.fields import FieldInfo

from ..errors import RequestError

PREFIX = "DFLASH2_"
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")
_KEY = re.compile(r"[!-~]+")


def _split(value: Any) -> Any:
    """A list may also be written as one text, with commas; so may each of a repeated flag's texts."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return [piece for part in value for piece in _split(part)]
    return value


def _split_keys(value: Any) -> Any:
    """A key that is given as nothing, by a variable that is not set say, must not mean: no key."""
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, str) and not part.strip(" ,") for part in parts):
        raise ValueError("it is empty")
    return _split(value)


def _host_name(text: str) -> str:
    name = text.lower().removesuffix(".")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError("it must be a host name, without scheme and port")
    return name


def _origin(text: str) -> str:
    origin = text.lower().removesuffix("/")
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ValueError("an origin reads scheme://host or scheme://host:port; * allows every page to read answers")
    return origin


def _key(secret: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(secret.get_secret_value()):
        raise ValueError("a key has one or more printable ASCII characters, without spaces")
    return secret


Names = Annotated[list[str], BeforeValidator(_split)]
HostNames = Annotated[list[Annotated[str, AfterValidator(_host_name)]], BeforeValidator(_split)]
Origins = Annotated[list[Annotated[str, AfterValidator(_origin)]], BeforeValidator(_split)]
Keys = Annotated[list[Annotated[SecretStr, AfterValidator(_key)]], BeforeValidator(_split_keys)]


def _field(group: str, default: Any, description: str, *, metavar: str = "", **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group, "metavar": metavar}, **limits)


class ServerSettings(BaseModel):
    """What `dflash2-mlx serve` can be told. A field's description is its flag's help."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str = _field("model", "demo", "target model; demo is the embedded one", metavar="ID|PATH", min_length=1)
    draft: str = _field(
        "model",
        "auto",
        "drafter: the one known for the model, none (plain decoding), or a given one",
        metavar="auto|none|ID|PATH",
        min_length=1,
    )
    draft_quant: str = _field(
        "model",
        "off",
        "quantise the drafter when it is loaded, such as w4a16:gs64",
        metavar="SPEC|off",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = _field("model", None, "compute type of the target")
    allow_fallback: bool = _field("model", False, "serve by plain decoding where the drafter cannot be used")
    alias: Names = _field("model", [], "further name that the model answers to; * is any name", metavar="NAME")

    host: str = _field("network", "127.0.0.1", "address to listen on; others than loopback need a key", min_length=1)
    port: int = _field("network", 8000, "port to listen on; 0 takes a free one", ge=0, le=65535)
    api_key: Keys = _field(
        "network",
        [],
        "key that requests must bear; better given as DFLASH2_API_KEY, since others can see a command line",
        metavar="KEY",
    )
    allowed_host: HostNames = _field(
        "network", [], "host name that requests may use besides IP addresses and localhost", metavar="NAME"
    )
    cors_origin: Origins = _field("network", [], "origin whose web pages may send requests; * is any", metavar="ORIGIN")

    max_body_mb: float = _field("limits", 32.0, "largest request body, in MiB", gt=0, le=1024, allow_inf_nan=False)
    max_queue: int = _field("limits", 64, "requests that may wait; more are told to come again (429)", ge=1, le=100_000)
    max_active: int = _field("limits", 4, "requests that take turns at once, the others wait", ge=1, le=64)
    context_length: int | None = _field(
        "limits", None, "most tokens of prompt and answer (default: the config's)", ge=1
    )
    max_tokens: int | None = _field(
        "limits", None, "most tokens of an answer that names no number (default: what the context leaves)", ge=1
    )
    prefill_step_size: int = _field("limits", 2048, "prompt tokens of one prefill chunk", ge=1)
    watchdog_seconds: float = _field(
        "limits",
        300.0,
        "not ready any more when one step takes longer than this; 0 turns the watchdog off",
        ge=0,
        allow_inf_nan=False,
    )

    memory_limit_gb: float | None = _field(
        "limits",
        None,
        "memory that prompts may fill, weights and prefix cache included, in GiB (default: the device's)",
        gt=0,
        allow_inf_nan=False,
    )

    cache_gb: float = _field("prefix cache", 8.0, "memory for it, in GiB; 0 turns it off", ge=0, allow_inf_nan=False)
    snapshot_every: int = _field("prefix cache", 4096, "prompt tokens between two snapshots in a long message", ge=1)

    keep_alive_seconds: float = _field(
        "protocols", 15.0, "a sign of life after so long without an event; 0 sends none", ge=0, allow_inf_nan=False
    )
    keep_alive_style: Literal["comment", "chunk"] = _field(
        "protocols", "comment", "what a chat stream sends as a sign of life: a comment, or an empty chunk"
    )
    reasoning_field: Literal["both", "reasoning_content", "reasoning", "content"] = _field(
        "protocols", "both", "where chat answers have their reasoning; content leaves it in the text, in <think> tags"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _field("protocols", "info", "what is logged, to stderr")
    no_ui: bool = _field("protocols", False, "reserved: there is no page yet")

    @property
    def drafter(self) -> str | None:
        """The drafter as `load` takes it."""
        return None if self.draft == "none" else self.draft

    @property
    def quantize(self) -> str | None:
        """The drafter's quantisation as `load` takes it."""
        return None if self.draft_quant == "off" else self.draft_quant

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1024 * 1024)

    @property
    def memory_limit(self) -> int | None:
        return None if self.memory_limit_gb is None else int(self.memory_limit_gb * 1024**3)

    @property
    def cache_bytes(self) -> int:
        return int(self.cache_gb * 1024**3)


class Given(NamedTuple):
    """A value before it is checked, and the words for where it came from; `typed`: JSON's types, else text."""

    value: Any
    source: str
    typed: bool


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
    fields = ServerSettings.model_fields
    given = {
        **{name: Given(content[name], f"the file {path}", True) for name in fields if name in content},
        **dict(_from_environment(environment)),
        **{
            name: Given(value, f"the flag {flag_name(name)}", False)
            for name in fields
            if (value := getattr(args, name, None)) is not None
        },
    }
    notes = [f"{path}: no setting {name!r}, it is not in force" for name in content if name not in fields]
    return ServerSettings(**{name: _checked(name, entry) for name, entry in given.items()}), notes


def add_setting_arguments(parser: argparse.ArgumentParser, model: type[BaseModel] = ServerSettings) -> None:
    """A flag for every field, in groups. Values stay text, and what is not given stays None, for `read_settings`."""
    groups: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        title = _extra(field, "group")
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        group.add_argument(flag_name(name), dest=name, default=None, help=_help(field), **_action(name, field))


def flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def environment_name(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        raise RequestError(f"no settings file {path}", param="config") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"the settings file {path} cannot be read: {error}", param="config") from None
    if not isinstance(content, dict):
        raise RequestError(f"the settings file {path} holds no JSON object", param="config")
    return content


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    """What is set to nothing is not given."""
    for name in ServerSettings.model_fields:
        variable = environment_name(name)
        if environment.get(variable):
            yield name, Given(environment[variable], f"the environment, {variable}", False)


def _checked(name: str, given: Given) -> Any:
    field = ServerSettings.model_fields[name]
    annotated: Any = Annotated[field.annotation, field]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    try:
        return adapter.validate_python(given.value, strict=given.typed)
    except Invalid as error:
        reasons = dict.fromkeys(entry["msg"].removeprefix("Value error, ") for entry in error.errors())
        shown = "" if name == "api_key" else f" is {given.value!r}"
        message = f"{name}{shown} ({given.source}): {'; '.join(reasons)}"
        raise RequestError(message, param=name) from None


def _action(name: str, field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"action": "store_true"} if name.startswith("no_") else {"action": argparse.BooleanOptionalAction}
    repeated = {"action": "append"} if get_origin(field.annotation) is list else {}
    return repeated | {"metavar": _extra(field, "metavar") or _metavar(field)}


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


def _extra(field: FieldInfo, name: str) -> str:
    extra = field.json_schema_extra
    return str(extra[name]) if isinstance(extra, dict) else ""
