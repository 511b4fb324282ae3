"""Intervals of medians: what they promise, and that they keep it."""

from __future__ import annotations

import random

import pytest

from dflash2_mlx.bench.spread import median_interval, quartiles, values_needed


def test_seven_values_are_too_few_and_eight_are_enclosed_by_the_outermost() -> None:
    assert values_needed() == 8
    assert median_interval([1.0] * 7) is None
    assert median_interval([3, 1, 4, 1.5, 9, 2.6, 5, 3.5]) == (1, 9)


def test_the_interval_is_the_one_of_the_tables() -> None:
    # For 20 values and 99 % the order statistics 4 and 17 (binomial: 2 * P(X <= 3) = 0.0026; with 4 it is 0.0118).
    assert median_interval([float(i) for i in range(1, 21)]) == (4.0, 17.0)
    # For 10 values and 95 % the order statistics 2 and 9.
    assert median_interval([float(i) for i in range(1, 11)], level=0.95) == (2.0, 9.0)


@pytest.mark.parametrize("count", [8, 9, 21, 64])
def test_it_holds_the_median_as_often_as_it_says_whatever_the_noise(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(1000):
        low, high = median_interval([chance.lognormvariate(0, 1) for _ in range(count)]) or (0.0, 0.0)
        held += low <= 1.0 <= high  # the median of that law
    assert held >= 980


def test_one_value_is_its_own_quartiles() -> None:
    assert quartiles([2.5]) == (2.5, 2.5, 2.5)
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)
