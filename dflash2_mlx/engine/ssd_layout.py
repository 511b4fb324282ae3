"""What rows and states of a pair's caches look like, so that nothing else is put into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from ..pairs import Pair
from ..target.copies import take_rows
from ..target.rollback import flatten, is_trimmable

_PROBE = 2  # rows


class Layout:
    """Structure, dtypes and shapes, seen on a forward of two tokens."""

    def __init__(self, pair: Pair) -> None:
        caches = pair.target.new_cache()
        mx.eval(pair.target(mx.zeros((1, _PROBE), dtype=mx.int32), caches))
        flat = flatten(caches)
        self._rows = [_shape(take_rows(cache, 0, _PROBE), _PROBE) if is_trimmable(cache) else None for cache in flat]
        self._exact = [type(cache) is ArraysCache for cache in flat]
        self._states = [
            None if is_trimmable(cache) else _shape(cache.state, None if exact else "any")
            for cache, exact in zip(flat, self._exact, strict=True)
        ]

    def check_rows(self, rows: Sequence[Any], count: int) -> None:
        """Raises ValueError unless `rows` are, by cache, `count` rows of those that go by rows."""
        _compare("rows", [piece if piece is None else _shape(piece, count) for piece in rows], self._rows)

    def check_states(self, states: Sequence[Any]) -> None:
        """Raises ValueError unless `states` are, by cache, those of the ones that do not go by rows."""
        if len(states) != len(self._exact):
            raise ValueError(f"states of {len(states)} caches, not {len(self._exact)}")
        found = [
            None if state is None else _shape(state, None if exact else "any")
            for state, exact in zip(states, self._exact, strict=True)
        ]
        _compare("states", found, self._states)


def _compare(what: str, found: list[Any], expected: list[Any]) -> None:
    if len(found) != len(expected):
        raise ValueError(f"{what} of {len(found)} caches, not {len(expected)}")
    for number, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if ours != theirs:
            raise ValueError(f"{what} of cache {number}: {theirs}, not {ours}")


def _shape(tree: Any, rows: int | str | None) -> Any:
    """The tree with each array as its dtype and shape, the rows axis (the second last) left out where `rows` is given.

    A number of rows must be met. Other leaves are their types.
    """
    if isinstance(tree, mx.array):
        shape = list(tree.shape)
        if rows is not None and len(shape) > 1:
            if isinstance(rows, int) and shape[-2] != rows:
                raise ValueError(f"{shape[-2]} rows, not {rows}")
            shape[-2] = -1
        return str(tree.dtype), *shape
    if isinstance(tree, list | tuple):
        return type(tree).__name__, *(_shape(item, rows) for item in tree)
    return type(tree).__name__
