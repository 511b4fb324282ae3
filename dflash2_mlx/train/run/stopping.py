"""When a training stops before its last step: Ctrl-C, the system's wish to end the process, or a limit of time."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Asked after each step whether to stop; within `with` a first Ctrl-C (or SIGTERM) only asks for it.

    A second Ctrl-C interrupts at once, as it does elsewhere.
    """

    def __init__(self, minutes: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes
        self._before: dict[signal.Signals, Any] = {}
        self.interrupted = False

    def __call__(self) -> bool:
        """Whether to stop now."""
        return self.interrupted or (self._end is not None and self._clock() >= self._end)

    def __enter__(self) -> Stopper:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        print("\nstopping after this step; once more stops at once, at the state saved last", file=sys.stderr)
