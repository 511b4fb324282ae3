"""The learning rate by step: a warm-up, then a half cosine down to a share of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers

from ..recipe.values import Loop


def learning_rate(loop: Loop) -> Callable[[int], float]:
    """The rate of step 0, 1, … `loop.steps` - 1; the last one has `final_share` of `learning_rate`.

    The warm-up's first step has a small rate, not none: it would be wasted.
    """
    peak, last = loop.learning_rate, max(loop.steps - 1, 0)
    warmup = min(loop.warmup, last)
    decay = mlx.optimizers.cosine_decay(peak, max(last - warmup, 1), loop.final_share * peak)
    schedule: Callable[[Any], mx.array] = decay
    if warmup > 0:
        rise = mlx.optimizers.linear_schedule(peak / (warmup + 1), peak, warmup)
        schedule = mlx.optimizers.join_schedules([rise, decay], [warmup])

    def rate(step: int) -> float:
        value: Any = schedule(mx.array(step)).item()
        return float(value)

    return rate
