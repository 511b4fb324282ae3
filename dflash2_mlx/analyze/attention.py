"""How much of its attention a block pays to itself: recomputed from what each layer's attention was given."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from ..drafter.context import DraftContext
from ..drafter.model import KV, Attention, DecoderLayer, Rope
from ..drafter.propose import Drafter
from ..target.adapter import Target
from .variants import with_layers


@dataclass(frozen=True)
class Shares:
    """Of one block: the attention's share on block rows (layers, heads, B); `even` (layers, B) if all were equal."""

    block: np.ndarray
    even: np.ndarray


class _Witness(nn.Module):
    """An attention that tells what it is asked and passes it on."""

    def __init__(self, inner: Attention, tell: Callable[[mx.array, mx.array], None]) -> None:
        super().__init__()
        self.inner = inner
        self.tell = tell

    def __call__(self, x: mx.array, context: KV, mask: mx.array, rope: Rope, offset: mx.array | int) -> mx.array:
        self.tell(block_share(self.inner, x, context[0], mask, rope, offset), even_share(mask))
        return self.inner(x, context, mask, rope, offset)


class AttentionWatch:
    """A twin of a drafter that reports its attention; the served one is not touched."""

    def __init__(self, drafter: Drafter) -> None:
        self._told: list[tuple[mx.array, mx.array]] = []
        self._twin = with_layers(drafter, self._watched)

    def shares(self, target: Target, context: DraftContext, anchor: int, width: int) -> Shares:
        """Of the block of `width` rows whose anchor is the token `anchor`, after `context`."""
        self._told.clear()
        mx.eval(self._twin.hidden(target, context, mx.array([anchor]), width), self._told)
        block, even = (np.stack([np.array(told[i]) for told in self._told]) for i in range(2))
        self._told.clear()
        return Shares(block, even)

    def _watched(self, layer: DecoderLayer) -> DecoderLayer:
        twin = copy(layer)
        twin.self_attn = _Witness(layer.self_attn, lambda block, even: self._told.append((block, even)))  # type: ignore[assignment]
        return twin


def block_share(
    attention: Attention, x: mx.array, context_keys: mx.array, mask: mx.array, rope: Rope, offset: mx.array | int
) -> mx.array:
    """The share (heads, B) of each row's attention that falls on block rows, in float32.

    `x` (B, H) at positions offset…, `context_keys` (1, h, C, D) already normed and rotated, `mask` (B, C+B).
    """
    rows = x.shape[-2]
    queries = _heads(attention.q_proj(x), attention.n_heads, attention.q_norm, rope, offset)
    own = _heads(attention.k_proj(x), attention.n_kv_heads, attention.k_norm, rope, offset)
    keys = mx.concatenate([context_keys[0], own], axis=1)
    keys = mx.repeat(keys, attention.n_heads // attention.n_kv_heads, axis=0)  # (heads, C+B, D)
    logits = (queries @ keys.swapaxes(1, 2)).astype(mx.float32) * attention.scale
    weights = mx.softmax(mx.where(mask, logits, -mx.inf), axis=-1)
    return weights[..., -rows:].sum(axis=-1)


def even_share(mask: mx.array) -> mx.array:
    """The share (B,) on block rows if each row's attention were spread evenly over what it sees; `mask` (B, C+B)."""
    seen = mask.astype(mx.float32)
    return seen[:, -mask.shape[0] :].sum(axis=-1) / seen.sum(axis=-1)


def _heads(projected: mx.array, heads: int, norm: nn.Module, rope: Rope, offset: mx.array | int) -> mx.array:
    """(B, heads * D) to normed and rotated (heads, B, D)."""
    rows = projected.shape[-2]
    turned: mx.array = rope(norm(projected.reshape(rows, heads, -1).swapaxes(0, 1)[None]), offset=offset)[0]
    return turned
