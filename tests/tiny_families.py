"""The configs of the tiny random targets: one function a family, each giving the model's own config dict.

Nothing is at its default where a default could hide a mistake. Weights are in `tests.tiny`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HIDDEN = 32
VOCAB = 256

Config = dict[str, Any]

_ATTENTION: Config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_BASE: Config = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    **_ATTENTION,
}
_EXPERTS: Config = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
_DELTA_NET: Config = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}


def alternating(layers: int, *, period: int) -> list[str]:
    """Every `period`-th layer sees everything, the others slide."""
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


def llama(window: int) -> Config:
    return {"model_type": "llama", **_BASE, "rope_theta": 5000.0, "tie_word_embeddings": True}


def llama_untied(window: int) -> Config:
    return {**llama(window), "tie_word_embeddings": False}


def llama_sliding(window: int) -> Config:
    types = alternating(4, period=2)
    return {**llama(window), "layer_types": types, "sliding_window": window, "tie_word_embeddings": False}


def qwen3(window: int) -> Config:
    return {"model_type": "qwen3", **_BASE, "rope_theta": 5000.0, "tie_word_embeddings": True}


def qwen3_moe(window: int) -> Config:
    sparse: Config = {"decoder_sparse_step": 1, "mlp_only_layers": [1]}
    return {
        "model_type": "qwen3_moe",
        **_BASE,
        **_EXPERTS,
        **sparse,
        "rope_theta": 5000.0,
        "tie_word_embeddings": False,
    }


def _qwen3_5_text() -> Config:
    rope: Config = {"type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    return {**_BASE, **_DELTA_NET, "rope_parameters": rope, "tie_word_embeddings": False}


def qwen3_5(window: int) -> Config:
    text = {
        "model_type": "qwen3_5_text",
        **_qwen3_5_text(),
        "num_hidden_layers": 6,
        "full_attention_interval": 3,
    }
    return {"model_type": "qwen3_5", "text_config": text}


def qwen3_5_moe(window: int) -> Config:
    sparse: Config = {"decoder_sparse_step": 1, "shared_expert_intermediate_size": 20}
    text = {"model_type": "qwen3_5_moe_text", **_qwen3_5_text(), **_EXPERTS, **sparse}
    return {"model_type": "qwen3_5_moe", "text_config": text}


def qwen3_next(window: int) -> Config:
    sparse: Config = {"decoder_sparse_step": 1, "mlp_only_layers": [], "shared_expert_intermediate_size": 20}
    rope: Config = {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    return {"model_type": "qwen3_next", **_BASE, **_EXPERTS, **_DELTA_NET, **sparse, **rope}


def _gemma4(window: int, **text: Any) -> Config:
    config = {
        "model_type": "gemma4_text",
        **_BASE,
        "global_head_dim": 24,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "sliding_window": window,
        "layer_types": alternating(4, period=2),
        "final_logit_softcapping": 25.0,
        **text,
    }
    config["num_hidden_layers"] = len(config["layer_types"])
    return {"model_type": "gemma4", "text_config": config, "vocab_size": VOCAB}


def gemma4(window: int) -> Config:
    return _gemma4(window, attention_k_eq_v=True, num_global_key_value_heads=1)


def gemma4_shared(window: int) -> Config:
    """The last two layers have no keys of their own, so there are fewer caches than layers."""
    return _gemma4(window, num_kv_shared_layers=2)


def gemma4_per_layer(window: int) -> Config:
    per_layer: Config = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
    return _gemma4(window, num_kv_shared_layers=1, layer_types=alternating(5, period=2), **per_layer)


def gemma4_moe(window: int) -> Config:
    experts: Config = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
    return _gemma4(window, enable_moe_block=True, **experts)


def gpt_oss(window: int) -> Config:
    yarn: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    return {
        "model_type": "gpt_oss",
        **{key: value for key, value in _BASE.items() if key != "max_position_embeddings"},
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": window,
        "rope_theta": 5000.0,
        "rope_scaling": yarn,
        "layer_types": alternating(4, period=2),
    }


def muse_glimmer(window: int) -> Config:
    return {
        "model_type": "muse_glimmer",
        **_BASE,
        "sliding_window": window,
        "qk_scale_factor": 2.5,
        "rope_theta": 5000.0,
        "layer_types": alternating(4, period=4),
        "final_logit_softcapping": 22.0,
        "output_multiplier": 0.6,
    }


def laguna(window: int) -> Config:
    yarn: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    return {
        "model_type": "laguna",
        **_BASE,
        **{key: value for key, value in _EXPERTS.items() if key != "norm_topk_prob"},
        "num_hidden_layers": 5,
        "num_attention_heads_per_layer": [2, 4, 4, 2, 4],
        "shared_expert_intermediate_size": 20,
        "sliding_window": window,
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "rope_parameters": {
            "full_attention": {**yarn, "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
        },
    }


def gemma3_text(window: int) -> Config:
    sliding: Config = {"sliding_window": window, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20}
    return {"model_type": "gemma3_text", **_BASE, **sliding, "rope_theta": 5000.0}


def lfm2(window: int) -> Config:
    return {
        "model_type": "lfm2",
        **{key: value for key, value in _BASE.items() if key != "rms_norm_eps"},
        "norm_eps": 1e-5,
        "conv_bias": True,
        "conv_L_cache": 3,
        "block_dim": HIDDEN,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention", "conv", "full_attention", "conv"],
        "rope_theta": 5000.0,
    }


def mamba2(window: int) -> Config:
    return {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 4,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")],
        "time_step_rank": "auto",
    }


def falcon_h1(window: int) -> Config:
    """Every layer holds a `CacheList`: a recurrent state and keys and values side by side."""
    mamba: Config = {"mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8}
    heads: Config = {"mamba_n_groups": 2, "mamba_n_heads": 4, "mamba_rms_norm": True}
    tail: Config = {"rope_theta": 5000.0, "tie_word_embeddings": False}
    return {"model_type": "falcon_h1", **_BASE, **mamba, **heads, **tail}


# the families the issue names, with their variants
NAMED: dict[str, Callable[[int], Config]] = {
    "llama": llama,
    "llama_untied": llama_untied,
    "llama_sliding": llama_sliding,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_next": qwen3_next,
    "gemma4": gemma4,
    "gemma4_shared": gemma4_shared,
    "gemma4_per_layer": gemma4_per_layer,
    "gemma4_moe": gemma4_moe,
    "gpt_oss": gpt_oss,
    "muse_glimmer": muse_glimmer,
    "laguna": laguna,
}

# families nobody listed whose caches are of known kinds
OTHERS: dict[str, Callable[[int], Config]] = {
    "gemma3_text": gemma3_text,
    "lfm2": lfm2,
    "mamba2": mamba2,
    "falcon_h1": falcon_h1,
}
