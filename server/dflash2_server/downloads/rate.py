"""Bytes a second, over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Rate:
    """A moving average over `span` seconds of a count that is told now and then."""

    def __init__(self, span: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._span = span
        self._clock = clock
        self._readings: deque[tuple[float, int]] = deque()

    def start(self, count: int) -> None:
        """Begin anew from a count that was there before."""
        self._readings.clear()
        self._readings.append((self._clock(), count))

    def tell(self, count: int) -> float:
        """The rate with this reading; 0 before there are two. It never falls below 0, as a count may."""
        now = self._clock()
        self._readings.append((now, count))
        while len(self._readings) > 2 and self._readings[1][0] <= now - self._span:
            self._readings.popleft()
        first, before = self._readings[0]
        return max(0.0, (count - before) / (now - first)) if now > first else 0.0
