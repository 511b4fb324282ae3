"""The width controller of a pair: the block size with the most committed tokens per second, down to plain decoding.

It multiplies two things that it measures: how many tokens a cycle of each width is expected to commit, and what such a
cycle costs on this machine at this depth of context. One controller serves all requests of a pair.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .acceptance import Profile, committed, survival
from .costs import CostTable
from .probing import Probing
from .stats import ALARM_CYCLES, alarm_of
from .width_figures import WidthFigures

if TYPE_CHECKING:
    from .width_store import WidthStore

log = logging.getLogger(__name__)

KINDS = ("greedy", "sampled", "constrained")

# Cycles of a kind after which its best width is settled for requests with a seed.
_SETTLED = 64


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

    def best_block(self, kind: str, most: int, depth: int) -> tuple[int, str]:
        """The best width of two or more, and why: `most` while costs of too few blocks are known to tell."""
        with self.lock:
            rates = self.rates(self.kinds[kind].rates(), depth)[:most]
            measured = sum(self.costs.anywhere(width) for width in range(2, most + 1))
        known = {width: rate for width, rate in enumerate(rates, 1) if width > 1 and rate is not None}
        if measured < min(2, most - 1) or not known:
            widest = self.widest(most)
            return widest, f"{name_of(widest)}: what others cost was not measured yet"
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

    def best_for_seed(self, kind: str, most: int, *, least: int = 1) -> tuple[int, str]:
        """The width of all requests of a kind that are to be drawn again, within those bounds, and why.

        What is measured changes, so that it is settled once, when enough is known, and kept.
        """
        with self.lock:
            pinned = self.pinned.get(kind)
            rates = self.rates(self.kinds[kind].rates(), 0)
            known = {width: rate for width, rate in enumerate(rates, 1) if rate is not None}
            enough = all(self.costs.anywhere(w) for w in (1, 2)) or self.source.startswith("tune")
            if pinned is None and enough and self.kinds[kind].cycles >= _SETTLED:
                pinned = self.pinned[kind] = max(known, key=lambda width: known[width])
        width = min(max(pinned or most, least), self.widest(most))
        return width, f"{name_of(width)} throughout: a seed was given, and other widths would draw other tokens"

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


def name_of(width: int) -> str:
    """A width in words."""
    return "plain decoding" if width == 1 else f"block {width}"
