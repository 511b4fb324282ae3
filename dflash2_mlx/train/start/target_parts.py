"""What a drafter's layer can take over from a layer of its target, found by the names that families give."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
from mlx import nn

_ATTENTIONS = ("self_attn", "attn", "attention")
_MLPS = ("mlp", "feed_forward", "ffn")
# The drafter's names, and those of families, the likeliest first.
_OF_ATTENTION = {
    "q_proj": ("q_proj",),
    "k_proj": ("k_proj",),
    "v_proj": ("v_proj",),
    "o_proj": ("o_proj", "out_proj", "dense"),
}
_OF_MLP = {"gate_proj": ("gate_proj", "w1"), "up_proj": ("up_proj", "w3"), "down_proj": ("down_proj", "w2")}
_HEAD_NORMS = {"q_norm": ("q_norm", "q_layernorm"), "k_norm": ("k_norm", "k_layernorm")}
_INPUT_NORMS = ("input_layernorm", "operator_norm", "ln_1", "norm1")
# The norm before the MLP; where a family also norms outputs, `post_attention_layernorm` is such a one.
_MLP_NORMS = ("pre_feedforward_layernorm", "pre_ff_layernorm", "ffn_norm", "post_attention_layernorm", "ln_2", "norm2")

Shapes = Mapping[str, tuple[int, ...]]


def attention_of(layer: nn.Module) -> nn.Module | None:
    """The attention of a target's layer; None where it has none with separate projections (a recurrent one)."""
    attention = _child(layer, _ATTENTIONS)
    return attention if attention is not None and "q_proj" in attention else None


def parts_of(layer: nn.Module, shapes: Shapes) -> dict[str, mx.array]:
    """The tensors of a target's layer that fit, in float32 and unpacked, by the names of a drafter's layer.

    `shapes` are those of a drafter's layer. What the layer lacks, or has in another shape, is left out; so is a bias.
    """
    found: dict[str, mx.array | None] = {}
    attention, mlp = attention_of(layer), _child(layer, _MLPS)
    for name, norms in (("input_layernorm", _INPUT_NORMS), ("post_attention_layernorm", _MLP_NORMS)):
        found[f"{name}.weight"] = norm_scale(_child(layer, norms), shapes[f"{name}.weight"][0])
    if attention is not None:
        for name, names in _OF_ATTENTION.items():
            found[f"self_attn.{name}.weight"] = _matrix(_child(attention, names))
        for name, names in _HEAD_NORMS.items():
            found[f"self_attn.{name}.weight"] = norm_scale(
                _child(attention, names), shapes[f"self_attn.{name}.weight"][0]
            )
        _take_queries(found, shapes)
    if mlp is not None:
        for name, names in _OF_MLP.items():
            found[f"mlp.{name}.weight"] = _matrix(_child(mlp, names))
    return {name: value for name, value in found.items() if value is not None and value.shape == shapes[name]}


def norm_scale(norm: nn.Module | None, width: int) -> mx.array | None:
    """The weights (width,) by which a norm scales, be it centred at zero or one; None where it has none such."""
    weight = None if norm is None else norm.get("weight")
    if norm is None or weight is None or weight.shape != (width,):
        return None
    # Rows of ones with alternating signs are normed already, by a LayerNorm too, whose bias cancels out.
    signs = mx.where(mx.arange(width) % 2 == 0, 1.0, -1.0)
    scale: mx.array = (norm(signs) - norm(-signs)).astype(mx.float32) / 2 * signs
    return scale


def attention_scale(layer: nn.Module, head_dim: int) -> float:
    """By how much a target's layer scales its scores more than a drafter does."""
    scale = getattr(attention_of(layer), "scale", None)
    return float(scale) * head_dim**0.5 if isinstance(scale, int | float) else 1.0


def _take_queries(found: dict[str, mx.array | None], shapes: Shapes) -> None:
    """Some families lay each head's gate behind its queries, in one matrix of twice the rows."""
    name = "self_attn.q_proj.weight"
    rows, width = shapes[name]
    queries, head_dim = found[name], shapes["self_attn.q_norm.weight"][0]
    if queries is not None and queries.shape == (2 * rows, width):
        found[name] = queries.reshape(-1, 2 * head_dim, width)[:, :head_dim].reshape(rows, width)


def _matrix(module: nn.Module | None) -> mx.array | None:
    if isinstance(module, nn.QuantizedLinear):
        packing = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        return mx.dequantize(module.weight, module.scales, module.get("biases"), **packing).astype(mx.float32)
    weight = None if module is None else module.get("weight")
    return None if weight is None or not mx.issubdtype(weight.dtype, mx.floating) else weight.astype(mx.float32)


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    found = (module[name] for name in names if name in module)
    return next((child for child in found if isinstance(child, nn.Module)), None)
