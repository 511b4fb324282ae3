"""Small pieces of what training says."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 shard", "2,000 shards"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """In the two largest of its units: "2 d 4 h", "3 h 20 min", "5 min 12 s", "45 s"."""
    whole = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, name), (next_size, next_name) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def several(by_kind: Mapping[str, float]) -> dict[str, float]:
    """The figures by kind; nothing of a single kind, whose figure is the whole's."""
    return dict(by_kind) if len(by_kind) > 1 else {}


def in_brackets(by_kind: Mapping[str, float]) -> str:
    """Behind the figure over all: " (code 2.50, chat 1.25)", or nothing."""
    kinds = ", ".join(f"{kind} {rate:.2f}" for kind, rate in several(by_kind).items())
    return f" ({kinds})" if kinds else ""
