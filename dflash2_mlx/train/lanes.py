"""Lanes: the streams on which independent parts of a batch are computed side by side.

MLX's CPU backend runs one stream on one thread, and only its matrix products use more; half of a training step is
elementwise. Two streams with a single-threaded BLAS each took 0.64 of the time of one (forward of the demo target,
8 x 256 tokens a stream, two cores of an AMD EPYC, 2026-11-30: 3.1 against 4.8 ms a token). A GPU has one queue.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from .._blas import set_threads

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4

# Of mlx's scheduler, read at its first evaluation: above so many arrays in flight it takes the graph depth first, that
# is one lane after the other. Gradients of two micro batches of the demo drafter: 5.9 s with its own 20, 3.2 s so.
_BREADTH = ("MLX_BFS_MAX_WIDTH", "1000")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Lanes:
    """Streams of one device."""

    streams: tuple[mx.Stream, ...]
    cores: int = 1

    def __len__(self) -> int:
        return len(self.streams)

    def map(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """`function` of each part, built on the lanes in turn; nothing is evaluated."""
        results = []
        for i, part in enumerate(parts):
            with mx.stream(self.streams[i % len(self.streams)]):
                results.append(function(part))
        return results

    def close(self) -> None:
        """Give one stream all cores again, as decoding wants them."""
        if len(self) > 1:
            set_threads(self.cores)


def let_lanes_run_together() -> None:
    """To be called before anything is evaluated in this process; a value that the environment has stays."""
    if lane_count() > 1:
        os.environ.setdefault(*_BREADTH)


def lane_count() -> int:
    """How many lanes `open_lanes` gives: one for each core of a CPU, at most four, and one on a GPU."""
    return min(_cores(), 4) if mx.default_device().type == mx.DeviceType.cpu else 1


def open_lanes(count: int | None = None) -> Lanes:
    """`count` lanes on the default device (None: see `lane_count`), with the cores shared out among them."""
    device = mx.default_device()
    if device.type != mx.DeviceType.cpu:
        return Lanes((mx.default_stream(device),))
    _keep_memory()
    count = lane_count() if count is None else count
    if count > 1:
        set_threads(max(1, _cores() // count))
    return Lanes(tuple(mx.new_stream(device) for _ in range(count)), _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_memory() -> None:
    """Let glibc keep freed memory: mlx's CPU backend asks for each array anew, and fresh pages of a large one cost more
    than the arithmetic on it (gradient of a micro batch of the demo drafter: 3.5 s without, 2.7 s with it, 2026-11-30).
    """
    if sys.platform != "linux":
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if set_option is not None:
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 256 << 20)):
            set_option(option, value)
