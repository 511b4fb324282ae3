"""The learning rate by step: its ends, its peak and its shape."""

from __future__ import annotations

import math

import pytest

from dflash2_mlx.train.loop.schedule import learning_rate
from dflash2_mlx.train.recipe.values import Loop


def rates(**values: float) -> list[float]:
    loop = Loop(**{"learning_rate": 0.5, **values})  # type: ignore[arg-type]
    rate = learning_rate(loop)
    return [rate(step) for step in range(loop.steps)]


def test_it_rises_in_equal_parts_and_falls_along_a_half_cosine() -> None:
    found = rates(steps=31, warmup=10, final_share=0.1)
    rise = [0.5 * (step + 1) / 11 for step in range(10)]
    fall = [0.05 + 0.45 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(21)]
    assert found == pytest.approx(rise + fall, rel=1e-5)


def test_the_ends_are_exact() -> None:
    found = rates(steps=1000, warmup=50, final_share=0.02)
    assert found[50] == max(found) == 0.5
    assert found[-1] == min(found[50:]) == pytest.approx(0.01, rel=1e-5)
    assert 0 < found[0] < found[1]


def test_without_warm_up_it_begins_at_the_peak() -> None:
    found = rates(steps=3, warmup=0, final_share=0.0)
    assert found == pytest.approx([0.5, 0.25, 0.0], abs=1e-6)


def test_a_full_share_stays_level() -> None:
    assert rates(steps=4, warmup=0, final_share=1.0) == [0.5] * 4


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0, 1, 2, 50])
def test_few_steps_have_rates_too(steps: int, warmup: int) -> None:
    found = rates(steps=steps, warmup=warmup, final_share=0.02)
    assert all(0 < rate <= 0.5 for rate in found)


def test_beyond_the_last_step_it_stays() -> None:
    rate = learning_rate(Loop(steps=10, warmup=2, learning_rate=0.5))
    assert rate(50) == rate(9)
