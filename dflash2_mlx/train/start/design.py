"""A drafter's config for a target: the shape that was asked for, the rest as the target has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...drafter.config import DFLASH1, DFLASH2, FULL, SLIDING, DrafterConfig, parse_config
from ...errors import RequestError
from ...facts import context_length, text_config
from ...pairs import TargetFacts
from ..recipe.values import Shape
from ..wording import counted
from .mask_token import choose_mask_token

_TAPS = 5  # as every published drafter has
_CONV_KERNEL = 2  # rows that a convolution sees, as in the published drafters
_EPS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps")
_DEFAULT_EPS = 1e-6
_DEFAULT_THETA = 10000.0
_DEFAULT_CONTEXT = 32768  # where neither a target nor its rope tells; without rope scaling it has no effect
# Scalings that every reader of a drafter computes alike. Without one, positions stay right: rope is relative.
_SCALINGS = ("linear", "llama3", "yarn")
# Of families that scale the table's rows inside their forward, where `Target.embed_scale` does not tell of it.
_ROOT_SCALED = ("gemma", "gemma2", "gemma3_text", "gemma3n_text")
_EMBEDDING_SCALES = {"granite": "embedding_multiplier", "minicpm": "scale_emb", "phi3small": "mup_embedding_multiplier"}


def design(shape: Shape, target_config: Mapping[str, Any], facts: TargetFacts, tokenizer: Any = None) -> DrafterConfig:
    """The config of a drafter of that shape for the target of that config (the text model may be nested) and facts.

    Heads, rope, eps, the width of the MLP and the scales of embedding and logits are the target's where it has such.
    `tokenizer` (None: there is none) decides the mask token where the shape does not. Raises RequestError, whose param
    is the shape's field, for a value that cannot be.
    """
    text = text_config(target_config)
    _check(shape, facts)
    heads, kv_heads, head_dim = _heads(text, facts.hidden_size)
    theta, scaling = _rope(text)
    sliding = 0 if shape.window is None else shape.layers - shape.full_layers
    mask = shape.mask_token
    return DrafterConfig(
        hidden_size=facts.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=shape.intermediate_size or _whole(text, "intermediate_size") or 3 * facts.hidden_size,
        vocab_size=facts.vocab_size,
        rms_norm_eps=next((float(text[name]) for name in _EPS if _number(text, name)), _DEFAULT_EPS),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=(context_length(text) or _scaled_context(scaling)) if scaling else None,
        block_size=shape.block_size,
        target_layer_ids=default_taps(facts.num_layers) if shape.taps is None else shape.taps,
        num_target_layers=facts.num_layers,
        mask_token_id=choose_mask_token(tokenizer, facts.vocab_size) if mask is None else mask,
        layer_types=(SLIDING,) * sliding + (FULL,) * (shape.layers - sliding),
        sliding_window=shape.window if sliding else None,
        is_causal=shape.causal,
        output_multiplier=_output_multiplier(text, facts.hidden_size),
        final_logit_softcapping=_number(text, "final_logit_softcapping", "logits_soft_cap"),
        input_embedding_scale=_embedding_scale(text, facts.hidden_size),
        conv_kernel_size=_CONV_KERNEL if shape.convolution else 0,
        conv_group_size=shape.conv_group_size if shape.convolution else 0,
        selector_rank=shape.selector_rank if shape.selector else 0,
        selector_top_k=shape.selector_top_k if shape.selector else 0,
    )


def default_taps(layers: int) -> tuple[int, ...]:
    """The layers to tap of a target with so many: five, evenly from near a thirteenth of the depth to the last but two.

    So 5, 19, 33, 47, 61 of 64, as published. A shallow target has fewer, and the last but one counts too.
    """
    last = layers - 3 if layers >= 2 * _TAPS else layers - 1
    first = min(max(1, round(layers / 13)), last)
    return tuple(spread(first, last, min(_TAPS, last - first + 1)))


def spread(first: int, last: int, count: int) -> list[int]:
    """`count` whole numbers, evenly from `first` to `last`; one alone is the last."""
    if count == 1:
        return [last]
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]


def published_config(config: DrafterConfig, dtype: Any = "bfloat16") -> dict[str, Any]:
    """`config.json` in the published layout, weights in `dtype` (a name or mx.Dtype); `parse_config` reads it back.

    What `narrowed` sets is of a session and left out.
    """
    method: dict[str, Any] = {
        "block_size": config.block_size,
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.mask_token_id,
    }
    if config.is_dflash2:
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        method |= {name: getattr(config, name) for name in names}
    neutral = {"output_multiplier": 1.0, "final_logit_softcapping": None, "input_embedding_scale": 1.0}
    method |= {name: getattr(config, name) for name, none in neutral.items() if getattr(config, name) != none}
    raw: dict[str, Any] = {
        "architectures": [DFLASH2 if config.is_dflash2 else DFLASH1],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "max_position_embeddings": config.max_position_embeddings or _DEFAULT_CONTEXT,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("mlx.core."),
        "num_target_layers": config.num_target_layers,
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "use_sliding_window": SLIDING in config.layer_types,
        "dflash_config": method,
    }
    return raw if config.is_causal is None else raw | {"is_causal": config.is_causal}


def differences(first: DrafterConfig, second: DrafterConfig) -> list[str]:
    """The fields of two configs that differ, each with both values."""
    one, other = (parse_config(published_config(config)) for config in (first, second))
    return [
        f"{name}: {value!r} and {getattr(other, name)!r}"
        for name, value in vars(one).items()
        if value != getattr(other, name)
    ]


def _check(shape: Shape, facts: TargetFacts) -> None:
    hidden, layers, vocabulary = facts
    least = {"layers": 1, "block_size": 2, "window": 2, "full_layers": 0, "intermediate_size": 1, "mask_token": 0}
    if shape.convolution:
        least |= {"conv_group_size": 1}
    if shape.selector:
        least |= {"selector_rank": 1, "selector_top_k": 2}
    for name, low in least.items():
        value = getattr(shape, name)
        if value is not None and value < low:
            raise _refusal(name, f"{value}: use {low} or more")
    if shape.full_layers > shape.layers:
        there = counted(shape.layers, "layer")
        raise _refusal("full_layers", f"{shape.full_layers} of {there}: use {shape.layers} or less")
    if shape.mask_token is not None and shape.mask_token >= vocabulary:
        raise _refusal("mask_token", f"{shape.mask_token}: the target has {vocabulary} tokens, use a smaller id")
    if shape.selector and shape.selector_top_k > vocabulary:
        raise _refusal("selector_top_k", f"{shape.selector_top_k}: the target has {vocabulary} tokens")
    if shape.convolution and hidden % shape.conv_group_size:
        fitting = [size for size in range(1, min(hidden, 128) + 1) if hidden % size == 0]
        raise _refusal("conv_group_size", f"{shape.conv_group_size} does not divide {hidden}: use one of {fitting}")
    if shape.taps is not None:
        _check_taps(shape.taps, layers)


def _check_taps(taps: Sequence[int], layers: int) -> None:
    shown = ",".join(map(str, taps))
    if not taps:
        raise _refusal("taps", "none: name one target layer at least, or leave it to the default")
    if any(not 0 <= tap < layers for tap in taps):
        raise _refusal("taps", f"{shown}: the target has {layers} layers, 0 to {layers - 1}")
    if len(set(taps)) != len(taps):
        raise _refusal("taps", f"{shown}: a layer is named twice")


def _heads(text: Mapping[str, Any], hidden: int) -> tuple[int, int, int]:
    """Heads, key and value heads, their width: the target's, or plain ones where its attention is of another kind."""
    heads, kv_heads = _whole(text, "num_attention_heads"), _whole(text, "num_key_value_heads")
    if heads and not text.get("kv_lora_rank"):
        dim = _whole(text, "head_dim") or hidden // heads
        kv_heads = kv_heads or heads
        if dim and dim % 2 == 0 and heads % kv_heads == 0:
            return heads, kv_heads, dim
    dim = next((dim for dim in (128, 64, 32, 16) if hidden % dim == 0 and hidden // dim >= 4), 16)
    heads = max(1, hidden // dim)
    return heads, max(n for n in range(1, max(1, heads // 4) + 1) if heads % n == 0), dim


def _rope(text: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling or None) of the layers that see everything."""
    nested = text.get("rope_parameters") or {}
    if isinstance(nested.get("full_attention"), Mapping):
        nested = nested["full_attention"]
    scaling = text.get("rope_scaling") or nested
    thetas = (_number(place, "rope_theta") for place in (nested, text, scaling))
    theta = next((theta for theta in thetas if theta), _DEFAULT_THETA)
    if scaling.get("rope_type", scaling.get("type")) not in _SCALINGS:
        return theta, None
    # The drafter rotates whole heads, and its theta stands beside.
    kept = {key: value for key, value in scaling.items() if key not in ("partial_rotary_factor", "rope_theta")}
    return theta, kept


def _scaled_context(scaling: Mapping[str, Any]) -> int:
    own = _whole(scaling, "original_max_position_embeddings")
    return int(own * scaling.get("factor", 1)) if own else _DEFAULT_CONTEXT


def _output_multiplier(text: Mapping[str, Any], hidden: int) -> float:
    """What the family does to its raw head's logits, before any softcap."""
    divisor, base = _number(text, "logits_scaling"), _number(text, "dim_model_base")
    if divisor:
        return 1 / divisor
    return base / hidden if base else _number(text, "output_multiplier", "logit_scale") or 1.0


def _embedding_scale(text: Mapping[str, Any], hidden: int) -> float:
    family = str(text.get("model_type"))
    if family in _ROOT_SCALED:
        return float(hidden**0.5)
    names = (name for start, name in _EMBEDDING_SCALES.items() if family.startswith(start))
    return _number(text, *names) or 1.0


def _number(text: Mapping[str, Any], *names: str) -> float | None:
    """The first of those keys that holds a number other than 0."""
    found = (text.get(name) for name in names)
    return next((float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and v), None)


def _whole(text: Mapping[str, Any], name: str) -> int | None:
    value = _number(text, name)
    return int(value) if value is not None and value == int(value) and value > 0 else None


def _refusal(name: str, message: str) -> RequestError:
    return RequestError(f"{name.replace('_', ' ')} {message}", param=name)
