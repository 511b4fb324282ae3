"""What a cycle costs on this machine, by width and by context depth. Width 1 is a step of plain decoding."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

# Context depths share a cell up to here, then from each power of two to the next.
_FIRST = 512
# The latest samples of a cell. What counts is the lower third of them: what disturbs a cycle makes it slower only.
_KEPT = 15
# Samples of a width right after others have run that say what it costs itself. What changes later in a run is the
# machine's doing (heat, other programs) and goes into the common factor at the first rate, by so much at most a sample,
# in logarithms; into the cell itself only at the second.
_FRESH = 6
_DRIFT_RATE, _CELL_RATE, _PULL = 0.1, 0.02, 0.3
# A full cell that is off by so much, in logarithms, right after others have run: what it knew is out of date, and two
# such samples replace it. One may have been an interruption.
_ODD = 0.25
# Seconds that no cycle takes: nonsense in a file.
_LEAST, _MOST = 1e-6, 3600.0
# Looks at a row after which it is worked out anew where no cell was still filling: settled ones change but slowly.
_ROW_KEPT = 16


def depth_floor(depth: int) -> int:
    """The lower edge of the range that a context depth falls into."""
    return 0 if depth < _FIRST else 1 << (depth.bit_length() - 1)


@dataclass
class _Cell:
    """Logarithms of seconds without the common factor, what counts of them, and the factor when it was last run."""

    samples: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    value: float = 0.0
    drift: float = 0.0

    def add(self, sample: float, times: int = 1) -> None:
        self.samples.extend([sample] * times)
        self.value = sorted(self.samples)[(len(self.samples) - 1) // 3]


class CostTable:
    """Measured seconds. What was not measured is told from other depths, then from neighbours in width.

    A machine that gets slower as a whole changes every cell: samples are kept relative to a common factor, so that the
    width that runs is not judged by the hot machine, and the others by the cool one.
    """

    def __init__(self, widest: int) -> None:
        self.widest = widest
        self._cells: dict[int, dict[int, _Cell]] = {}  # depth, width
        self._drift = 0.0
        self._run = (0, 0)  # the width that runs, and how many samples of it have come in a row
        self._seen: set[int] = set()  # widths that have run in this process
        self._row: tuple[int, list[float | None]] | None = None  # the latest one, by its depth's floor
        self._row_left = 0

    def observe(self, width: int, depth: int, seconds: float) -> None:
        """One cycle of that width that began at that many tokens of context. The first of each width is left out.

        A process builds its kernels then.
        """
        if width not in self._seen or seconds <= 0:
            self._seen.add(width)
            return
        running, count = self._run
        self._run = (width, count + 1 if running == width else 1)
        cell = self._cells.setdefault(depth_floor(depth), {}).setdefault(width, _Cell(drift=self._drift))
        sample = math.log(seconds) - self._drift
        full = len(cell.samples) >= _KEPT
        if full and self._run[1] > _FRESH:
            off = max(-_PULL, min(_PULL, sample - cell.value))
            self._drift += _DRIFT_RATE * off
            cell.value += _CELL_RATE * off
        else:
            cell.add(sample, _KEPT // 2 if full and abs(sample - cell.value) > _ODD else 1)
            self._row = None
        cell.drift = self._drift

    def samples(self, width: int, depth: int) -> int:
        """How many samples that cell stands on."""
        cell = self._cells.get(depth_floor(depth), {}).get(width)
        return 0 if cell is None else len(cell.samples)

    def anywhere(self, width: int) -> bool:
        """Whether that width was measured at any depth."""
        return any(width in cells for cells in self._cells.values())

    def slower_since(self, width: int, depth: int) -> float:
        """By what factor the machine has become slower, as others tell, since that width was run there; at least 1."""
        cell = self._cells.get(depth_floor(depth), {}).get(width)
        return 1.0 if cell is None else math.exp(max(0.0, self._drift - cell.drift))

    def at_least(self, width: int, depth: int) -> float | None:
        """A bound from below for a width that was not measured: a narrower one is no dearer."""
        narrower = [other for other in range(1, width) if self.anywhere(other)]
        return self.seconds(narrower[-1], depth) if narrower else None

    def seconds(self, width: int, depth: int) -> float | None:
        """Measured or told from others; None where too little is known."""
        return self.row(depth)[width - 1]

    def row(self, depth: int) -> list[float | None]:
        """The seconds of every width at a depth, from width 1 on."""
        here = depth_floor(depth)
        if self._row is None or self._row[0] != here or not self._row_left:
            told = [self._told(width, here) for width in range(1, self.widest + 1)]
            self._row, self._row_left = (here, told), _ROW_KEPT
        self._row_left -= 1
        return self._row[1]

    def set(self, width: int, depth: int, seconds: float, weight: int = _KEPT) -> None:
        """Replace a cell by a measurement that counts as so many samples."""
        cell = _Cell(drift=self._drift)
        cell.add(math.log(seconds) - self._drift, weight)
        self._row = None
        self._cells.setdefault(depth_floor(depth), {})[width] = cell

    def measured(self) -> dict[int, dict[int, float]]:
        """Seconds by depth and width, measured ones only."""
        return {
            floor: {width: math.exp(cell.value + self._drift) for width, cell in sorted(cells.items())}
            for floor, cells in sorted(self._cells.items())
        }

    def load(self, measured: Mapping[int, Mapping[int, float]]) -> None:
        """Take over what `measured` gave, as a few samples a cell: what runs now soon counts for more.

        Raises ValueError for what is no such table.
        """
        for floor, cells in measured.items():
            for width, seconds in cells.items():
                sound = isinstance(seconds, int | float) and not isinstance(seconds, bool) and _LEAST < seconds < _MOST
                if not (1 <= width <= self.widest and depth_floor(floor) == floor and sound):
                    raise ValueError(f"no cost of a cycle: width {width} at depth {floor} with {seconds} s")
                self.set(width, floor, seconds, weight=3)

    def _told(self, width: int, here: int) -> float | None:
        """Measured at that depth; else at another one, shifted by the widths that both have; else from neighbours."""
        depths = sorted(self._cells, key=lambda floor: abs(floor.bit_length() - here.bit_length()))
        for there in depths:
            cell = self._cells[there].get(width)
            if cell is not None:
                return math.exp(cell.value + self._drift + self._shift(there, here))
        for there in depths:
            between = _between({other: cell.value for other, cell in self._cells[there].items()}, width)
            if between is not None:
                return math.exp(between + self._drift + self._shift(there, here))
        return None

    def _shift(self, there: int, here: int) -> float:
        """How much dearer, in logarithms, depth `here` is, by the widths that were measured at both."""
        ours, theirs = self._cells.get(here, {}), self._cells[there]
        both = sorted(ours[width].value - theirs[width].value for width in ours.keys() & theirs.keys())
        return both[len(both) // 2] if both and there != here else 0.0


def _between(known: Mapping[int, float], width: int) -> float | None:
    """The logarithm for a width from those of others: a plain step tells nothing of blocks, nor they of it."""
    if width == 1:
        return None
    below = max((other for other in known if 1 < other < width), default=None)
    above = min((other for other in known if other > width), default=None)
    if below is None or above is None:
        near = above if below is None else below
        return None if near is None else known[near]
    share = (width - below) / (above - below)
    return math.log((1 - share) * math.exp(known[below]) + share * math.exp(known[above]))
