"""A drafter at work without a target: random taps, a random embedding and head, and everything it computes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.propose import Drafter

ANCHOR = 5


class Ends:
    """What a drafter borrows of a target: an embedding and a head of the right size."""

    embed_scale = 1.0
    dtype = mx.float32

    def __init__(self, hidden: int, vocab: int) -> None:
        keys = mx.random.split(mx.random.key(77), 2)
        self._table = mx.random.normal((vocab, hidden), key=keys[0])
        self._head = mx.random.normal((hidden, vocab), key=keys[1]) / hidden**0.5

    def embed(self, ids: mx.array) -> mx.array:
        return self._table[ids]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self._head.astype(hidden.dtype)


def ends_for(drafter: Drafter) -> Ends:
    return Ends(drafter.config.hidden_size, drafter.config.vocab_size)


def random_taps(drafter: Drafter, rows: int, seed: int = 0) -> list[mx.array]:
    keys = mx.random.split(mx.random.key(1000 + seed), len(drafter.config.target_layer_ids))
    return [mx.random.normal((1, rows, drafter.config.hidden_size), key=key) for key in keys]


def filled(drafter: Drafter, rows: int = 7) -> DraftContext:
    """A context of random rows."""
    context = drafter.new_context()
    context.append(random_taps(drafter, rows), 0)
    return context


def outputs(drafter: Drafter) -> np.ndarray:
    """Hidden rows, logits and, in DFlash 2, scores of one block, flat."""
    ends, context, anchor = ends_for(drafter), filled(drafter), mx.array([ANCHOR])
    width = drafter.config.block_size
    hidden = drafter.hidden(ends, context, anchor, width)
    parts = [hidden, drafter.logits(ends, hidden)]
    if drafter.config.is_dflash2:
        lattice = drafter.lattice(ends, context, anchor, width)
        order = mx.argsort(lattice.candidates, axis=-1)
        before = mx.concatenate([mx.zeros_like(order[:1]), order[:-1]])
        scores = mx.take_along_axis(lattice.scores, before[:, :, None], axis=1)
        parts += [mx.sort(lattice.candidates, axis=-1), mx.take_along_axis(scores, order[:, None], axis=2)]
    return np.concatenate([np.array(part.astype(mx.float32)).reshape(-1) for part in parts])
