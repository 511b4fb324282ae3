"""Copies of what caches hold, for keeping: rows of those that go by position, whole states of the others.

A copy owns its bytes: a view would pin the buffer that it was cut from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

_SPARE = 256  # rows of room after restored ones, as many as mlx-lm's caches grow by


def copied(tree: Any) -> Any:
    """The same values in buffers of their own; what is no array stays."""
    if isinstance(tree, mx.array):
        return mx.logical_or(tree, mx.array(False)) if tree.dtype == mx.bool_ else tree * 1
    if isinstance(tree, list | tuple):
        return type(tree)(copied(item) for item in tree)
    return tree


def renewed(tree: Any) -> Any:
    """The same values in new array objects on the same buffers: a cache may assign into the object that it holds."""
    if isinstance(tree, mx.array):
        return tree[...]
    if isinstance(tree, list | tuple):
        return type(tree)(renewed(item) for item in tree)
    return tree


def arrays_in(tree: Any) -> list[mx.array]:
    """Every array of a tree of lists and tuples."""
    if isinstance(tree, mx.array):
        return [tree]
    return [array for item in tree for array in arrays_in(item)] if isinstance(tree, list | tuple) else []


def compact_state(cache: Any) -> Any:
    """A cache's state in new objects; of a window only its rows, where the last chunk of a prefill has left more."""
    state = cache.state
    if type(cache) is RotatingKVCache:
        keys, values, offset, sink, size, index = state
        if not sink and keys is not None and index == keys.shape[2] > size:
            rows = [mx.contiguous(part[..., -size:, :]) for part in (keys, values)]
            return *rows, offset, sink, size, size
    return renewed(state)


def take_rows(cache: KVCache | QuantizedKVCache, start: int, end: int) -> Any:
    """Copies of the rows of positions start to end: keys and values as the cache holds them. None while it is empty."""
    keys, values, *_ = cache.state
    return None if keys is None else copied(cut_rows((keys, values), start, end))


def cut_rows(rows: Any, start: int, end: int) -> Any:
    """Views of rows start to end, of a tree of (…, rows, D) arrays."""
    if isinstance(rows, mx.array):
        return rows[..., start:end, :]
    return tuple(cut_rows(part, start, end) for part in rows)


def put_rows(cache: KVCache | QuantizedKVCache, pieces: Sequence[Any]) -> None:
    """Fill an empty cache with consecutive pieces of rows, leaving room for more."""
    joined = _join([piece for piece in pieces if piece is not None])
    if joined is None:
        return
    (keys, values), length = joined
    _, _, _, *rest = cache.state
    cache.state = (keys, values, length, *rest)


def _join(pieces: Sequence[Any]) -> tuple[Any, int] | None:
    if not pieces:
        return None
    if isinstance(pieces[0], mx.array):
        length = sum(piece.shape[-2] for piece in pieces)
        shape = list(pieces[0].shape)
        shape[-2] = -length % _SPARE + _SPARE
        return mx.concatenate([*pieces, mx.zeros(shape, pieces[0].dtype)], axis=-2), length
    parts = [_join(part) for part in zip(*pieces, strict=True)]
    return tuple(part[0] for part in parts if part), next(part[1] for part in parts if part)
