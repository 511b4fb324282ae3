"""Keys and values of context rows for all layers of a drafter in one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx import nn

from .model import DraftModel


class LayerKV:
    """Context rows to the keys and values of every layer.

    Where all layers pack k_proj and v_proj alike, their matrices are joined into one and the modules' own parameters
    become views of it; otherwise each layer's product stands alone.
    """

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._eps = model.config.rms_norm_eps
        attention = [layer.self_attn for layer in model.layers]
        self._norms = mx.stack([a.k_norm.weight for a in attention])[:, None, None]  # (layers, 1, 1, D)
        self._linears = [linear for a in attention for linear in (a.k_proj, a.v_proj)]
        self._joined = _join(self._linears)

    def __call__(self, taps: Sequence[mx.array], position: int) -> tuple[mx.array, mx.array]:
        """Keys and values (layers, h, n, D) of the tapped rows, each (1, n, H), at positions position…"""
        config = self._model.config
        features = self._model.context_features([tap.astype(self._norms.dtype) for tap in taps])
        rows = features.shape[1]
        if self._joined is not None:
            out = self._joined(features)
        else:
            out = mx.concatenate([linear(features) for linear in self._linears], axis=-1)
        shape = (rows, config.num_hidden_layers, 2, config.num_key_value_heads, config.head_dim)
        keys, values = out.reshape(shape).transpose(2, 1, 3, 0, 4)  # (2, layers, h, n, D)
        keys = mx.fast.rms_norm(keys, None, self._eps) * self._norms
        return self._model.rope(keys, offset=position), values


def _join(linears: list[nn.Module]) -> Callable[[mx.array], mx.array] | None:
    """One product whose output is that of all `linears` side by side; None where they are packed differently."""
    first = linears[0]
    packing = {(type(m), getattr(m, "bits", 0), getattr(m, "group_size", 0), getattr(m, "mode", "")) for m in linears}
    if len(packing) > 1 or type(first) not in (nn.Linear, nn.QuantizedLinear):
        return None
    parts = {
        name: mx.concatenate([m[name] for m in linears])
        for name in ("weight", "scales", "biases")
        if first.get(name) is not None
    }
    mx.eval(parts)
    row = 0
    for module in linears:
        end = row + module["weight"].shape[0]
        for name, joined in parts.items():
            module[name] = joined[row:end]
        row = end
    if isinstance(first, nn.Linear):
        weight = parts["weight"].T
        return lambda x: x @ weight
    packed = {"group_size": first.group_size, "bits": first.bits, "mode": first.mode}
    return lambda x: mx.quantized_matmul(
        x, parts["weight"], parts["scales"], parts.get("biases"), transpose=True, **packed
    )
