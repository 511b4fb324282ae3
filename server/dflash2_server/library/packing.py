"""How a checkpoint is quantised, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash2_mlx.drafter.config import DrafterConfig
from dflash2_mlx.facts import Tensors, text_config

_MLX = ("affine", None)


def describe(config: Mapping[str, Any]) -> str | None:
    """Such as "4-bit, group 64", "mixed 4/8-bit, group 32" or "4-bit mxfp4, group 32"; None: not quantised."""
    for place in (config, text_config(config)):
        own = place.get("quantization")
        if isinstance(own, Mapping) and isinstance(own.get("bits"), int):
            return _of_mlx(own)
        foreign = place.get("quantization_config")
        if isinstance(foreign, Mapping) and (foreign.get("quant_method") or foreign.get("bits")):
            return _of_others(foreign)
    return None


def describe_drafter(weights: Tensors, config: DrafterConfig | None) -> str | None:
    """The same of a drafter whose config says nothing: packed modules come with scales."""
    name = "layers.0.self_attn.q_proj"
    weight, scales = weights.get(f"{name}.weight"), weights.get(f"{name}.scales")
    if weight is None or scales is None or config is None:
        return None
    bits = weight.shape[-1] * 32 // config.hidden_size  # packed in words of 32 bits
    return f"{bits}-bit, group {config.hidden_size // scales.shape[-1]}"


def _of_mlx(packing: Mapping[str, Any]) -> str:
    modules = [value for value in packing.values() if isinstance(value, Mapping)]
    bits = {value["bits"] for value in (packing, *modules) if isinstance(value.get("bits"), int)}
    width = f"{packing['bits']}-bit" if len(bits) == 1 else f"mixed {'/'.join(map(str, sorted(bits)))}-bit"
    mode = packing.get("mode")
    kind = "" if mode in _MLX else f" {mode}"
    group = packing.get("group_size")
    return f"{width}{kind}" + (f", group {group}" if group else "")


def _of_others(packing: Mapping[str, Any]) -> str:
    method = str(packing.get("quant_method") or "quantised")
    bits, group = packing.get("bits"), packing.get("group_size")
    return ", ".join([method, *([f"{bits}-bit"] if bits else []), *([f"group {group}"] if group else [])])
