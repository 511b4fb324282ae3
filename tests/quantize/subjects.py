"""Tiny drafters on disk that any group size up to 64 divides, in every layout, and a fitting target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.facts import INDEX
from tests.tiny_drafters import drafter_weights

Config = dict[str, Any]

DFLASH2: Config = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 96,
    "rms_norm_eps": 2e-5,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    "num_target_layers": 6,
    "torch_dtype": "bfloat16",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "own_key": {"kept": True},
    "dflash_config": {
        "block_size": 4,
        "target_layer_ids": [0, 4],
        "mask_token_id": 60,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 16,
        "selector_top_k": 4,
        "output_multiplier": 0.7,
    },
}
_METHOD = DFLASH2["dflash_config"]
DFLASH1: Config = {
    **{key: value for key, value in DFLASH2.items() if key not in ("layer_types", "sliding_window")},
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {key: _METHOD[key] for key in ("block_size", "target_layer_ids", "mask_token_id")},
}
# The same drafter, its keys at the top level.
FLAT: Config = {
    **{key: value for key, value in DFLASH2.items() if key not in ("dflash_config", "rope_parameters")},
    **_METHOD,
    "rope_theta": 5000.0,
}
# `drafter_weights` reads the method's keys nested.
WEIGHTS_OF = {id(FLAT): DFLASH2}

CANDIDATES = [
    "fc",
    *(f"layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "qkvo"),
    *(f"layers.{i}.mlp.{name}_proj" for i in range(2) for name in ("gate", "up", "down")),
]
CODEBOOKS = [f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor")]


def write(
    folder: Path, config: Config = DFLASH2, dtype: mx.Dtype = mx.bfloat16, weights: dict[str, mx.array] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is None:
        weights = drafter_weights(WEIGHTS_OF.get(id(config), config), dtype=dtype)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def write_shards(folder: Path, config: Config = DFLASH2, dtype: mx.Dtype = mx.bfloat16) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = drafter_weights(config, dtype=dtype)
    names, index = sorted(weights), {}
    for i in range(2):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in names[i::2]})
        index.update(dict.fromkeys(names[i::2], file))
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    return folder


def packed_weights(weights: dict[str, mx.array], modules: list[str], bits: int, group_size: int) -> dict[str, mx.array]:
    """The tensors with some modules packed as MLX packs them, codebooks renamed as it names them."""
    out = dict(weights)
    for module in modules:
        name = module if module in CODEBOOKS else f"{module}.weight"
        parts = mx.quantize(out.pop(name), bits=bits, group_size=group_size)
        out.update({f"{module}.{part}": a for part, a in zip(("weight", "scales", "biases"), parts, strict=True)})
    return out


def parameters(drafter: Drafter) -> dict[str, mx.array]:
    found: Any = tree_flatten(drafter.model.parameters())
    return dict(found)


def module_packing(drafter: Drafter) -> dict[str, tuple[int, int]]:
    """(bits, group size) of every packed module."""
    named: Any = tree_flatten(drafter.model.leaf_modules(), is_leaf=nn.Module.is_module)
    return {
        name: (m.bits, m.group_size) for name, m in named if isinstance(m, nn.QuantizedLinear | nn.QuantizedEmbedding)
    }


def same(a: Drafter, b: Drafter) -> bool:
    """Whether all parameters are equal, bit for bit, in equal dtypes."""
    ours, theirs = parameters(a), parameters(b)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and bool(mx.array_equal(ours[name], theirs[name])) for name in ours
    )
