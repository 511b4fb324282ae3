"""The path selector: score every adjacent pair of candidates at once, then walk the lattice on the device."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

# Width of the blocks of the two-stage top-k. Both stages then sort at most a few thousand numbers a row, which a GPU
# does in one threadgroup, where a vocabulary of 248,320 needs many passes.
_BLOCK = 64


def top_candidates(logits: mx.array, k: int) -> tuple[mx.array, mx.array]:
    """The ids and logits (R, k), in no particular order, of the k largest of each row of `logits` (R, V).

    Exact: an entry of the top k lies in one of the k blocks with the largest maxima.
    """
    rows, vocab = logits.shape
    if vocab <= k * _BLOCK:
        ids = mx.argpartition(logits, kth=-k, axis=-1)[:, -k:]
        return ids, mx.take_along_axis(logits, ids, axis=-1)
    if vocab % _BLOCK:
        logits = mx.pad(logits, [(0, 0), (0, -vocab % _BLOCK)], constant_values=-mx.inf)
    blocks = logits.reshape(rows, -1, _BLOCK)
    best = mx.argpartition(blocks.max(axis=-1), kth=-k, axis=-1)[:, -k:]  # (R, k) block numbers
    values = mx.take_along_axis(blocks, best[:, :, None], axis=1).reshape(rows, -1)
    ids = (best[:, :, None] * _BLOCK + mx.arange(_BLOCK, dtype=best.dtype)).reshape(rows, -1)
    inner = mx.argpartition(values, kth=-k, axis=-1)[:, -k:]
    ids = mx.take_along_axis(ids, inner, axis=-1)
    if vocab % _BLOCK:
        # The padding is reached where a row has fewer than k finite logits; its ids would read past the codebooks.
        ids = mx.minimum(ids, vocab - 1)
    return ids, mx.take_along_axis(values, inner, axis=-1)


class CandidateSelector(nn.Module):
    """Low-rank scores of adjacent candidates, gated by the row's hidden state."""

    def __init__(self, hidden_size: int, vocab_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = nn.Embedding(vocab_size, rank)
        self.successor_codebook = nn.Embedding(vocab_size, rank)
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def scores(self, hidden: mx.array, candidates: mx.array, unary: mx.array, anchor: mx.array) -> mx.array:
        """S[t, a, b] (R, k, k): candidate b of row t after candidate a of row t-1, in float32.

        `hidden` (R, H), `candidates` and their logits `unary` (R, k), `anchor` (1,): the only predecessor of row 0,
        whose k rows of scores are therefore equal.
        """
        k = candidates.shape[1]
        first = mx.broadcast_to(anchor.astype(candidates.dtype), (1, k))
        predecessors = mx.concatenate([first, candidates[:-1]])
        gate = self.hidden_projection(hidden)[:, None]  # (R, 1, r)
        left = self.predecessor_codebook(predecessors) * gate
        right = self.successor_codebook(candidates)
        edges: mx.array = left @ right.swapaxes(1, 2)
        return unary[:, None] + edges.astype(mx.float32)


def walk(successor: mx.array) -> mx.array:
    """Follow `successor` (R, k), the choice at row t for each choice at row t-1, from row 0 on: (R,) indices.

    Composed by doubling, so that 15 rows cost 4 steps on the device and not 15.
    """
    rows = successor.shape[0]
    step = 1
    while step < rows:
        composed = mx.take_along_axis(successor[step:], successor[:-step], axis=1)
        successor = mx.concatenate([successor[:step], composed])
        step *= 2
    return successor[:, 0]
