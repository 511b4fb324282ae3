"""The configs of published drafters, as far as they decide what is computed, at full size and reduced."""

from __future__ import annotations

import copy
from typing import Any

Config = dict[str, Any]

_ATTENTION: Config = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
_DFLASH2: Config = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
}
_SLIDING: Config = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "is_causal": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "dtype": "bfloat16",
}

QWEN38: Config = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    **_ATTENTION,
    **_SLIDING,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "rms_norm_eps": 1e-06,
    "num_target_layers": 64,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        **_DFLASH2,
    },
}

MUSE: Config = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    **_ATTENTION,
    **_SLIDING,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "vocab_size": 202048,
    "rms_norm_eps": 1e-05,
    "num_target_layers": 52,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 201818,
        "target_layer_ids": [1, 13, 25, 37, 49],
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 20.0,
        **_DFLASH2,
    },
}

# the first generation: flat rope and block size, no layer types, no window
QWEN3_4B: Config = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    **_ATTENTION,
    "num_hidden_layers": 5,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-06,
    "num_target_layers": 36,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}

PUBLISHED: dict[str, Config] = {"qwen38": QWEN38, "muse": MUSE, "qwen3-4b": QWEN3_4B}


def reduced(config: Config) -> Config:
    """The same config at a width that a test can run: all ratios and method fields stay, sizes shrink."""
    small = copy.deepcopy(config)
    small.update(hidden_size=64, intermediate_size=96, vocab_size=512)
    small.update(num_attention_heads=4, num_key_value_heads=1, head_dim=16)
    small["dflash_config"]["mask_token_id"] = 500
    if "selector_rank" in small["dflash_config"]:
        small["dflash_config"]["selector_rank"] = 24
    return small
