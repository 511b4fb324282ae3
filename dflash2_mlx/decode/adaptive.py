"""The choices of one request: a width that it holds, or the best one for each cycle, with tries of others."""

from __future__ import annotations

from collections.abc import Sequence

from .acceptance import Offset
from .width import WidthController, name_of

# A width is left for one that promises so much more: less would follow the noise, more would cost what it hides.
_BETTER = 1.01
# The same between plain steps and cycles, where each change costs the overlap of two steps.
_CROSSING = 1.02
# Cycles of a try: the first after a change is not timed, and few say little of acceptance.
_BURST = 4
# Bursts in one request for a cost that is not known: where others take turns all the time, none is ever timed.
_ATTEMPTS = 3
# Samples of a cost at this depth that are enough to believe it; how far one of another depth may be off.
_BELIEVED, _DOUBT_OF_DEPTH = 3, 0.06
# A machine that has become slower by so much since plain steps were timed: they may not have.
_CHANGED = 1.2
# How much what has not been tried for long may have gained: by so much with every doubling of the cycles since.
_STALE = 0.02


class HeldWidth:
    """The same width for a whole request, from which the controller learns all the same: a `WidthChooser`.

    `chosen` tells whether the controller has chosen it, so that it is shown as its choice.
    """

    def __init__(
        self, controller: WidthController, kind: str, width: int, reason: str, *, chosen: bool = False
    ) -> None:
        self.reason: str | None = reason
        self._shared, self._kind, self._width, self._chosen = controller, kind, width, chosen

    def choose(self, depth: int) -> int:
        """See `WidthChooser`."""
        if self._chosen:
            with self._shared.lock:
                self._shared.chose(self._width, self.reason or "", depth, self._kind)
        return self._width

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        """See `WidthChooser`."""
        with self._shared.lock:
            self._shared.cycle_done(self._kind, width, accepted, depth, seconds)

    def end(self) -> None:
        """See `WidthChooser`."""
        self._shared.ended()


class AdaptiveWidth:
    """The choices of one request: `decode.chooser.WidthChooser`."""

    def __init__(self, controller: WidthController, kind: str, most: int) -> None:
        self.reason: str | None = None
        self._shared, self._kind, self._most = controller, kind, most
        self._offset = Offset()
        self._width = 0  # the settled one; 0 before the first choice
        self._began_plain = True  # until it has tried a block
        self._measuring: dict[int, int] = {}  # bursts for the cost of a width that is not known
        self._burst: tuple[int, int, str] | None = None  # width, cycles that are left, why

    def choose(self, depth: int) -> int:
        """See `WidthChooser`."""
        with self._shared.lock:
            width, self.reason = self._next(depth)
            self._shared.chose(width, self.reason, depth, self._kind)
        return width

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        """See `WidthChooser`."""
        with self._shared.lock:
            if width == 1:
                self._offset.rest()
            else:
                self._offset.observe(self._shared.kinds[self._kind].rates(), width, accepted)
            self._shared.cycle_done(self._kind, width, accepted, depth, seconds)

    def end(self) -> None:
        """See `WidthChooser`."""
        self._shared.ended()

    def _next(self, depth: int) -> tuple[int, str]:
        if self._burst is not None:
            width, left, why = self._burst
            self._burst = (width, left - 1, why) if left > 1 else None
            self._shared.probing.count += 1
            return width, why
        rates = self._rates(depth)
        self._settle(rates)
        width = self._width
        probe = self._probe(rates, depth)
        if probe is not None:
            width, why = probe
            self._burst = (width, _BURST - 1, why)
            self._shared.probing.count += 1
            return width, why
        return width, _words(width, rates)

    def _rates(self, depth: int) -> list[float | None]:
        acceptance = self._offset.applied(self._shared.kinds[self._kind].rates())
        return self._shared.rates(acceptance, depth)[: self._most]

    def _settle(self, rates: Sequence[float | None]) -> None:
        """Change the settled width where another one is clearly better."""
        known = {width: rate for width, rate in enumerate(rates, 1) if rate is not None}
        if not known:
            self._width = self._shared.widest(self._most)
            return
        best = max(known, key=lambda width: known[width])
        if self._width not in known:
            self._width = best
            return
        margin = _CROSSING if 1 in (best, self._width) else _BETTER
        if known[best] > margin * known[self._width]:
            self._width = best
            self._shared.probing.succeeded(self._kind)

    def _probe(self, rates: Sequence[float | None], depth: int) -> tuple[int, str] | None:
        """Another width that may be better than the settled one, where it is time to try one."""
        shared = self._shared
        unknown = self._unknown()
        if unknown is not None:
            return unknown, f"measuring {name_of(unknown)}: its cost is not known yet"
        changed = self._width > 1 and shared.costs.slower_since(1, depth) > _CHANGED
        if not shared.probing.is_due(self._kind, urgent=changed):
            return None
        here = rates[self._width - 1]
        step = shared.costs.seconds(1, depth)
        if here is None or step is None:
            return None
        best = self._candidate(rates, here, depth)
        if best is None:
            shared.probing.skip(self._kind)
            return None
        rate = rates[best - 1] or here
        # A verify costs little more than its rows one by one: what was believed dearer was disturbed.
        cost = min(shared.costs.seconds(best, depth) or step, (best + 2) * step)
        loss = max(0.0, _BURST * cost * (1.0 - rate / here))
        if not shared.probing.affords(loss, step):
            return None
        shared.probing.begin(self._kind, loss, grows=shared.costs.anywhere(best))
        self._began_plain = False
        return best, f"trying {name_of(best)} against {name_of(self._width)}"

    def _candidate(self, rates: Sequence[float | None], here: float, depth: int) -> int | None:
        """The width that may be better for all that is known; the other side, plain decoding or blocks, goes first.

        Now and then it is the other side whatever is known: a request that begins plainly may be of another kind than
        those before, and what verify and plain steps cost may grow apart.
        """
        hopes = {width: self._hope(width, rate, depth) for width, rate in enumerate(rates, 1) if rate is not None}
        del hopes[self._width]
        best = max(hopes, key=lambda width: hopes[width], default=None)
        others = {width: hope for width, hope in hopes.items() if (width == 1) != (self._width == 1)}
        other = max(others, key=lambda width: others[width], default=None)
        if other is not None and others[other] > here:
            return other
        if best is not None and hopes[best] > here:
            return best
        overdue = self._shared.probing.is_long(self._kind) or (self._began_plain and self._width == 1)
        return other if overdue else None

    def _unknown(self) -> int | None:
        """A width without which nothing can be told: the middle, plain decoding, the widest."""
        if self._most < 2:
            return None
        for width in ((self._most + 2) // 2, 1, self._most):
            if width in self._shared.avoided or self._shared.costs.anywhere(width):
                continue
            if self._measuring.get(width, 0) < _ATTEMPTS:
                self._measuring[width] = self._measuring.get(width, 0) + 1
                return width
        return None

    def _hope(self, width: int, rate: float, depth: int) -> float:
        """What a width may give at best: its rate, and more the less is known of it."""
        costs = self._shared.costs
        if not costs.anywhere(width):
            told, least = costs.seconds(width, depth), costs.at_least(width, depth)
            return rate * told / least if told and least else rate
        doubt = 0.0 if costs.samples(width, depth) >= _BELIEVED else _DOUBT_OF_DEPTH
        age = self._shared.untried_for(self._kind, width) // 64
        return rate * (1.0 + doubt + _STALE * age.bit_length()) * costs.slower_since(width, depth)


def _words(width: int, rates: Sequence[float | None]) -> str:
    known = {w: rate for w, rate in enumerate(rates, 1) if rate is not None}
    if width not in known:
        return f"{name_of(width)}: nothing was measured yet"
    others = {w: rate for w, rate in known.items() if (w == 1) != (width == 1)}
    words = f"{name_of(width)}: {known[width]:.1f} tokens/s expected"
    if not others:
        return words
    rival = max(others, key=lambda w: others[w])
    return f"{words}, {others[rival]:.1f} by {name_of(rival)}"
