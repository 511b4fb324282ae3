"""From values to places on an axis, and the round numbers that are marked on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Where the least and the greatest x are further apart than this factor, the axis is logarithmic.
LOG_FACTOR = 30


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`, linearly or by logarithm."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class Range:
    """What an axis spans, and where it is marked; marks are `step` apart."""

    low: float
    high: float
    ticks: Sequence[float]
    step: float


def step_for(span: float, count: int) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that needs at most `count` steps for the span."""
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))


def ticks(low: float, high: float, step: float) -> list[float]:
    """The multiples of `step` from `low` to `high`."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def y_range(values: Iterable[float], *, y_from: float | None = None, zero: bool = False, count: int = 5) -> Range:
    """From a round number below the values to one above them; `zero` has 0 in it, `y_from` is the lower end.

    Values that begin near 0, as seen from their greatest, begin at 0.
    """
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    if zero or 0 < low < 0.4 * high:
        low = min(low, 0.0)
    if zero or low < 0.4 * high < 0:
        high = max(high, 0.0)
    if y_from is not None:
        low, high = y_from, max(high, y_from)
    low, high = apart(low, high, fixed=y_from is not None or zero)
    step = step_for(high - low, count)
    if y_from is None:
        low = math.floor(low / step + 1e-9) * step
    high = math.ceil(high / step - 1e-9) * step
    return Range(low=low, high=high, ticks=ticks(low, high, step), step=step)


def apart(low: float, high: float, *, fixed: bool = False) -> tuple[float, float]:
    """The two with room between them where they are, or are next to, the same; `fixed` leaves the lower."""
    size = max(abs(low), abs(high))
    if high - low > max(size * 1e-9, 1e-290):
        return low, high
    room = size / 2 or 0.5
    return (low if fixed else low - room), high + room


def is_log(values: Sequence[float]) -> bool:
    """Whether these x are better seen on a logarithmic axis."""
    return len(values) > 1 and min(values) > 0 and max(values) / min(values) > LOG_FACTOR


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten in the range; the powers alone where those would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    stride = max(1, len(powers) // 8)
    found = [factor * 10.0**power for power in powers[::stride] for factor in factors]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
