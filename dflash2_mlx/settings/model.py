"""The settings of one model: oMLX's names, values and defaults. Labels, limits and what needs a reload stand here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Group = Literal["DFlash", "Cache", "Sampling", "Context", "Model"]


def _field(default: Any, label: str, description: str, group: Group, *, reload: bool = False, **limits: Any) -> Any:
    """`reload`: a loaded model has to be loaded again for it."""
    return Field(
        default, title=label, description=description, json_schema_extra={"group": group, "reload": reload}, **limits
    )


class ModelSettings(BaseModel):
    """What is set for one model. Unknown keys are kept (`model_extra`) and shown as ignored."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, hide_input_in_errors=True)

    dflash_enabled: bool = _field(False, "DFlash", "decode by speculation with a drafter", "DFlash", reload=True)
    dflash_draft_model: str | None = _field(
        None, "Draft model", "Hub id or folder of a drafter that fits the model", "DFlash", reload=True
    )
    dflash_draft_quant_enabled: bool | None = _field(
        None, "Draft quantization", "quantise the drafter when it is loaded", "DFlash", reload=True
    )
    dflash_draft_quant_weight_bits: Literal[2, 4, 8] | None = _field(
        None, "Weight bits", "of the drafter's attention, MLP and fc", "DFlash", reload=True
    )
    dflash_draft_quant_activation_bits: Literal[16, 32] | None = _field(
        None, "Activation bits", "16 is bfloat16, 32 float32", "DFlash", reload=True
    )
    dflash_draft_quant_group_size: Literal[32, 64, 128] | None = _field(
        None, "Group size", "weights that share a scale", "DFlash", reload=True
    )
    dflash_block_size: int | None = _field(
        None, "Runtime block size", "1 to the checkpoint's, the anchor included; empty is automatic", "DFlash", ge=1
    )
    dflash_verify_mode: Literal["adaptive", "dflash", "ddtree", "off"] | None = _field(
        None, "Verify mode", "how blocks are verified; off decodes plainly with the drafter loaded", "DFlash"
    )
    dflash_max_ctx: int | None = _field(
        None, "Max context", "prompts of so many tokens or more decode plainly, that request only", "DFlash", ge=1
    )
    dflash_draft_window_size: int | None = _field(
        None, "Draft window size", "context tokens that the drafter sees; empty is the checkpoint's", "DFlash",
        reload=True, ge=1,
    )  # fmt: skip
    dflash_draft_sink_size: int = _field(
        0, "Draft sink size", "first context tokens that the drafter always sees", "DFlash", reload=True, ge=0
    )
    dflash_in_memory_cache: bool = _field(True, "In-memory cache", "keep prefixes in memory", "Cache")
    dflash_in_memory_cache_max_entries: int = _field(
        4, "In-memory cache max entries", "prefixes that are kept at most", "Cache", ge=1, le=128
    )
    dflash_in_memory_cache_max_bytes: int = _field(
        8 << 30, "In-memory cache size (GiB)", "the least recently used go first", "Cache", ge=0
    )
    dflash_ssd_cache: bool = _field(False, "SSD cache", "keep on disk what leaves the in-memory cache", "Cache")
    dflash_ssd_cache_max_bytes: int = _field(20 << 30, "SSD cache size (GiB)", "the oldest go first", "Cache", ge=0)

    max_context_window: int | None = _field(None, "Max context window", "tokens of prompt and answer", "Context", ge=1)
    max_tokens: int | None = _field(None, "Max tokens", "of an answer whose request names no number", "Context", ge=1)
    temperature: float | None = _field(None, "Temperature", "0 is greedy", "Sampling", ge=0, le=100)
    top_p: float | None = _field(None, "Top-p", "nucleus", "Sampling", gt=0, le=1)
    top_k: int | None = _field(None, "Top-k", "0 is off", "Sampling", ge=0)
    min_p: float | None = _field(None, "Min-p", "relative to the likeliest token", "Sampling", ge=0, le=1)
    repetition_penalty: float | None = _field(None, "Repetition penalty", "1 is off", "Sampling", gt=0)
    presence_penalty: float | None = _field(None, "Presence penalty", "0 is off", "Sampling", ge=-2, le=2)
    enable_thinking: bool | None = _field(None, "Thinking", "where the template knows it", "Sampling")
    chat_template_kwargs: dict[str, Any] | None = _field(
        None, "Template arguments", "given to the chat template", "Sampling"
    )

    model_alias: str | None = _field(None, "Alias", "further name that requests may use", "Model", min_length=1)
    display_name: str | None = _field(None, "Display name", "shown in the model manager", "Model")
    description: str | None = _field(None, "Description", "shown in the model manager", "Model")
    is_default: bool = _field(False, "Default", "serves requests that name no model, loaded at start", "Model")
    is_pinned: bool = _field(False, "Pinned", "loaded at start, never unloaded to make room", "Model")
    is_favorite: bool = _field(False, "Favorite", "listed first", "Model")
    is_hidden: bool = _field(False, "Hidden", "not listed in /v1/models", "Model")
    ttl_seconds: int | None = _field(None, "Idle time (s)", "unloaded after so long without a request", "Model", ge=1)
    trust_remote_code: bool = _field(
        False, "Trust remote code", "run Python that comes with the checkpoint", "Model", reload=True
    )
