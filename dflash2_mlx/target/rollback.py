"""One transaction per verified block: afterwards each cache holds exactly the committed rows.

One small class for each kind of cache, chosen by exact class. Opening and aborting a transaction moves references
only, so that a generator may be closed from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from ..errors import TargetError
from .recurrent import Record, Recorder


class Entry(Protocol):
    """The open state of one cache: leave it with the first `keep` of the block's `rows` rows."""

    def settle(self, keep: int, rows: int) -> None: ...


class TrimEntry:
    """Keys and values by position: later rows are cut off by moving the offset."""

    def __init__(self, cache: KVCache | QuantizedKVCache, *_: object) -> None:
        self.cache = cache

    def settle(self, keep: int, rows: int) -> None:
        excess = rows - keep
        if excess and self.cache.trim(excess) != excess:
            raise TargetError(f"{type(self.cache).__name__} did not trim {excess} rows")


class RotatingEntry:
    """A sliding window: a block is appended in temporal order, with a window's rows before it, and cut from the end."""

    def __init__(self, cache: RotatingKVCache, *_: object) -> None:
        self.cache = cache
        self.before = cache.state

    def settle(self, keep: int, rows: int) -> None:
        if keep == 0:
            self.cache.state = self.before
        elif keep < rows:
            keys, values, offset, sink, size, index = self.cache.state
            cut = rows - keep
            self.cache.state = (
                keys[..., : index - cut, :],
                values[..., : index - cut, :],
                offset - cut,
                sink,
                size,
                index - cut,
            )


class RecurrentEntry:
    """A recurrent state: kept by reference, and replayed over the accepted rows when any was rejected."""

    def __init__(self, cache: ArraysCache, recorder: Recorder, records: dict[int, Record]) -> None:
        self.cache = cache
        self.recorder = recorder
        self.records = records
        arrays, *rest = cache.state
        self.before = (list(arrays), *rest)
        self.record_key = id(cache)

    def settle(self, keep: int, rows: int) -> None:
        if keep == rows:
            return
        arrays, *rest = self.before
        self.cache.state = (list(arrays), *rest)
        if keep:
            self.recorder.replay(self.records[self.record_key], keep)


_ENTRIES: dict[type, Any] = {
    KVCache: TrimEntry,
    QuantizedKVCache: TrimEntry,
    RotatingKVCache: RotatingEntry,
    ArraysCache: RecurrentEntry,
}


def flatten(caches: Sequence[Any]) -> list[Any]:
    """The single caches of a list that may nest them in CacheLists."""
    flat: list[Any] = []
    for cache in caches:
        flat.extend(flatten(cache.caches) if type(cache) is CacheList else [cache])
    return flat


def is_trimmable(cache: Any) -> bool:
    """Whether a single cache can go back any number of rows; decided by class, not by its momentary state."""
    return _ENTRIES.get(type(cache)) is TrimEntry


def known_kinds() -> frozenset[str]:
    """Names of the cache classes that can be rolled back, and of the one that holds others."""
    return frozenset(kind.__name__ for kind in (*_ENTRIES, CacheList))


def unknown_kinds(caches: Sequence[Any]) -> list[str]:
    """Names of the cache classes that cannot be rolled back."""
    return sorted({type(cache).__name__ for cache in flatten(caches) if type(cache) not in _ENTRIES})


class Transaction:
    """The caches of one conversation while a block of `rows` rows (two or more) is verified."""

    def __init__(self, caches: Sequence[Any], recorder: Recorder, rows: int) -> None:
        if rows < 2:
            # A single row is written in place by a rotating cache, over what the transaction would put back.
            raise ValueError(f"a transaction of {rows} rows: blocks have two or more")
        self.rows = rows
        self._recorder = recorder
        self._records: dict[int, Record] = {}
        self._entries: list[Entry] = [
            _ENTRIES[type(cache)](cache, recorder, self._records) for cache in flatten(caches)
        ]
        self._open = True

    def __enter__(self) -> Transaction:
        """Record while the block's forward runs inside."""
        self._recorder.records = self._records
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._recorder.records = None
        if kind is not None:
            return
        recurrent = {e.record_key for e in self._entries if isinstance(e, RecurrentEntry)}
        if recurrent != set(self._records):
            raise TargetError(
                f"{len(recurrent)} recurrent caches but {len(self._records)} recorded layers: this family's "
                "recurrent layers cannot be rolled back"
            )

    def commit(self, keep: int) -> None:
        """Leave each cache with the first `keep` rows of the block (1 to `rows`)."""
        if not self._open:
            raise RuntimeError("the transaction is closed already")
        self._open = False
        for entry in self._entries:
            entry.settle(keep, self.rows)

    def abort(self) -> None:
        """Leave each cache as it was before the block; does nothing on a closed transaction."""
        if self._open:
            self.commit(0)
