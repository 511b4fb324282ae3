"""Small pieces of what training says."""

from __future__ import annotations

from collections.abc import Mapping


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 shard", "2,000 shards"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def several(by_kind: Mapping[str, float]) -> dict[str, float]:
    """The figures by kind; nothing of a single kind, whose figure is the whole's."""
    return dict(by_kind) if len(by_kind) > 1 else {}


def in_brackets(by_kind: Mapping[str, float]) -> str:
    """Behind the figure over all: " (code 2.50, chat 1.25)", or nothing."""
    kinds = ", ".join(f"{kind} {rate:.2f}" for kind, rate in several(by_kind).items())
    return f" ({kinds})" if kinds else ""
