"""What the width controller of a pair knows and does, as plain data for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WidthFigures:
    """Tuples by width begin at width 1, which is plain decoding; None is not known yet.

    `rates` are expected committed tokens per second at `depth` tokens of context, for the kind of the latest request.
    `costs` are seconds of a cycle by depth (the lower edge of its range), then by width. `acceptance` is by kind of
    request, "all" among them: the expected share of cycles in which the draft at each position stands.
    """

    block_size: int  # the widest: the checkpoint's
    width: int  # of the latest choice
    reason: str  # of it, in a sentence
    depth: int
    rates: tuple[float | None, ...]
    costs: Mapping[int, tuple[float | None, ...]]
    acceptance: Mapping[str, tuple[float, ...]]
    cycles_by_width: tuple[int, ...]
    switches: int  # how often the choice has changed
    probes: int  # cycles at another width than the chosen one, to see what it does
    source: str  # where the costs come from: "tune, 2026-11-30", "cycles", "nothing yet"
