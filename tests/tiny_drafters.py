"""Random drafter checkpoints in the published layout, no field at its default, that fit a tiny target."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from tests.tiny import target_sizes

Config = dict[str, Any]

# the fields that live inside `dflash_config`; all others stand at the top level
NESTED = (
    "block_size",
    "target_layer_ids",
    "mask_token_id",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "output_multiplier",
    "final_logit_softcapping",
    "input_embedding_scale",
)
V1_ONLY_DROPS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def tiny_drafter_config(target: nn.Module, **overrides: Any) -> Config:
    """A DFlash 2 config that fits `target`; an override goes where it belongs, None removes the field."""
    hidden, layers, vocab = target_sizes(target)
    config: Config = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "intermediate_size": 40,
        "vocab_size": vocab,
        "rms_norm_eps": 2e-5,
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "num_target_layers": layers,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 16,
        "use_sliding_window": True,
        "is_causal": False,
        "dflash_config": {
            "block_size": 6,
            "target_layer_ids": sorted({0, layers // 2, layers - 1}),
            "mask_token_id": vocab - 3,
            "conv_kernel_size": 2,
            "conv_group_size": 4,
            "selector_rank": 8,
            "selector_top_k": 4,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 15.0,
            "input_embedding_scale": 1.3,
        },
    }
    return _override(config, overrides)


def tiny_v1_config(target: nn.Module, **overrides: Any) -> Config:
    """A DFlash (v1) config: no convolution, no selector, and by default no `layer_types`, as published."""
    v1: Config = {"architectures": ["DFlashDraftModel"], "layer_types": None, "sliding_window": None}
    return tiny_drafter_config(target, **{**v1, **dict.fromkeys(V1_ONLY_DROPS), **overrides})


def _override(config: Config, overrides: Config) -> Config:
    for name, value in overrides.items():
        place = config["dflash_config"] if name in NESTED else config
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    if (types := config.get("layer_types")) is not None:
        config["num_hidden_layers"] = len(types)
    return config


def drafter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a published checkpoint with this config."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    dflash = config["dflash_config"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(dflash["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        of_layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (keys, hidden),
            "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.q_norm.weight": (config["head_dim"],),
            "self_attn.k_norm.weight": (config["head_dim"],),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if "conv_kernel_size" in dflash:
            taps, group = dflash["conv_kernel_size"], dflash["conv_group_size"]
            for conv in ("attention_conv", "mlp_conv"):
                of_layer[f"{conv}.base_kernel"] = (2, taps, hidden)
                of_layer[f"{conv}.kernel_projection.weight"] = (2 * taps * (hidden // group), hidden)
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in of_layer.items()})
    if "selector_rank" in dflash:
        rank, vocab = dflash["selector_rank"], config["vocab_size"]
        shapes["candidate_selector.predecessor_codebook"] = (vocab, rank)
        shapes["candidate_selector.successor_codebook"] = (vocab, rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    return shapes


def drafter_weights(config: Config, seed: int = 0, dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    """Random weights for `drafter_shapes`, each tensor by its own key."""
    weights = {}
    for name, shape in drafter_shapes(config).items():
        key = mx.random.key(seed * 1_000_003 + zlib.crc32(name.encode()) % 1_000_003)
        weights[name] = _draw(name, mx.random.normal(shape, key=key)).astype(dtype)
    return weights


def _draw(name: str, noise: mx.array) -> mx.array:
    if name.endswith("base_kernel"):
        identity = (mx.arange(noise.shape[1]) == 0)[:, None]
        return 0.5 * noise + identity  # as a trained one, near it
    if noise.ndim == 1:
        return 1.0 + 0.3 * noise
    if name.endswith("codebook"):
        return noise
    return noise * (1.5 / noise.shape[-1] ** 0.5)


def write_drafter(path: Path, config: Config, seed: int = 0, dtype: mx.Dtype = mx.float32) -> Path:
    """Writes a checkpoint folder, `config.json` and `model.safetensors`, and gives it back."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    mx.save_safetensors(str(path / "model.safetensors"), drafter_weights(config, seed, dtype))
    return path
