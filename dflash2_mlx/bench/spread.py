"""Medians with what they are worth: quartiles, and an interval that assumes nothing about the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# One interval in a hundred misses. A table tells a dozen of them: at the usual 95 % every other table would find a
# difference between a thing and itself.
LEVEL = 0.99


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of at least one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def median_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """What holds the true median with at least the probability `level`; None where the values are too few for it.

    By order statistics (the sign test turned round): each value is above the true median with probability one half,
    whatever the distribution, so the k-th lowest and k-th highest value enclose it but for a binomial tail.
    """
    count, outside, cut = len(values), 0.0, 0
    for below in range(count // 2):
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - level:
            break
        cut = below + 1
    if cut == 0:
        return None
    ordered = sorted(values)
    return ordered[cut - 1], ordered[-cut]


def values_needed(level: float = LEVEL) -> int:
    """The fewest values that have an interval."""
    count = 1
    while 2 / 2**count > 1 - level:
        count += 1
    return count
