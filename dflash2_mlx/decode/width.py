"""The width controller of a pair: the block size with the most committed tokens per second, down to plain decoding.

It multiplies two things that it measures: how many tokens a cycle of each width is expected to commit, and what such a
cycle costs on this machine at this depth of context. One controller serves all requests of a pair.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .acceptance import Offset, Profile, committed, survival
from .costs import CostTable
from .probing import Probing
from .stats import ALARM_CYCLES, alarm_of
from .width_figures import WidthFigures

if TYPE_CHECKING:
    from .width_store import WidthStore

log = logging.getLogger(__name__)

KINDS = ("greedy", "sampled", "constrained")

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
# Cycles of a kind after which its best width is settled for requests with a seed.
_SETTLED = 64
# How much what has not been tried for long may have gained: by so much with every doubling of the cycles since.
_STALE = 0.02


class WidthController:
    """Costs and acceptance of one pair, shared by its requests. Thread-safe: one thread decodes, others look."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.costs = CostTable(block_size)
        self.everything = Profile(block_size - 1)
        self.kinds = {kind: Profile(block_size - 1, self.everything) for kind in KINDS}
        self.probing = Probing()
        self.source = "nothing yet"
        self.lock = threading.Lock()
        self.store: WidthStore | None = None  # where it is kept from run to run
        self.pinned: dict[str, int] = {}  # widths of requests with a seed, by kind
        self.avoided: frozenset[int] = frozenset()  # widths whose verify is not exact here: never chosen
        self._tried: dict[tuple[str, int], int] = {}  # the cycle in which a width was last run, by kind
        self._cycles_by_width = [0] * block_size
        self._latest = (block_size, "nothing was decoded yet", 0, "greedy")
        self._chosen = False  # whether it has chosen a width yet
        self._blocks, self._accepted = 0, 0  # cycles with drafts, and the drafts of them that stood
        self._switches = 0

    def for_request(self, kind: str, most: int) -> AdaptiveWidth:
        """Chooses for a request of that kind, up to a width of `most`."""
        return AdaptiveWidth(self, kind, most)

    def best_block(self, kind: str, most: int, depth: int) -> tuple[int, str]:
        """The best width of two or more, and why: `most` while costs of too few blocks are known to tell."""
        with self.lock:
            rates = self.rates(self.kinds[kind].rates(), depth)[:most]
            measured = sum(self.costs.anywhere(width) for width in range(2, most + 1))
        known = {width: rate for width, rate in enumerate(rates, 1) if width > 1 and rate is not None}
        if measured < min(2, most - 1) or not known:
            widest = self.widest(most)
            return widest, f"{_name(widest)}: what others cost was not measured yet"
        best = max(known, key=lambda width: known[width])
        return best, f"block {best}: the best one by measurement, {known[best]:.1f} tokens/s expected"

    def rates(self, acceptance: Sequence[float], depth: int) -> list[float | None]:
        """Expected committed tokens per second by width. Under the lock."""
        tokens = committed(acceptance)
        costs = enumerate(self.costs.row(depth), 1)
        known = [None if width in self.avoided else cost for width, cost in costs]
        return [None if cost is None else count / cost for count, cost in zip(tokens, known, strict=True)]

    def widest(self, most: int) -> int:
        """The widest up to `most` that may be chosen."""
        return max(width for width in range(1, most + 1) if width not in self.avoided)

    def cycle_done(self, kind: str, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        """Learn from a cycle. Under the lock."""
        self._cycles_by_width[width - 1] += 1
        self._tried[kind, width] = self.cycles
        if width > 1:
            self.everything.observe(width, accepted)
            self.kinds[kind].observe(width, accepted)
            self._blocks += 1
            self._accepted += accepted
            if self._blocks == ALARM_CYCLES and self.alarm:
                log.warning("%s", self.alarm)
        if seconds is not None:
            self.costs.observe(width, depth, seconds)
            if self.source == "nothing yet":
                self.source = "cycles"
        self.probing.cycle_done(kind, seconds or self.costs.seconds(width, depth) or 0.0)

    def chose(self, width: int, reason: str, depth: int, kind: str) -> None:
        """Note a choice, for whoever looks. Under the lock."""
        self._switches += self._chosen and width != self._latest[0]
        self._latest, self._chosen = (width, reason, depth, kind), True

    @property
    def alarm(self) -> str | None:
        """What is wrong when next to no draft of any request stands."""
        return alarm_of(self._blocks, self._accepted)

    @property
    def latest(self) -> int | None:
        """The width of its latest choice, not that of a request that asked for another; None before the first."""
        return self._latest[0] if self._chosen else None

    def best_for_seed(self, kind: str, most: int) -> tuple[int, str]:
        """The width of all requests of a kind that are to be drawn again, and why.

        What is measured changes, so that it is settled once, when enough is known, and kept.
        """
        with self.lock:
            pinned = self.pinned.get(kind)
            rates = self.rates(self.kinds[kind].rates(), 0)[:most]
            known = {width: rate for width, rate in enumerate(rates, 1) if rate is not None}
            enough = all(self.costs.anywhere(w) for w in (1, 2)) or self.source.startswith("tune")
            if pinned is None and enough and self.kinds[kind].cycles >= _SETTLED:
                pinned = self.pinned[kind] = max(known, key=lambda width: known[width])
        width = min(pinned or most, self.widest(most))
        return width, f"{_name(width)} throughout: a seed was given, and other widths would draw other tokens"

    def ended(self) -> None:
        """A request has ended."""
        if self.store is not None:
            self.store.ended(self)

    def kept(self) -> dict[str, Any]:
        """What is worth keeping, as plain data: costs by depth and width, acceptance by kind, pins, the source."""
        with self.lock:
            profiles = {"all": self.everything, **self.kinds}
            costs = self.costs.measured()
            return {
                "source": self.source,
                "costs": {str(d): {str(w): s for w, s in cells.items()} for d, cells in costs.items()},
                "acceptance": {name: profile.pack() for name, profile in profiles.items()},
                "pinned": dict(self.pinned),
            }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Take over what `kept` gave.

        Raises ValueError, KeyError or TypeError for what it cannot have given: then nothing is taken.
        """
        fresh = WidthController(self.block_size)
        fresh.costs.load({int(d): {int(w): s for w, s in cells.items()} for d, cells in tree["costs"].items()})
        for name, profile in {"all": fresh.everything, **fresh.kinds}.items():
            profile.unpack(tree["acceptance"][name])
        pinned = {kind: width for kind, width in tree["pinned"].items() if kind in KINDS}
        if not all(type(width) is int and 1 <= width <= self.block_size for width in pinned.values()):
            raise ValueError(f"no widths of requests with a seed: {pinned}")
        with self.lock:
            self.costs, self.everything, self.kinds = fresh.costs, fresh.everything, fresh.kinds
            self.pinned, self.source = pinned, str(tree["source"])

    @property
    def cycles(self) -> int:
        """Of all widths."""
        return sum(self._cycles_by_width)

    def untried_for(self, kind: str, width: int) -> int:
        """Cycles since that width was run for that kind."""
        return self.cycles - self._tried.get((kind, width), 0)

    def figures(self) -> WidthFigures:
        """What it knows and does; from any thread."""
        with self.lock:
            width, reason, depth, kind = self._latest
            measured = self.costs.measured()
            profiles = {"all": self.everything, **{k: p for k, p in self.kinds.items() if p.cycles}}
            return WidthFigures(
                block_size=self.block_size,
                width=width,
                reason=reason,
                depth=depth,
                rates=tuple(self.rates(self.kinds[kind].rates(), depth)),
                costs={
                    floor: tuple(cells.get(w) for w in range(1, self.block_size + 1))
                    for floor, cells in measured.items()
                },
                acceptance={name: survival(profile.rates()) for name, profile in profiles.items()},
                cycles_by_width=tuple(self._cycles_by_width),
                switches=self._switches,
                probes=self.probing.count,
                source=self.source,
            )


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
        unknown = self._unknown(rates)
        if unknown is not None:
            return unknown, f"measuring {_name(unknown)}: its cost is not known yet"
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
        return best, f"trying {_name(best)} against {_name(self._width)}"

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

    def _unknown(self, rates: Sequence[float | None]) -> int | None:
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


def _name(width: int) -> str:
    return "plain decoding" if width == 1 else f"block {width}"


def _words(width: int, rates: Sequence[float | None]) -> str:
    known = {w: rate for w, rate in enumerate(rates, 1) if rate is not None}
    if width not in known:
        return f"{_name(width)}: nothing was measured yet"
    others = {w: rate for w, rate in known.items() if (w == 1) != (width == 1)}
    words = f"{_name(width)}: {known[width]:.1f} tokens/s expected"
    if not others:
        return words
    rival = max(others, key=lambda w: others[w])
    return f"{words}, {others[rival]:.1f} by {_name(rival)}"
