"""The keyboard while the model answers: Ctrl-C stops, and what is typed ahead is not echoed meanwhile."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `stop`, and the next one raise KeyboardInterrupt. Main thread only."""

    def stop_first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        stop()

    previous = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    signal.signal(signal.SIGINT, stop_first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def no_echo() -> Iterator[None]:
    """Switch the terminal's echo off: typed keys wait for the next prompt. Nothing without a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
