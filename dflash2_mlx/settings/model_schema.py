"""The settings of one model: oMLX's names, values and defaults, with labels and limits. model.py has their rules."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..errors import RequestError

Group = Literal["DFlash", "Cache", "Sampling", "Context", "Model"]
VerifyMode = Literal["adaptive", "dflash", "ddtree", "off"]

NOT_YET = "this version does not have it yet: use adaptive, dflash or off"
# Choices that are kept where a file has them, and that this version cannot run, each with the reason.
UNAVAILABLE: dict[str, dict[str, str]] = {"dflash_verify_mode": {"ddtree": NOT_YET}}
# Fields that are kept where a file has them, and that this version cannot do: the reason.
UNAVAILABLE_FIELDS: dict[str, str] = {
    "trust_remote_code": "this version runs no code that comes with a checkpoint: leave it off"
}
# What a field that is null stands for, where that is one value.
NULL_MEANS: dict[str, Any] = {
    "dflash_draft_quant_enabled": False,
    "dflash_draft_quant_weight_bits": 4,
    "dflash_draft_quant_activation_bits": 16,
    "dflash_draft_quant_group_size": 64,
    "dflash_verify_mode": "adaptive",
    "dflash_verify_precision": "fast",
}

_LARGEST = 2**63 - 1  # bytes
_MOST = 2**31  # tokens, and everything else that is counted; as in a request
_COLDEST = 1e-6  # as in a request
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?")
_SHORT_FORM = re.compile(r"w([248])(?:a(16|32))?(?::gs(32|64|128))?")


def is_json(value: Any) -> bool:
    """Whether it can be written as JSON in UTF-8: no NaN, no infinity, no half of a surrogate pair."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _json(value: dict[str, Any]) -> dict[str, Any]:
    if not is_json(value):
        raise ValueError("it must be plain JSON, without NaN and infinities")
    return value


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or not is_json(text):
        raise ValueError("it must be a text of one line, without spaces around it")
    return text


def _text(text: str) -> str:
    if not is_json(text):
        raise ValueError("it must be a text that UTF-8 can hold")
    return text


def _temperature(number: float) -> float:
    if 0 < number < _COLDEST:
        raise ValueError("it must be 0 for greedy decoding, or at least 1e-06")
    return number


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_text)]
Temperature = Annotated[float, AfterValidator(_temperature)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_json)]


def _field(
    default: Any, label: str, description: str, group: Group, *, reload: bool = False, unit: str = "", **limits: Any
) -> Any:
    """`reload`: a loaded model has to be loaded again for it."""
    extra: dict[str, Any] = {"group": group, "reload": reload, "unit": unit}
    return Field(default, title=label, description=description, json_schema_extra=extra, **limits)


def _whole(default: int | None, label: str, description: str, group: Group, *, ge: int, **more: Any) -> Any:
    return _field(default, label, description, group, ge=ge, **{"le": _MOST} | more)


class ModelSettings(BaseModel):
    """What is set for one model. Unknown keys are kept (`model_extra`) and shown as ignored."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, hide_input_in_errors=True, allow_inf_nan=False, protected_namespaces=()
    )

    dflash_enabled: bool = _field(False, "DFlash", "decode by speculation with a drafter", "DFlash", reload=True)
    dflash_draft_model: Name | None = _field(
        None, "Draft model", "Hub id or folder of a drafter that fits the model", "DFlash", reload=True
    )
    dflash_draft_quant_enabled: bool | None = _field(
        None, "Draft quantization", "quantise the drafter when it is loaded", "DFlash", reload=True
    )
    dflash_draft_quant_weight_bits: Literal[2, 4, 8] | None = _field(
        None, "Weight bits", "of the drafter's attention, MLP and fc", "DFlash", reload=True
    )
    dflash_draft_quant_activation_bits: Literal[16, 32] | None = _field(
        None, "Activation bits", "the drafter computes in bfloat16 (16) or float32 (32)", "DFlash", reload=True
    )
    dflash_draft_quant_group_size: Literal[32, 64, 128] | None = _field(
        None, "Group size", "weights that share a scale", "DFlash", reload=True
    )
    dflash_block_size: int | None = _whole(
        None,
        "Runtime block size",
        "tokens of a block, the anchor included, up to the checkpoint's; the most in mode adaptive; empty is automatic",
        "DFlash",
        ge=1,
    )
    dflash_verify_mode: VerifyMode | None = _field(
        None,
        "Verify mode",
        "adaptive: the block size follows what is measured, down to plain decoding; dflash: one block size; off: plain",
        "DFlash",
    )
    dflash_verify_precision: Literal["fast", "reference"] | None = _field(
        None,
        "Verify precision",
        "fast: a block in one pass; reference: one row at a time, as exact as plain decoding and no faster",
        "DFlash",
    )
    dflash_max_ctx: int | None = _whole(
        None,
        "Max context",
        "prompts of this many tokens or more decode plainly, that request only; empty is unlimited",
        "DFlash",
        ge=1,
        unit="tokens",
    )
    dflash_draft_window_size: int | None = _whole(
        None,
        "Draft window size",
        "last context tokens that the drafter sees; empty is the checkpoint's sliding window",
        "DFlash",
        reload=True,
        ge=2,
        unit="tokens",
    )
    dflash_draft_sink_size: int = _whole(
        0,
        "Draft sink size",
        "first context tokens that the drafter always sees",
        "DFlash",
        reload=True,
        ge=0,
        unit="tokens",
    )

    dflash_in_memory_cache: bool = _field(True, "In-memory cache", "keep prefix snapshots in memory", "Cache")
    dflash_in_memory_cache_max_entries: int = _whole(
        4, "In-memory cache max entries", "prefix snapshots that are kept at most", "Cache", ge=1, le=128
    )
    dflash_in_memory_cache_max_bytes: int = _whole(
        8 << 30,
        "In-memory cache size (GiB)",
        "the least recently used go first",
        "Cache",
        ge=0,
        le=_LARGEST,
        unit="bytes",
    )
    dflash_ssd_cache: bool = _field(
        False, "SSD cache", "keep snapshots on disk too; needs the in-memory cache", "Cache"
    )
    dflash_ssd_cache_max_bytes: int = _whole(
        20 << 30, "SSD cache size (GiB)", "the oldest go first", "Cache", ge=0, le=_LARGEST, unit="bytes"
    )

    max_context_window: int | None = _whole(
        None, "Max context window", "most tokens of prompt and answer; empty is the config's", "Context", ge=1,
        unit="tokens",
    )  # fmt: skip
    max_tokens: int | None = _whole(
        None, "Max tokens", "most tokens of an answer whose request names no number", "Context", ge=1, unit="tokens"
    )

    temperature: Temperature | None = _field(None, "Temperature", "0 is greedy", "Sampling", ge=0, le=100)
    top_p: float | None = _field(
        None, "Top-p", "keep the most likely tokens up to this mass", "Sampling", ge=1e-6, le=1
    )
    top_k: int | None = _whole(None, "Top-k", "keep this many of the most likely tokens; 0 is all", "Sampling", ge=0)
    min_p: float | None = _field(None, "Min-p", "drop tokens below this share of the likeliest", "Sampling", ge=0, le=1)
    repetition_penalty: float | None = _field(
        None, "Repetition penalty", "factor against recent tokens; 1 is off", "Sampling", ge=1e-3, le=100
    )
    presence_penalty: float | None = _field(
        None, "Presence penalty", "taken from tokens that occurred recently; 0 is off", "Sampling", ge=-2, le=2
    )
    enable_thinking: bool | None = _field(
        None, "Thinking", "where the chat template knows it; empty is the template's own", "Sampling"
    )
    chat_template_kwargs: JsonObject | None = _field(
        None, "Template arguments", "further arguments of the chat template, a JSON object", "Sampling"
    )

    model_alias: Name | None = _field(None, "Alias", "further name that requests may use", "Model")
    display_name: Name | None = _field(None, "Display name", "shown in the model manager", "Model")
    description: Text | None = _field(None, "Description", "shown in the model manager", "Model")
    is_default: bool = _field(False, "Default", "serves requests that name no model; loaded at start", "Model")
    is_pinned: bool = _field(False, "Pinned", "loaded at start, and never unloaded to make room", "Model")
    is_favorite: bool = _field(False, "Favorite", "listed first", "Model")
    is_hidden: bool = _field(False, "Hidden", "not listed in /v1/models", "Model")
    ttl_seconds: int | None = _whole(
        None, "Idle time (s)", "unloaded after so long without a request; empty is the server's", "Model", ge=1,
        unit="seconds",
    )  # fmt: skip
    trust_remote_code: bool = _field(
        False, "Trust remote code", "run Python code that comes with the checkpoint", "Model", reload=True
    )

    @property
    def draft_quant(self) -> str | None:
        """The short form of the drafter's quantisation, such as `w4a16:gs64`; None where it is not quantised."""
        if not self.dflash_draft_quant_enabled:
            return None
        names = ("weight_bits", "activation_bits", "group_size")
        fields = [f"dflash_draft_quant_{name}" for name in names]
        weight, activation, group = (getattr(self, name) or NULL_MEANS[name] for name in fields)
        return f"w{weight}a{activation}:gs{group}"

    @property
    def verify_mode(self) -> Literal["adaptive", "dflash", "off"]:
        """The mode that runs: null, and a mode that this version does not have yet, is adaptive."""
        mode = self.dflash_verify_mode
        return "adaptive" if mode is None or mode == "ddtree" else mode


def draft_quant_fields(short_form: str | None) -> dict[str, Any]:
    """The four fields that a short form such as `w4a16:gs64` stands for; None and "off" turn quantisation off.

    Raises RequestError (param `draft_quant`) for anything else.
    """
    prefix = "dflash_draft_quant_"
    if short_form is None or short_form in ("off", "none"):
        return {f"{prefix}enabled": False}
    match = _SHORT_FORM.fullmatch(short_form)
    if match is None:
        raise RequestError(
            f"draft_quant is {short_form!r}: write w(2|4|8)[a(16|32)][:gs(32|64|128)], such as w4a16:gs64, or off",
            param="draft_quant",
        )
    weight, activation, group = (int(part) if part else None for part in match.groups())
    return {
        f"{prefix}enabled": True,
        f"{prefix}weight_bits": weight,
        f"{prefix}activation_bits": activation,
        f"{prefix}group_size": group,
    }
