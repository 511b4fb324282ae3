"""The drafter's context: keys and values of committed positions, in rings whose masks come from absolute positions.

Layers of one type share one stacked ring. Slot s of a ring of C slots holds the largest position below `end` that is
congruent to s modulo C, so positions need no bookkeeping and never depend on the order of the buffer. The first
positions that a window would lose and a setting keeps, the sinks, stand in rings of their own, which never wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .config import DrafterConfig
from .layer_kv import LayerKV

# Capacities grow by doubling from this, so that shapes change seldom and a short chat stays small.
_SMALLEST = 256


@dataclass(frozen=True)
class Ring:
    """Keys and values (layers, h, C, D) of the layers of one type. Immutable: an update makes a new one."""

    keys: mx.array
    values: mx.array

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[2])

    def write(self, keys: mx.array, values: mx.array, position: int) -> Ring:
        """With rows (layers, h, n, D) at positions position…; n is at most the capacity."""
        slot = position % self.capacity
        head = min(keys.shape[2], self.capacity - slot)
        new_keys = _write(self.keys, keys[:, :, :head], slot)
        new_values = _write(self.values, values[:, :, :head], slot)
        if head < keys.shape[2]:
            new_keys = _write(new_keys, keys[:, :, head:], 0)
            new_values = _write(new_values, values[:, :, head:], 0)
        return Ring(new_keys, new_values)

    def used(self, end: int) -> Ring:
        """Without the slots past `end` of a ring that has not wrapped, in steps so that shapes change seldom."""
        rows = -(-max(end, 1) // _SMALLEST) * _SMALLEST
        return self if rows >= self.capacity else Ring(self.keys[:, :, :rows], self.values[:, :, :rows])

    def compact(self, end: int) -> Ring:
        """As `used`, in buffers of its own where it is smaller."""
        used = self.used(end)
        return self if used is self else Ring(used.keys * 1, used.values * 1)

    def grown(self, capacity: int) -> Ring:
        """With more slots; only before the ring has wrapped, where slots are positions."""
        pad = [(0, 0), (0, 0), (0, capacity - self.capacity), (0, 0)]
        return Ring(mx.pad(self.keys, pad), mx.pad(self.values, pad))


def _write(ring: mx.array, rows: mx.array, slot: int) -> mx.array:
    return mx.slice_update(ring, rows, mx.array([slot]), axes=[2])


def visibility(
    end: mx.array | int, start: mx.array | int, capacity: int, rows: int, *, window: int | None, causal: bool
) -> mx.array:
    """Mask (rows, capacity + rows): which context slots and block rows each block row sees.

    `end` committed positions lie before the anchor, the first of them known is `start`. A context row is visible
    below distance `window` (None: always), the block whole or, when `causal`, up to the row itself.
    """
    block = mx.arange(rows)[:, None]
    position = end - 1 - (end - 1 - mx.arange(capacity)) % capacity
    seen = position >= mx.maximum(start, 0)
    if window is not None:
        seen = seen & (end + block - position < window)
    own = mx.arange(rows) <= block if causal else mx.ones((rows, rows), dtype=mx.bool_)
    return mx.concatenate([mx.broadcast_to(seen, (rows, capacity)), own], axis=1)


class DraftContext:
    """What a drafter knows of one conversation: the committed rows below position `end`.

    Rows arrive as taps of the target and are turned into keys and values of all layers at once.
    """

    def __init__(self, config: DrafterConfig, project: LayerKV, dtype: mx.Dtype) -> None:
        self.config = config
        self._end = 0  # of the rows in the rings; deferred ones follow
        self._project = project
        self._dtype = dtype
        self._rings: dict[str, Ring] = {}
        self._layers = {
            kind: [i for i, t in enumerate(config.layer_types) if t == kind]
            for kind in dict.fromkeys(config.layer_types)
        }
        self._starts = dict.fromkeys(self._layers, 0)
        self._sinks: dict[str, Ring] = {}
        self._sunk = 0  # how many of the first positions the sinks hold
        self._deferred: list[Sequence[mx.array]] = []

    @property
    def end(self) -> int:
        """One past the last known position: that of the next anchor."""
        return self._end + len(self._deferred)

    @property
    def unbounded(self) -> bool:
        """Whether no layer slides: then a trim to any earlier position loses nothing."""
        return all(self.config.window(kind) is None for kind in self._layers)

    def start(self, layer_type: str) -> int:
        """The first position that the layers of that type know."""
        return self._starts[layer_type]

    @property
    def rings(self) -> dict[str, Ring]:
        """The ring of each layer type, with every row up to `end`."""
        self.flush()
        if not self._rings:
            self._make_room(1)
        return self._rings

    @property
    def sinks(self) -> dict[str, Ring]:
        """The first `sunk` positions, for each layer type that keeps some."""
        self.flush()
        return self._sinks if self._sunk else {}

    @property
    def sunk(self) -> int:
        """How many of the first positions the sinks hold; those count no longer as rows of a ring."""
        return self._sunk

    def append(self, taps: Sequence[mx.array], position: int) -> None:
        """Take the tapped rows, each (1, n, H), of positions position…position+n-1.

        Rows that continue the context extend it; after a gap it starts anew at `position`, but for the sinks.
        """
        self.flush()
        self._append(taps, position)

    def defer(self, taps: Sequence[mx.array], position: int, *, at_most: int = 64) -> None:
        """As `append`, for single rows of plain decoding: kept until needed, so that plain decoding pays nothing."""
        if position != self.end:
            self.flush()
            self._begin(position)
        self._deferred.append(taps)
        if len(self._deferred) >= at_most:
            self.flush()

    def flush(self) -> None:
        if self._deferred:
            rows, self._deferred = self._deferred, []
            joined = [mx.concatenate(list(tap), axis=1) for tap in zip(*rows, strict=True)]
            self._append(joined, self._end)

    def trim(self, end: int) -> None:
        """Forget positions from `end` on. Rows that a ring has overwritten since stay lost, which `start` tells."""
        self.flush()
        if end >= self._end:
            return
        for kind, ring in self._rings.items():
            self._starts[kind] = min(max(self._starts[kind], self._end - ring.capacity), end)
        self._end = end
        self._sunk = min(self._sunk, end)

    def copy(self) -> DraftContext:
        """An independent context at the same point; rings are immutable, so this is free."""
        self.flush()
        twin = DraftContext(self.config, self._project, self._dtype)
        twin._end, twin._starts, twin._rings = self._end, dict(self._starts), dict(self._rings)
        twin._sunk, twin._sinks = self._sunk, dict(self._sinks)
        return twin

    def compact(self) -> DraftContext:
        """As `copy`, in no more memory than the rows need."""
        twin = self.copy()
        twin._rings = {kind: ring.compact(self._end) for kind, ring in self._rings.items()}
        twin._sinks = {kind: ring.compact(self._sunk) for kind, ring in self.sinks.items()}
        return twin

    def missing(self, end: int) -> int:
        """How many of the rows that a block after `end` could see would be unknown after a trim to `end`."""
        if end > self.end:
            return end
        self.flush()
        worst = 0
        for kind, ring in self.rings.items():
            window = self.config.window(kind)
            first = 0 if window is None else max(0, end - window + 1)
            have = min(max(self._starts[kind], self._end - ring.capacity), end)
            sinks = min(self.config.sinks(kind), end)
            known = min(self._sunk, sinks)
            worst = max(worst, max(0, min(sinks, have) - known) + max(0, have - max(first, sinks)))
        return worst

    def arrays(self) -> list[mx.array]:
        """Every array held, for evaluation and for counting bytes."""
        rings = [*self._rings.values(), *self._sinks.values()]
        return [array for ring in rings for array in (ring.keys, ring.values)]

    def pack(self) -> dict[str, Any]:
        """All of it as a tree of dicts, tuples, numbers and arrays, for a file."""
        self.flush()
        return {
            "end": self._end,
            "starts": dict(self._starts),
            "rings": {kind: (ring.keys, ring.values) for kind, ring in self._rings.items()},
            "sunk": self._sunk,
            "sinks": {kind: (ring.keys, ring.values) for kind, ring in self._sinks.items()},
        }

    def unpack(self, tree: dict[str, Any]) -> None:
        """Become what `pack` gave. Raises ValueError for what no context of this drafter can be."""
        self._end, self._starts, self._sunk = int(tree["end"]), dict(tree["starts"]), int(tree["sunk"])
        self._rings = self._unpacked(tree["rings"], self._end)
        self._sinks = self._unpacked(tree["sinks"], self._sunk)
        if set(self._starts) != set(self._layers) or not set(self._rings) <= set(self._layers):
            raise ValueError(f"a drafter's context of layers {sorted(self._starts)}, not {sorted(self._layers)}")

    def _unpacked(self, rings: dict[str, Any], rows: int) -> dict[str, Ring]:
        heads, dim = self.config.num_key_value_heads, self.config.head_dim
        for kind, (keys, values) in rings.items():
            window = self.config.window(kind)
            least = rows if window is None else min(rows, window - 1)
            fits = keys.shape == (len(self._layers[kind]), heads, keys.shape[2], dim) and keys.shape[2] >= least
            if not fits or values.shape != keys.shape or {keys.dtype, values.dtype} != {self._dtype}:
                raise ValueError(f"a drafter's context of shape {keys.shape}, {keys.dtype}")
        return {kind: Ring(keys, values) for kind, (keys, values) in rings.items()}

    def _begin(self, position: int) -> None:
        """Forget everything but the sinks before `position`, which is that of the next row."""
        self._sunk = min(self._sunk, position)
        self._end = position
        self._starts = dict.fromkeys(self._layers, position)

    def _append(self, taps: Sequence[mx.array], position: int) -> None:
        count = taps[0].shape[1]
        if position != self._end:
            self._begin(position)
        self._end = position + count
        limit = self.config.context_rows
        if position <= self._sunk < self.config.sink_rows:
            self._sink(taps, position)
        if limit is not None and count > limit:
            taps, position = [tap[:, count - limit :] for tap in taps], self._end - limit
        keys, values = self._project(taps, position)
        self._make_room(self._end)
        for kind, layers in self._layers.items():
            ring = self._rings[kind]
            rows = min(keys.shape[2], ring.capacity)
            k, v = self._of_layers(layers, keys[:, :, -rows:], values[:, :, -rows:])
            self._rings[kind] = ring.write(k, v, self._end - rows)

    def _of_layers(self, layers: list[int], keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if len(self._layers) == 1:
            return keys, values
        picked = mx.array(layers)
        return keys[picked], values[picked]

    def _sink(self, taps: Sequence[mx.array], position: int) -> None:
        """Keep of the rows of positions position… those that the sinks lack."""
        first, last = self._sunk, min(self.config.sink_rows, self._end)
        keys, values = self._project([tap[:, first - position : last - position] for tap in taps], first)
        for kind, layers in self._layers.items():
            if not self.config.sinks(kind):
                continue
            ring = self._sinks.get(kind) or self._empty(layers, min(_SMALLEST, self.config.sink))
            if ring.capacity < last:
                ring = ring.grown(min(_doubled(ring.capacity, last), self.config.sink))
            self._sinks[kind] = ring.write(*self._of_layers(layers, keys, values), first)
        self._sunk = last

    def _make_room(self, end: int) -> None:
        for kind, layers in self._layers.items():
            window = self.config.window(kind)
            ring = self._rings.get(kind)
            capacity = _doubled(ring.capacity if ring else _SMALLEST, end)
            if window is not None:
                capacity = min(capacity, window - 1)
            if ring is None:
                self._rings[kind] = self._empty(layers, capacity)
            elif capacity > ring.capacity:
                self._rings[kind] = ring.grown(capacity)

    def _empty(self, layers: list[int], capacity: int) -> Ring:
        shape = (len(layers), self.config.num_key_value_heads, capacity, self.config.head_dim)
        return Ring(mx.zeros(shape, self._dtype), mx.zeros(shape, self._dtype))


def _doubled(capacity: int, needed: int) -> int:
    while capacity < needed:
        capacity *= 2
    return capacity
