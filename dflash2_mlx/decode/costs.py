"""What a cycle costs on this machine, by width and by context depth. Width 1 is a step of plain decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

# Context depths share a cell up to here, then from each power of two to the next.
_FIRST = 512
# Samples of a cell, of which the median counts: an interrupted cycle does not.
_KEPT = 9
# A cell with all its samples is settled: what its cycles take from then on is the machine's doing (heat, other
# programs), and goes into the common factor at the first rate; into the cell itself only at the second. By so much at
# most a sample pulls, in logarithms.
_DRIFT_RATE, _CELL_RATE, _PULL = 0.25, 0.02, 0.3


def depth_floor(depth: int) -> int:
    """The lower edge of the range that a context depth falls into."""
    return 0 if depth < _FIRST else 1 << (depth.bit_length() - 1)


# Looks at a row after which it is worked out anew where no cell was still filling: settled ones change but slowly.
_ROW_KEPT = 16


class CostTable:
    """Medians of measured seconds. What was not measured is told from its neighbours in width, then in depth.

    A machine that gets slower as a whole changes every cell: samples are kept relative to a common factor, so that the
    width that runs is not judged by the hot machine, and the others by the cool one.
    """

    def __init__(self, widest: int) -> None:
        self.widest = widest
        self._samples: dict[int, dict[int, list[float]]] = {}  # depth, width: logarithms
        self._medians: dict[int, dict[int, float]] = {}
        self._drift = 0.0
        self._row: tuple[int, list[float | None]] | None = None  # the latest one, by its depth's floor
        self._row_left = 0

    def observe(self, width: int, depth: int, seconds: float) -> None:
        """One cycle of that width that began at that many tokens of context."""
        if seconds <= 0:
            return
        floor, sample = depth_floor(depth), math.log(seconds)
        cell = self._samples.setdefault(floor, {}).setdefault(width, [])
        medians = self._medians.setdefault(floor, {})
        if len(cell) < _KEPT:
            cell.append(sample - self._drift)
            medians[width] = median(cell)
            self._row = None
            return
        off = max(-_PULL, min(_PULL, sample - self._drift - medians[width]))
        self._drift += _DRIFT_RATE * off
        medians[width] += _CELL_RATE * off

    def samples(self, width: int, depth: int) -> int:
        """How many samples that cell stands on."""
        return len(self._samples.get(depth_floor(depth), {}).get(width, ()))

    def anywhere(self, width: int) -> bool:
        """Whether that width was measured at any depth."""
        return any(width in cells for cells in self._medians.values())

    def at_least(self, width: int, depth: int) -> float | None:
        """A bound from below for a width that was not measured: a narrower one is no dearer."""
        narrower = [other for other in range(1, width) if self.anywhere(other)]
        return self.seconds(narrower[-1], depth) if narrower else None

    def seconds(self, width: int, depth: int) -> float | None:
        """Measured or told from neighbours; None where too little is known."""
        return self.row(depth)[width - 1]

    def row(self, depth: int) -> list[float | None]:
        """The seconds of every width at a depth, from width 1 on."""
        here = depth_floor(depth)
        if self._row is None or self._row[0] != here or not self._row_left:
            self._row, self._row_left = (here, self._told(here)), _ROW_KEPT
        self._row_left -= 1
        return self._row[1]

    def _told(self, here: int) -> list[float | None]:
        found: list[float | None] = [None] * self.widest
        for there in sorted(self._medians, key=lambda floor: abs(floor.bit_length() - here.bit_length())):
            shift = self._drift + (0.0 if there == here else self._shift(there, here))
            for i, known in enumerate(found):
                told = _between(self._medians[there], i + 1) if known is None else None
                if told is not None:
                    found[i] = math.exp(told + shift)
            if None not in found:
                break
        return found

    def set(self, width: int, depth: int, seconds: float, weight: int = _KEPT) -> None:
        """Replace a cell by a measured median that counts as so many samples."""
        floor, sample = depth_floor(depth), math.log(seconds) - self._drift
        self._row = None
        self._samples.setdefault(floor, {})[width] = [sample] * weight
        self._medians.setdefault(floor, {})[width] = sample

    def measured(self) -> dict[int, dict[int, float]]:
        """Seconds by depth and width, measured ones only."""
        return {
            floor: {width: math.exp(value + self._drift) for width, value in sorted(cells.items())}
            for floor, cells in sorted(self._medians.items())
        }

    def load(self, measured: Mapping[int, Mapping[int, float]]) -> None:
        """Take over what `measured` gave, as a few samples a cell: what runs now soon counts for more.

        Raises ValueError for what is no such table.
        """
        for floor, cells in measured.items():
            for width, seconds in cells.items():
                if not (1 <= width <= self.widest and depth_floor(floor) == floor and 0 < seconds < 3600):
                    raise ValueError(f"no cost of a cycle: width {width} at depth {floor} with {seconds} s")
                self.set(width, floor, seconds, weight=3)

    def _shift(self, there: int, here: int) -> float:
        """How much dearer, in logarithms, depth `here` is, by the widths that were measured at both."""
        ours, theirs = self._medians.get(here, {}), self._medians[there]
        both = [ours[width] - theirs[width] for width in ours.keys() & theirs.keys()]
        return median(both) if both else 0.0


def _between(known: Mapping[int, float], width: int) -> float | None:
    """The logarithm for a width from those of others: a plain step tells nothing of blocks, nor they of it."""
    if width in known or width == 1:
        return known.get(width)
    below = max((other for other in known if 1 < other < width), default=None)
    above = min((other for other in known if other > width), default=None)
    if below is None or above is None:
        near = above if below is None else below
        return None if near is None else known[near]
    share = (width - below) / (above - below)
    return math.log((1 - share) * math.exp(known[below]) + share * math.exp(known[above]))
