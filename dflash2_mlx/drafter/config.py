"""A drafter's config: read from the nested and the flat layout, strict about what it does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, RequestError

DFLASH1 = "DFlashDraftModel"
DFLASH2 = "DFlash2DraftModel"
SLIDING = "sliding_attention"
FULL = "full_attention"

# Every key that `dflash_config` may hold. An unknown one is refused: an ignored multiplier changes the logits
# without a message.
_METHOD_KEYS = frozenset(
    {
        "block_size",
        "target_layer_ids",
        "mask_token_id",
        "num_target_layers",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
        "output_multiplier",
        "final_logit_softcapping",
        "input_embedding_scale",
        "is_causal",
    }
)


@dataclass(frozen=True)
class DrafterConfig:
    """The fields that decide a drafter's computation; names are the checkpoint's own keys."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int | None
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    mask_token_id: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    output_multiplier: float
    final_logit_softcapping: float | None
    input_embedding_scale: float
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    # Not of the checkpoint: what `narrowed` sets.
    full_window: int | None = None  # of layers that do not slide
    sink: int = 0

    @property
    def is_dflash2(self) -> bool:
        """With path selector, convolution or both (all published ones); otherwise the first DFlash."""
        return self.has_selector or self.has_conv

    @property
    def has_selector(self) -> bool:
        return self.selector_rank > 0

    @property
    def has_conv(self) -> bool:
        return self.conv_kernel_size > 0

    @property
    def engine(self) -> str:
        return "dflash2" if self.is_dflash2 else "dflash"

    def causal(self, layer_type: str) -> bool:
        """Whether a block row of such a layer sees only itself and earlier block rows."""
        return layer_type == SLIDING if self.is_causal is None else self.is_causal

    def window(self, layer_type: str) -> int | None:
        """Distance below which a context row is visible; None: always."""
        return self.sliding_window if layer_type == SLIDING else self.full_window

    def sinks(self, layer_type: str) -> int:
        """How many of the first context rows are visible at any distance, where there is a window at all."""
        return 0 if self.window(layer_type) is None else self.sink

    @property
    def context_rows(self) -> int | None:
        """The most context rows, besides `sink_rows`, that any block row can see; None: all of them."""
        windows = [self.window(kind) for kind in self.layer_types]
        known = [window for window in windows if window is not None]
        return max(known) - 1 if len(known) == len(windows) else None

    @property
    def sink_rows(self) -> int:
        """How many of the first rows any layer needs at any distance."""
        return max(self.sinks(kind) for kind in self.layer_types)


def is_drafter(config: Mapping[str, Any]) -> bool:
    """Recognise a drafter by its config, never by its name."""
    architectures = config.get("architectures") or []
    return "dflash_config" in config or any(a in (DFLASH1, DFLASH2) for a in architectures)


def read_config(folder: Path) -> dict[str, Any]:
    """The raw `config.json` of a checkpoint folder."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"no config.json in {folder}: not a model folder") from None
    except ValueError as error:  # not JSON, or not even text
        raise CheckpointError(f"{path} is not valid JSON ({error}): download it again") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds {type(config).__name__}, expected an object")
    return config


def parse_config(raw: Mapping[str, Any]) -> DrafterConfig:
    """Read a drafter's config, keys nested (`dflash_config`, `rope_parameters`) or flat.

    Raises CheckpointError, naming the key, for what is missing, unknown or out of range.
    """
    if not is_drafter(raw):
        raise CheckpointError(
            f"architectures {raw.get('architectures')} without `dflash_config`: this is no DFlash drafter; "
            "give it as the target (--model) instead"
        )
    keys = _Keys(raw)
    layers = keys.integer("num_hidden_layers")
    second = keys.is_dflash2()
    theta, scaling = keys.rope()
    config = DrafterConfig(
        hidden_size=keys.integer("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=keys.integer("num_attention_heads"),
        num_key_value_heads=keys.integer("num_key_value_heads"),
        head_dim=keys.integer("head_dim"),
        intermediate_size=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        rms_norm_eps=keys.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=keys.integer("max_position_embeddings") if scaling else None,
        block_size=keys.integer("block_size"),
        target_layer_ids=keys.layer_ids(),
        num_target_layers=keys.integer("num_target_layers"),
        mask_token_id=keys.integer("mask_token_id", least=0),
        layer_types=keys.layer_types(layers),
        sliding_window=keys.sliding_window(layers),
        is_causal=keys.flag("is_causal"),
        output_multiplier=keys.number("output_multiplier", 1.0),
        final_logit_softcapping=keys.optional_number("final_logit_softcapping"),
        input_embedding_scale=keys.number("input_embedding_scale", 1.0),
        conv_kernel_size=keys.integer("conv_kernel_size", least=0) if second else 0,
        conv_group_size=keys.integer("conv_group_size", least=0) if second else 0,
        selector_rank=keys.integer("selector_rank", least=0) if second else 0,
        selector_top_k=keys.integer("selector_top_k", least=0) if second else 0,
    )
    _check_ranges(config)
    return config


def narrowed(config: DrafterConfig, window: int | None, sink: int) -> DrafterConfig:
    """With layers that see context rows below distance `window`, and the first `sink` rows at any distance.

    None leaves each layer its own window. Raises RequestError (param draft_window or draft_sink) for a window in which
    no context lies, and for one beyond the checkpoint's: the drafter was never trained on such distances.
    """
    if sink < 0:
        raise RequestError(f"draft sink {sink}: it counts context rows, 0 or more", param="draft_sink")
    if window is None:
        return replace(config, sink=sink)
    if window < 2:
        raise RequestError(
            f"draft window {window}: the drafter would see nothing of the text; use 2 or more", param="draft_window"
        )
    own = config.sliding_window
    if own is not None and window > own:
        raise RequestError(
            f"draft window {window} is beyond the checkpoint's sliding_window {own}, on which it was trained: "
            f"use {own} or less",
            param="draft_window",
        )
    return replace(config, sliding_window=None if own is None else window, full_window=window, sink=sink)


class _Keys:
    """Look-ups in a config whose method keys may be nested or flat."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        method = raw.get("dflash_config")
        self.raw = raw
        self.method: Mapping[str, Any] = method if isinstance(method, Mapping) else {}
        unknown = sorted(set(self.method) - _METHOD_KEYS)
        if unknown:
            raise CheckpointError(f"dflash_config has unknown keys {unknown}: this version would ignore them")
        if raw.get("attention_bias"):
            raise CheckpointError("attention_bias true: drafters with attention biases are not supported")
        if raw.get("hidden_act") not in (None, "silu"):
            raise CheckpointError(f"hidden_act {raw['hidden_act']!r}: only 'silu' is supported")

    def get(self, name: str) -> Any:
        nested = self.method.get(name)
        return nested if nested is not None else self.raw.get(name)

    def is_dflash2(self) -> bool:
        architectures = self.raw.get("architectures") or []
        if DFLASH2 in architectures:
            return True
        return DFLASH1 not in architectures and bool(self.get("selector_rank"))

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None:
            if default is None:
                raise CheckpointError(f"the drafter's config has no {name!r}, which has no default")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CheckpointError(f"{name} is {value!r}, expected a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) or None if self.get(name) is not None else None

    def integer(self, name: str, *, least: int = 1) -> int:
        value = self.number(name)
        if value != int(value) or value < least:
            raise CheckpointError(f"{name} is {value!r}, expected a whole number of at least {least}")
        return int(value)

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{name} is {value!r}, expected true or false")
        return value

    def rope(self) -> tuple[float, dict[str, Any] | None]:
        """(theta, scaling or None), from `rope_parameters` or the flat keys."""
        nested, scaling = (self.raw.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
        for name, value in (("rope_parameters", nested), ("rope_scaling", scaling)):
            if not isinstance(value, Mapping):
                raise CheckpointError(f"{name} is {value!r}, expected an object")
            if value.get("partial_rotary_factor", 1) != 1:
                raise CheckpointError(
                    f"{name} has partial_rotary_factor {value['partial_rotary_factor']}: only 1 is known"
                )
        thetas = (place.get("rope_theta") for place in (nested, self.raw, scaling))
        theta = next((theta for theta in thetas if theta is not None), None)
        if not isinstance(theta, int | float) or isinstance(theta, bool) or theta <= 0:
            raise CheckpointError(
                f"rope_theta is {theta!r}: it must be a positive number, flat or in rope_parameters, "
                "since a default would ruin long contexts"
            )
        scaling = scaling or nested
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        return float(theta), None if kind == "default" else dict(scaling)

    def layer_ids(self) -> tuple[int, ...]:
        ids = self.get("target_layer_ids")
        depth = self.integer("num_target_layers")
        if not isinstance(ids, list) or not ids or any(type(i) not in (int, float) or i % 1 != 0 for i in ids):
            raise CheckpointError(f"target_layer_ids is {ids!r}, expected a list of layer numbers")
        out = [int(i) for i in ids]
        bad = [i for i in out if not 0 <= i < depth]
        if bad or len(set(out)) != len(out):
            raise CheckpointError(f"target_layer_ids {out}: need distinct numbers from 0 to {depth - 1}")
        return tuple(out)

    def layer_types(self, layers: int) -> tuple[str, ...]:
        types = self.raw.get("layer_types") or [FULL] * layers
        if len(types) != layers or not set(types) <= {FULL, SLIDING}:
            raise CheckpointError(f"layer_types {types}: need {layers} of {FULL!r} or {SLIDING!r}")
        return tuple(types)

    def sliding_window(self, layers: int) -> int | None:
        if SLIDING not in self.layer_types(layers):
            return None
        return self.integer("sliding_window", least=2)


def _check_ranges(config: DrafterConfig) -> None:
    if config.block_size < 2:
        raise CheckpointError(f"block_size is {config.block_size}: a block needs the anchor and one draft at least")
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"num_attention_heads {config.num_attention_heads} is no multiple of num_key_value_heads "
            f"{config.num_key_value_heads}"
        )
    if config.mask_token_id >= config.vocab_size:
        raise CheckpointError(f"mask_token_id {config.mask_token_id} is past vocab_size {config.vocab_size}")
    if config.has_conv and (config.conv_group_size < 1 or config.hidden_size % config.conv_group_size):
        raise CheckpointError(
            f"hidden_size {config.hidden_size} is no multiple of conv_group_size {config.conv_group_size}"
        )
    if config.has_selector and config.selector_top_k < 1:
        raise CheckpointError("selector_top_k is 0: a selector needs candidates; without one selector_rank is 0 too")
    if config.selector_top_k > config.vocab_size:
        raise CheckpointError(f"selector_top_k {config.selector_top_k} is past vocab_size {config.vocab_size}")
