"""Where the selector starts: tokens along the leading directions of the target's embedding, and an open gate."""

from __future__ import annotations

import mlx.core as mx

from ...target.adapter import Target

_SAMPLE = 8192  # rows of the table that tell its directions
_NOISE = 0.1  # of the gate
_CHUNK = 4096  # rows that are projected at once: the whole table in float32 would be large


def leading_directions(target: Target, rank: int, key: mx.array) -> mx.array:
    """(V, rank) float32: each direction has mean 0 and variance 1 over the sample. Beyond H directions it is noise."""
    drawn, noise = mx.random.split(key)
    vocabulary, width = target.vocab_size, target.hidden_size
    sample = _rows(target, mx.random.permutation(vocabulary, key=drawn)[:_SAMPLE])
    mean = sample.mean(axis=0)
    centred = sample - mean
    # MLX has eigh on the CPU alone.
    values, vectors = mx.linalg.eigh(centred.T @ centred / len(sample), stream=mx.cpu)
    taken = min(rank, width)
    scales = mx.sqrt(mx.maximum(values[-taken:], 1e-12))
    directions = vectors[:, -taken:] / scales
    parts = []
    for first in range(0, vocabulary, _CHUNK):
        ids = mx.arange(first, min(first + _CHUNK, vocabulary))
        parts.append((_rows(target, ids) - mean) @ directions)
        mx.eval(parts[-1])
    codes = mx.concatenate(parts)
    if taken < rank:
        codes = mx.concatenate([codes, mx.random.normal((vocabulary, rank - taken), key=noise)], axis=1)
    return codes


def open_gate(hidden: mx.array, rank: int, key: mx.array) -> mx.array:
    """A projection (rank, H) that gives about 1 for rows like `hidden` (n, H), and a little noise.

    As near to 1 as their mean's direction allows: models' rows share a large mean. Without one it gives about 0.
    """
    width, size = hidden.shape[1], mx.sqrt((hidden * hidden).mean())
    mean = hidden.mean(axis=0)
    along = hidden @ mean
    steady = mean * (along.mean() / (along * along).mean())
    drawn: mx.array = steady + mx.random.normal((rank, width), key=key) * (_NOISE / (size * width**0.5))
    return drawn


def _rows(target: Target, ids: mx.array) -> mx.array:
    return target.embed(ids[None])[0].astype(mx.float32)
