"""When another width than the best one is tried: at a growing interval, and for a small share of the time at most."""

from __future__ import annotations

# Share of the time that trying others may cost, and what may be spent before any time has passed, in plain steps.
# Chosen in simulation (tests/width): a hundredth leaves room for the noise of the estimates within the 3 % aimed at.
_SHARE, _ADVANCE = 0.01, 12.0
# Cycles between two tries: at first, and at most. It doubles while tries change nothing.
_SHORTEST, _LONGEST = 16, 512


class Probing:
    """The budget of one pair, and the interval of each kind of request."""

    def __init__(self) -> None:
        self._spent = 0.0  # seconds lost to tries, as estimated when they began
        self._passed = 0.0  # seconds of all cycles
        self._interval: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self.count = 0  # cycles of tries

    def cycle_done(self, kind: str, seconds: float) -> None:
        self._passed += seconds
        self._since[kind] = self._since.get(kind, 0) + 1

    def is_due(self, kind: str, *, urgent: bool = False) -> bool:
        """Whether the interval is over; the shortest one where something has changed."""
        interval = _SHORTEST if urgent else self._interval.get(kind, _SHORTEST)
        return self._since.get(kind, _SHORTEST) >= interval

    def is_long(self, kind: str) -> bool:
        """Whether tries have changed nothing for so long that the interval grows no more."""
        return self._interval.get(kind, _SHORTEST) >= _LONGEST

    def affords(self, loss: float, plain_step: float) -> bool:
        """Whether so many seconds may be lost, where a plain step takes `plain_step`."""
        return self._spent + loss <= _SHARE * self._passed + _ADVANCE * plain_step

    def begin(self, kind: str, loss: float, *, grows: bool = True) -> None:
        """A try that is expected to lose so many seconds; the next one is later where it `grows`."""
        self._spent += max(0.0, loss)
        self.skip(kind, grows=grows)

    def skip(self, kind: str, *, grows: bool = True) -> None:
        """Nothing is worth a try now."""
        self._since[kind] = 0
        if grows:
            self._interval[kind] = min(_LONGEST, 2 * self._interval.get(kind, _SHORTEST))

    def succeeded(self, kind: str) -> None:
        """The choice has changed: what was learnt before may no longer hold."""
        self._interval[kind] = _SHORTEST
