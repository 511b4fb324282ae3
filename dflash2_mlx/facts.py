"""What a checkpoint is and what it will need, from its config and the headers of its weight files alone."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dflash2_mlx.errors import CheckpointError

if TYPE_CHECKING:
    from dflash2_mlx.drafter.config import DrafterConfig
    from dflash2_mlx.drafter.quantization import QuantSpec

CONTEXT = 8192  # tokens for which the caches are estimated
INDEX = "model.safetensors.index.json"
# Names that families give to the embedding.
EMBEDDINGS = ("embed_tokens", "embeddings", "embedding", "wte", "embed_in", "tok_embeddings", "word_embeddings")
# Above this share of the available memory the system begins to push others out.
_TIGHT = 0.8
_HALF = 2  # bytes of a bfloat16 or float16 number
_STATE_BYTES = 4  # recurrent states are float32
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The largest header of published checkpoints is below 10 MB: a larger figure is no safetensors file.
_LARGEST_HEADER = 100_000_000
# Parts of a checkpoint that mlx-lm leaves out of a text model.
_NOT_TEXT = ("vision", "visual", "audio", "multi_modal_projector", "mm_projector", "mtp")
# Rows of a drafter's context are made room for in doublings of this many.
_CONTEXT_STEP = 256
# What families call attention to everything.
_FULL = ("full_attention", "chunked_attention", "attention")
_PATTERN = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "mlp"}  # of `hybrid_override_pattern`


class Tensor(NamedTuple):
    """A tensor as a file declares it; `size` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int


Tensors = Mapping[str, Tensor]


def weight_files(folder: Path) -> list[Path]:
    """The `.safetensors` files that are the model: those of the index, else those that mlx-lm would read, else all.

    Raises CheckpointError when there is none, or the index is damaged or names one that is missing.
    """
    found = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    if index.exists():
        named = _indexed(index)
        missing = sorted(named - {file.name for file in found})
        if missing:
            raise CheckpointError(f"{folder} lacks {missing}: it is there only in part, download it again")
        return [file for file in found if file.name in named]
    if not found:
        raise CheckpointError(f"no .safetensors file in {folder}: the model is not there, or only in part")
    return [file for file in found if file.name.startswith("model")] or found


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a model, by name; no weights are read.

    Raises CheckpointError as `weight_files` does, and for a file that is damaged or shorter than its header says.
    """
    return {name: tensor for file in weight_files(folder) for name, tensor in _header(file).items()}


def embedding_rows(found: Tensors) -> int | None:
    """The rows of the embedding table, which is the vocabulary that a model computes with."""
    weight = _embedding(found, "weight")
    return weight.shape[0] if weight is not None and weight.shape else None


def compute_bytes(found: Tensors, dtype: str | None = None) -> int:
    """Bytes of one number that the model computes with: of `dtype` (float32, bfloat16, float16), else as stored."""
    if dtype is not None:
        return _DTYPE_BYTES[dtype]
    table = _embedding(found, "scales") or _embedding(found, "weight")
    return _HALF if table is None else _FLOAT_BYTES.get(table.dtype, _HALF)


def target_bytes(found: Tensors, config: Mapping[str, Any], *, dtype: str | None = None, unpacked: bool = False) -> int:
    """Bytes of a target's weights once loaded, computing in `dtype`; `unpacked`: its packed matrices become plain."""
    item = compute_bytes(found, dtype)
    eights = any(name.endswith("weight_scale_inv") for name in found)  # mlx-lm unpacks such float8 weights
    total = 0
    for name, tensor in found.items():
        module, _, kind = name.rpartition(".")
        if not _is_loaded(name, config) or kind == "weight_scale_inv":
            continue
        scales = found.get(f"{module}.scales") if unpacked else None
        if scales is not None and kind == "weight":
            total += math.prod(scales.shape) * _group_size(config, module) * item
        elif scales is not None and kind in ("scales", "biases"):
            continue
        elif eights and tensor.dtype.startswith("F8"):
            total += math.prod(tensor.shape) * item
        else:
            total += _cast(tensor, item) if dtype is not None else tensor.size
    return total


def drafter_bytes(found: Tensors, spec: QuantSpec | None = None, *, item: int = _HALF) -> int:
    """Bytes of a drafter's weights once loaded, computing in numbers of `item` bytes (see `drafter_item`).

    A spec packs attention, MLP and `fc`, a scale and a bias for each group. What is stored packed stays as it is.
    """
    total = 0
    for name, tensor in found.items():
        packs = tensor.dtype in _FLOAT_BYTES and (name.endswith("_proj.weight") or name == "fc.weight")
        if spec is not None and packs:
            total += round(math.prod(tensor.shape) * (spec.weight_bits / 8 + 2 * item / spec.group_size))
        else:
            total += _cast(tensor, item)
    return total


def drafter_item(spec: QuantSpec | None, target_item: int) -> int:
    """Bytes of one number that a drafter computes with: of the spec, else of its target."""
    return spec.activation_bits // 8 if spec else target_item


def context_bytes(config: DrafterConfig, context: int = CONTEXT, item: int = _HALF) -> int:
    """Bytes of a drafter's context after `context` tokens: keys and values of each layer, as far as it sees."""
    rows = _CONTEXT_STEP
    while rows < context:
        rows *= 2
    windows = [config.window(kind) for kind in config.layer_types]
    seen = sum(rows if window is None else min(rows, window - 1) for window in windows)
    return seen * 2 * config.num_key_value_heads * config.head_dim * item


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config: vision models nest it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def context_length(config: Mapping[str, Any]) -> int | None:
    """The most positions that a config allows; None where it does not tell."""
    text = text_config(config)
    for name in ("max_position_embeddings", "model_max_length", "n_positions", "max_sequence_length", "seq_length"):
        if _number(text, name):
            return _number(text, name)
    return None


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """The attention of each layer, as the config's `layer_types` calls them."""
    text = text_config(config)
    layers = _number(text, "num_hidden_layers")
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return [str(kind) for kind in kinds]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_PATTERN.get(letter, "mlp") for letter in pattern]
    for name, others in (
        ("full_attention_interval", "linear_attention"),
        ("sliding_window_pattern", "sliding_attention"),
    ):
        every = _number(text, name) or _number(text, f"_{name}")
        if every:
            return ["full_attention" if (i + 1) % every == 0 else others for i in range(layers)]
    recurrent = "state_size" in text and not _number(text, "num_attention_heads")
    return ["mamba" if recurrent else "full_attention"] * layers


def cache_bytes(config: Mapping[str, Any], context: int = CONTEXT, item: int = _HALF) -> int:
    """Bytes of a target's caches after `context` tokens, numbers of `item` bytes; 0 where the config does not tell."""
    text = text_config(config)
    kinds = layer_kinds(config)
    own = len(kinds) - _number(text, "num_kv_shared_layers")  # the last layers may share what others keep
    return sum(_layer_bytes(text, kind, context, item) for kind in kinds[:own])


def verdict(needed: int, available: int | None) -> Literal["fits", "tight", "does not fit", "unknown"]:
    """Whether what is needed fits into what is available, in bytes."""
    if available is None:
        return "unknown"
    if needed <= _TIGHT * available:
        return "fits"
    return "tight" if needed <= available else "does not fit"


def _layer_bytes(text: Mapping[str, Any], kind: str, context: int, item: int) -> int:
    if kind == "mlp":
        return 0
    window = _number(text, "sliding_window") or context
    rows = {"sliding_attention": min(window, context), **dict.fromkeys(_FULL, context)}
    if kind not in rows:
        return _state_bytes(text, kind, item)
    # Some families have a recurrence beside the attention of each layer.
    beside = _state_bytes(text, "mamba", item) if "mamba_n_heads" in text and "layer_types" not in text else 0
    return rows[kind] * _row(text, kind) * item + beside


def _row(text: Mapping[str, Any], kind: str) -> int:
    """How many numbers a layer keeps of one token."""
    heads = _number(text, "num_attention_heads")
    latent = _number(text, "kv_lora_rank")
    if latent and text.get("model_type") == "deepseek_v2":  # keeps its keys and values spread out
        return heads * sum(_number(text, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if latent:
        return latent + _number(text, "qk_rope_head_dim") + 2 * _number(text, "index_head_dim")
    kv_heads = _number(text, "num_key_value_heads") or heads
    dim = _number(text, "head_dim") or (_number(text, "hidden_size") // heads if heads else 0)
    if kind == "full_attention" and _number(text, "global_head_dim"):
        dim = _number(text, "global_head_dim")
        if text.get("attention_k_eq_v"):
            kv_heads = _number(text, "num_global_key_value_heads") or kv_heads
    return 2 * kv_heads * dim


def _state_bytes(text: Mapping[str, Any], kind: str, item: int) -> int:
    """The recurrent state of one layer with the rows that its convolution keeps, whatever the context."""
    if kind == "conv":
        return (_number(text, "conv_L_cache") - 1) * _number(text, "hidden_size") * item
    if "linear_num_value_heads" in text:
        heads, dim = _number(text, "linear_num_value_heads"), _number(text, "linear_value_head_dim")
        key_dim = _number(text, "linear_key_head_dim")
        channels = heads * dim + 2 * _number(text, "linear_num_key_heads") * key_dim
        taps, state = _number(text, "linear_conv_kernel_dim"), heads * key_dim * dim
    else:
        heads = _number(text, "mamba_n_heads", "mamba_num_heads", "num_heads")
        dim = _number(text, "mamba_d_head", "mamba_head_dim", "head_dim")
        size = _number(text, "mamba_d_state", "ssm_state_size", "state_size")
        channels = heads * dim + 2 * size * _number(text, "mamba_n_groups", "n_groups")
        taps, state = _number(text, "mamba_d_conv", "conv_kernel"), heads * dim * size
    return state * _STATE_BYTES + max(taps - 1, 0) * channels * item


def _number(text: Mapping[str, Any], *names: str) -> int:
    """The first of those keys that holds a number; 0 without one."""
    found = (text.get(name) for name in names)
    return next((int(value) for value in found if isinstance(value, int | float) and value == value), 0)


def _cast(tensor: Tensor, item: int) -> int:
    return math.prod(tensor.shape) * item if tensor.dtype in _FLOAT_BYTES else tensor.size


def _is_loaded(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a text model of mlx-lm has that tensor."""
    parts = name.split(".")
    if any(part.startswith(word) for part in parts[:3] for word in _NOT_TEXT) or parts[-1] == "inv_freq":
        return False
    tied = text_config(config).get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return not (tied and "lm_head" in parts)


def _embedding(found: Tensors, kind: str) -> Tensor | None:
    ends = tuple(f"{name}.{kind}" for name in EMBEDDINGS)
    return next((tensor for name, tensor in found.items() if name.endswith(ends) and _is_loaded(name, {})), None)


def _group_size(config: Mapping[str, Any], module: str) -> int:
    packing = config.get("quantization")
    own = packing.get(module) if isinstance(packing, Mapping) else None
    return next((int(p["group_size"]) for p in (own, packing) if isinstance(p, Mapping) and "group_size" in p), 1)


def _indexed(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of shards ({error!r}): download it again") from None


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
