"""The order of the arms: balanced, so that neither place nor predecessor of an arm goes with a kind or a depth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .model import Arm, Plan


class Orders:
    """Permutations of a plan's arms, drawn one after another; the plan's seed decides, so they are the same each time.

    Within each kind and depth every arm comes first as often as the others, or once less; then, as far as that
    leaves a choice, within each kind, each depth and in all, and arms change their places and their predecessors.
    """

    def __init__(self, plan: Plan) -> None:
        self._arms = plan.arms
        self._rows = _rows(len(plan.arms))
        self._chance = random.Random(plan.seed)
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._last: int | None = None

    def next(self, kind: str = "", depth: int = 0) -> Sequence[Arm]:
        """All arms, in the order for one more prompt of a kind at a depth."""
        rows = sorted(self._rows, key=lambda _: self._chance.random())
        row = min(rows, key=lambda row: self._cost(row, kind, depth))
        self._seen.update(_firsts(row, kind, depth))
        self._seen.update(_places(row, kind, depth))
        self._seen.update(self._followings(row))
        self._last = row[-1]
        return [self._arms[index] for index in row]

    def _cost(self, row: Sequence[int], kind: str, depth: int) -> tuple[int, ...]:
        cell, *margins = (self._seen[key] for key in _firsts(row, kind, depth))
        places = sum(self._seen[key] for key in _places(row, kind, depth))
        return cell, sum(margins), places, sum(self._seen[key] for key in self._followings(row))

    def _followings(self, row: Sequence[int]) -> list[tuple[Any, ...]]:
        before = [*([] if self._last is None else [self._last]), *row]
        return [("after", a, b) for a, b in pairwise(before)]


def _firsts(row: Sequence[int], kind: str, depth: int) -> list[tuple[Any, ...]]:
    first = row[0]
    return [("cell", first, kind, depth), ("kind", first, kind), ("depth", first, depth), ("first", first)]


def _places(row: Sequence[int], kind: str, depth: int) -> list[tuple[Any, ...]]:
    return [("place", index, place, kind, depth) for place, index in enumerate(row)]


def _rows(count: int) -> list[tuple[int, ...]]:
    """Williams's squares: each arm at each place equally often, and after each other one equally often."""
    zigzag = [(place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)]
    rows = [tuple((index + shift) % count for index in zigzag) for shift in range(count)]
    return rows if count % 2 == 0 else list(dict.fromkeys([*rows, *(row[::-1] for row in rows)]))
