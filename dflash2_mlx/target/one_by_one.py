"""Verifying a block one row at a time: the logits, and afterwards the caches, are those of plain decoding to the bit.

It costs as much as plain decoding, and more where drafts are rejected. It is there to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .adapter import Target
from .bookmark import Bookmark
from .rollback import Transaction


class OneByOne:
    """As a Transaction, for a block (1, R) whose rows are fed singly."""

    def __init__(self, target: Target, caches: Sequence[Any], block: mx.array) -> None:
        self.rows = int(block.shape[1])
        self._target = target
        self._caches = list(caches)
        self._block = block
        self._before = Bookmark(caches)
        self._open = True

    def feed(self, rows: int) -> tuple[mx.array, list[mx.array]]:
        """Feed the first `rows` rows: their logits (1, rows, V) and tapped rows, each (1, rows, H); unevaluated."""
        fed = [self._target.with_taps(self._block[:, i : i + 1], self._caches) for i in range(rows)]
        logits = mx.concatenate([row for row, _ in fed], axis=1)
        taps = [mx.concatenate(list(rows_of), axis=1) for rows_of in zip(*(taps for _, taps in fed), strict=True)]
        return logits, taps

    def commit(self, keep: int) -> None:
        """Leave each cache with the first `keep` rows of the block (1 to `rows`), as if the others had never been."""
        if not self._open:
            raise RuntimeError("the block is closed already")
        self._open = False
        if keep < self.rows:
            self._before.go_back()
            self.feed(keep)

    def abort(self) -> None:
        """Leave each cache as it was before the block; does nothing on a closed one."""
        if self._open:
            self._open = False
            self._before.go_back()


OpenBlock = Transaction | OneByOne


def verify(
    target: Target, caches: Sequence[Any], block: mx.array, *, one_by_one: bool = False
) -> tuple[OpenBlock, mx.array, list[mx.array]]:
    """Feed a block (1, R) of two or more rows: what settles it, its logits (1, R, V) and its tapped rows (1, R, H)."""
    if one_by_one:
        single = OneByOne(target, caches, block)
        return single, *single.feed(single.rows)
    transaction = target.begin(caches, block.shape[1])
    with transaction:
        logits, taps = target.with_taps(block, list(caches))
    return transaction, logits, taps
