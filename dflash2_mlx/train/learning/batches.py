"""Which conversations each step sees: every one once an epoch, in an order that only the seed and the step decide.

Nothing but the step's number has to be kept, so a resumed run draws what an uninterrupted one draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Streams of random numbers that do not meet, whatever the seed.
_ORDER, _STEP = 1, 2


def conversations_of(step: int, batch: int, count: int, seed: int) -> list[int]:
    """The `batch` conversations, of `count`, of step 0, 1, …"""
    first = step * batch
    found = []
    for place in range(first, first + batch):
        epoch, within = divmod(place, count)
        found.append(int(_epoch_order(epoch, count, seed)[within]))
    return found


def step_generator(step: int, seed: int) -> np.random.Generator:
    """For what a step draws: anchors and columns."""
    return np.random.default_rng([seed, _STEP, step])


@lru_cache(maxsize=2)  # a step asks for neighbours only
def _epoch_order(epoch: int, count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, _ORDER, epoch]).permutation(count)


def micro_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Places of a batch in groups of `size`, those of like length together: padding is work for nothing."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    return [order[i : i + size] for i in range(0, len(order), size)]
