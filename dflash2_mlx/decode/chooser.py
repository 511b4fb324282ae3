"""How wide the next cycle is: what a request asks before each one, and the answer that never changes."""

from __future__ import annotations

import time
from typing import Protocol


class WidthChooser(Protocol):
    """Chooses for one request; width 1 is plain decoding.

    `reason` says in a sentence why the latest choice is so, None where there was nothing to choose.
    """

    reason: str | None

    def choose(self, depth: int) -> int:
        """The width after `depth` tokens; asked once for each cycle or plain step."""
        ...

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        """A cycle of that width, 1 for a plain step; its seconds where they say what such a cycle costs."""
        ...

    def end(self) -> None:
        """The request has ended, well or not."""
        ...


class FixedWidth:
    """The same width always."""

    def __init__(self, width: int, reason: str | None = None) -> None:
        self.width, self.reason = width, reason

    def choose(self, depth: int) -> int:
        return self.width

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        return None

    def end(self) -> None:
        return None


class Lap:
    """Times cycles that follow one another in one generator, from the end of one to the end of the next.

    What whoever takes the steps does with them counts: it is part of what a step costs. A lap in which another
    request ran does not count.
    """

    _latest: Lap | None = None  # the one that ran last, of all in this process

    def __init__(self) -> None:
        self._since: float | None = None

    @classmethod
    def interrupt(cls) -> None:
        """Something else runs on the device: the laps under way do not count."""
        cls._latest = None

    def end(self, *, counts: bool = True) -> float | None:
        """Seconds since the last end; None for the first, for one that was disturbed, or that does not count."""
        now = time.perf_counter()
        took = None if self._since is None else now - self._since
        alone, Lap._latest = Lap._latest is self, self
        self._since = now
        return took if counts and alone else None

    def restart(self) -> None:
        """What comes is of another kind: the cycle in between is not timed."""
        self._since = None
