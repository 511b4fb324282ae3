"""Keys and values of context rows for all layers of a drafter, in one matrix product after `fc`."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from .fused import join
from .model import DraftModel


class LayerKV:
    """Turns tapped rows into the keys and values of every layer.

    The joined matrix is a copy of all k_proj and v_proj, about 3 % of a published drafter: the block's own rows read
    them joined with q_proj, layer by layer, and no order of rows serves both.
    """

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        attention = [layer.self_attn for layer in model.layers]
        self._norms = mx.stack([a.k_norm.weight for a in attention])[:, None, None]  # (layers, 1, 1, D)
        self._product = join([linear for a in attention for linear in (a.k_proj, a.v_proj)], share=False)

    def __call__(self, taps: Sequence[mx.array], position: int) -> tuple[mx.array, mx.array]:
        """Keys and values (layers, h, n, D) of the tapped rows, each (1, n, H), at positions position…"""
        config = self._model.config
        dtype = self._norms.dtype
        features = self._model.context_features([tap[0].astype(dtype) for tap in taps])
        shape = (-1, config.num_hidden_layers, 2, config.num_key_value_heads, config.head_dim)
        keys, values = self._product(features).reshape(shape).transpose(2, 1, 3, 0, 4)  # (2, layers, h, n, D)
        keys = mx.fast.rms_norm(keys, None, config.rms_norm_eps) * self._norms
        return self._model.rope(keys, offset=position), values
