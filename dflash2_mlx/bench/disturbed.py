"""The notes of samples, gathered: one sentence for each sort, with the range of its figures, the gravest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .model import Sample

MOST = 6  # sorts
# What makes figures worthless, then what is missing; the rest is by how many samples have it.
_GRAVEST = ("other requests", "one piece", "first piece", "no drafter", "drafts accepted", "dropped", "cached")
_FIGURE = re.compile(r"(?<![\w.])(?<!depth )\d+(?:\.\d+)?(?![\w.])")


def gathered(samples: Sequence[Sample]) -> Iterator[str]:
    """Notes that differ in their figures alone are one: "3 samples: 12 to 40 prompt tokens were cached"."""
    sorts: dict[str, list[list[str]]] = {}
    for sample in samples:
        for note in filter(None, sample.note.split("; ")):
            sorts.setdefault(_FIGURE.sub("\0", note), []).append(_FIGURE.findall(note))
    order = sorted(sorts, key=lambda sort: (_gravity(sort), -len(sorts[sort])))
    for sort in order[:MOST]:
        yield f"{counted(len(sorts[sort]))}: {_filled(sort, sorts[sort])}."
    if len(order) > MOST:
        left = sum(len(sorts[sort]) for sort in order[MOST:])
        yield f"And {len(order) - MOST} more sorts of notes, {left} in all: the result's JSON has them."


def counted(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _gravity(sort: str) -> int:
    return next((place for place, words in enumerate(_GRAVEST) if words in sort), len(_GRAVEST))


def _filled(sort: str, found: Sequence[Sequence[str]]) -> str:
    """The words of a sort with the range of each of its figures."""
    first, *parts = sort.split("\0")
    ranges = [_range(figures) for figures in zip(*found, strict=True)]
    return first + "".join(figure + words for figure, words in zip(ranges, parts, strict=True))


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"
