"""What a checkpoint is and what it will need, from its config and the headers of its weight files alone."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dflash2_mlx.errors import CheckpointError

CONTEXT = 8192  # tokens for which the caches are estimated
_CACHE_BYTES = 2  # of a bfloat16 entry
_STATE_BYTES = 4  # recurrent states are float32
# The largest header of published checkpoints is below 10 MB: a larger figure is no safetensors file.
_LARGEST_HEADER = 100_000_000


class Tensor(NamedTuple):
    """A tensor as a file declares it; `size` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor in the `.safetensors` files of a folder, by name; no weights are read.

    Raises CheckpointError when there is no such file, or one is damaged or shorter than its header says.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"no .safetensors file in {folder}: the model is not there, or only in part")
    return {name: tensor for file in files for name, tensor in _header(file).items()}


def weight_bytes(folder: Path) -> int:
    return sum(tensor.size for tensor in tensors(folder).values())


def packed_bytes(folder: Path, bits: int, group_size: int) -> int:
    """Bytes of a drafter once its attention, MLP and `fc` are quantised, a scale and a bias for each group.

    What is stored packed stays as it is.
    """
    total = 0
    for name, tensor in tensors(folder).items():
        packs = tensor.dtype != "U32" and (name.endswith("_proj.weight") or name == "fc.weight")
        total += round(math.prod(tensor.shape) * (bits / 8 + 4 / group_size)) if packs else tensor.size
    return total


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config: vision models nest it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """The attention of each layer, as the config's `layer_types` calls them."""
    text = text_config(config)
    layers = int(text.get("num_hidden_layers") or 0)
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return [str(kind) for kind in kinds]
    every = text.get("full_attention_interval")
    if every:
        return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    return ["full_attention"] * layers


def cache_bytes(config: Mapping[str, Any], context: int = CONTEXT) -> int:
    """Bytes of a target's caches after `context` tokens; 0 where the config does not tell."""
    text = text_config(config)
    heads = int(text.get("num_attention_heads") or 0)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or (int(text.get("hidden_size") or 0) // heads if heads else 0))
    row = 2 * kv_heads * head_dim * _CACHE_BYTES
    window = int(text.get("sliding_window") or context)
    rows = {
        "sliding_attention": min(window, context),
        "chunked_attention": context,
        "full_attention": context,
    }
    kinds = layer_kinds(config)
    return sum(_state_bytes(text) if kind not in rows else row * rows[kind] for kind in kinds)


def _state_bytes(text: Mapping[str, Any]) -> int:
    """The recurrent state of one layer, whatever the context."""
    sizes = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    return math.prod(int(text.get(name) or 0) for name in sizes) * _STATE_BYTES


def _header(file: Path) -> dict[str, Tensor]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _LARGEST_HEADER:
                raise ValueError("its header is too long")
            entries = json.loads(stream.read(length))
        found = {
            name: Tensor(entry["dtype"], tuple(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in entries.items()
            if name != "__metadata__"
        }
        missing = 8 + length + sum(tensor.size for tensor in found.values()) - file.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{file} is no readable safetensors file ({error}): download it again") from error
    if missing > 0:
        raise CheckpointError(f"{file} is {missing} bytes too short: download it again")
    return found
