"""The server's settings: the schema, with the help of each flag. server.py says where the values come from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")
_KEY = re.compile(r"[!-~]+")
_ENDPOINT = re.compile(r"https?://[^/?#\s@]+(/[^?#\s]*)?")


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


def _endpoint(text: str) -> str:
    address = text.rstrip("/")
    if not _ENDPOINT.fullmatch(address):
        raise ValueError("it must be an address such as https://host, without name, password and query")
    return address


def _folder(text: str) -> Path:
    """`~` is the user's folder also where no shell has seen it."""
    return Path(os.path.expanduser(text))


Names = Annotated[list[str], BeforeValidator(_split)]
HostNames = Annotated[list[Annotated[str, AfterValidator(_host_name)]], BeforeValidator(_split)]
Origins = Annotated[list[Annotated[str, AfterValidator(_origin)]], BeforeValidator(_split)]
Keys = Annotated[list[Annotated[SecretStr, AfterValidator(_key)]], BeforeValidator(_split_keys)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]


def _field(
    group: str, default: Any, description: str, *, metavar: str = "", restart: bool = True, **limits: Any
) -> Any:
    """`restart`: a running server has to be started again for it."""
    extra: dict[str, Any] = {"group": group, "metavar": metavar, "restart": restart}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class ServerSettings(BaseModel):
    """What `dflash2-mlx serve` can be told. A field's description is its flag's help."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str | None = _field(
        "model",
        None,
        "target model to load at the start; demo is the embedded one (default: the one that is set as default)",
        metavar="ID|PATH",
        min_length=1,
    )
    draft: str | None = _field(
        "model",
        None,
        "drafter: the one known for the model, none (plain decoding), or a given one "
        "(default: what is saved for the model, else auto)",
        metavar="auto|none|ID|PATH",
        min_length=1,
    )
    draft_quant: str | None = _field(
        "model",
        None,
        "quantise the drafter when it is loaded, such as w4a16:gs64 (default: what is saved for the model, else off)",
        metavar="SPEC|off",
        min_length=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = _field("model", None, "compute type of the target")
    allow_fallback: bool = _field("model", False, "serve by plain decoding where the drafter cannot be used")
    alias: Names = _field("model", [], "further name that the model answers to; * is any name", metavar="NAME")

    model_dir: Names = _field("models", [], "folder with models; may be several", metavar="DIR")
    hub_cache: bool = _field("models", True, "list the models of the Hub cache too")
    load_on_request: bool = _field(
        "models", True, "load a model that a request names and that is not loaded", restart=False
    )
    idle_seconds: int | None = _field(
        "models",
        None,
        "unload a model after so long without a request; its own idle time wins (default: never)",
        restart=False,
        ge=1,
    )
    max_models: int | None = _field(
        "models", None, "models that are loaded at once at most (default: what fits in memory)", restart=False, ge=1
    )

    download_dir: str | None = _field(
        "downloads", None, "folder that downloads go to (default: the Hub cache)", metavar="DIR", min_length=1
    )
    hf_endpoint: Endpoint | None = _field(
        "downloads", None, "address of the Hub or of a mirror (default: the Hub's own)", metavar="URL", restart=False
    )
    hf_token: Key | None = _field(
        "downloads",
        None,
        "token for the Hub; better given as DFLASH2_HF_TOKEN, since others can see a command line "
        "(default: that of huggingface_hub)",
        metavar="TOKEN",
        restart=False,
    )

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

    ssd_cache_dir: str | None = _field(
        "prefix cache",
        None,
        "folder of the SSD cache, for models that have one (default: in the user's cache folder)",
        metavar="DIR",
        min_length=1,
    )

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
    no_ui: bool = _field("protocols", False, "no pages, only the APIs")

    @property
    def drafter(self) -> str | None:
        """The drafter as `load` takes it: auto where none is given (`draft` None) and the model has none saved."""
        return None if self.draft == "none" else self.draft or "auto"

    @property
    def quantize(self) -> str | None:
        """The drafter's quantisation as `load` takes it; None also where none is given (`draft_quant` None)."""
        return None if self.draft_quant == "off" else self.draft_quant

    @property
    def model_folders(self) -> list[Path]:
        return [_folder(text) for text in self.model_dir]

    @property
    def download_folder(self) -> Path | None:
        return None if self.download_dir is None else _folder(self.download_dir)

    @property
    def ssd_cache_folder(self) -> Path | None:
        return None if self.ssd_cache_dir is None else _folder(self.ssd_cache_dir)

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1024 * 1024)

    @property
    def memory_limit(self) -> int | None:
        return None if self.memory_limit_gb is None else int(self.memory_limit_gb * 1024**3)

    @property
    def cache_bytes(self) -> int:
        return int(self.cache_gb * 1024**3)
