"""The figures of a run's report: means over stretches of steps, speeds, counts. What is no number counts nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .history import StepLine

# Stretches of a whole run in a plot: more would not be told apart in its width.
STRETCHES = 120
# Steps whose mean stands for "now": one alone is a matter of which texts it drew.
LATEST = 50


@dataclass(frozen=True)
class Spread:
    """A mean, the least and the largest; None where there is no number."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps, the last of them `step`. `top1` and `recall` are means by drafted position."""

    step: int
    loss: Spread
    ce: Spread
    selector: Spread
    learning_rate: float | None
    grad_norm: Spread
    tokens_per_second: float | None
    top1: list[float | None]
    recall: list[float | None]


def stretches(steps: Sequence[StepLine], most: int = STRETCHES) -> list[Stretch]:
    """The steps in at most `most` stretches of equal length, but for the last."""
    length = max(1, math.ceil(len(steps) / most))
    return [stretch(steps[first : first + length]) for first in range(0, len(steps), length)]


def stretch(steps: Sequence[StepLine]) -> Stretch:
    """Of at least one step."""
    return Stretch(
        step=steps[-1].step,
        loss=spread(one.loss for one in steps),
        ce=spread(one.ce for one in steps),
        selector=spread(one.selector for one in steps),
        learning_rate=steps[-1].learning_rate if math.isfinite(steps[-1].learning_rate) else None,
        grad_norm=spread(one.grad_norm for one in steps),
        tokens_per_second=tokens_per_second(steps),
        top1=by_position([one.top1 for one in steps]),
        recall=by_position([one.recall for one in steps]),
    )


def latest(steps: Sequence[StepLine]) -> Stretch | None:
    """The last steps; None before the first."""
    return stretch(steps[-LATEST:]) if steps else None


def spread(values: Iterable[float]) -> Spread:
    """Over the finite values."""
    sound = [value for value in values if math.isfinite(value)]
    if not sound:
        return Spread(None, None, None)
    return Spread(math.fsum(sound) / len(sound), min(sound), max(sound))


def by_position(lists: Sequence[Sequence[float]]) -> list[float | None]:
    """The mean at each position; a list that is shorter says nothing of what comes after it."""
    longest = max(map(len, lists), default=0)
    return [spread(one[i] for one in lists if i < len(one)).mean for i in range(longest)]


def tokens_per_second(steps: Sequence[StepLine]) -> float | None:
    """Tokens of the conversations that were read, over the seconds of the steps."""
    return _ratio(sum(one.tokens for one in steps), sum(one.seconds for one in steps))


def blocks_per_second(steps: Sequence[StepLine]) -> float | None:
    """Blocks that were learnt from, over the seconds of the steps."""
    return _ratio(sum(one.blocks for one in steps), sum(one.seconds for one in steps))


def seconds_left(steps: Sequence[StepLine], total: int) -> float | None:
    """Until `total` steps are done, at the pace of the latest; evaluations come on top."""
    if not steps:
        return None
    recent = steps[-LATEST:]
    return max(total - steps[-1].step, 0) * sum(one.seconds for one in recent) / len(recent)


def shown_positions(count: int) -> list[int]:
    """Indices of the positions that a plot over steps shows: 1, 2, 4, 8, … and the last of `count`, counted from 1."""
    powers = [1 << i for i in range(count.bit_length())]
    return [one - 1 for one in sorted({*(power for power in powers if power <= count), count}) if one > 0]


def count(value: int) -> str:
    """A count in three digits and a unit: "812", "1.23 M", "4.56 G"."""
    if value < 10_000:
        return f"{value:,}"
    size, name = next((size, name) for size, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")) if value >= size)
    scaled = value / size
    return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {name}"


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(whole) else None
