"""The order of arms: no arm's place goes with a kind of content or a depth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

import pytest

from dflash2_mlx.bench.model import Arm, Plan
from dflash2_mlx.bench.plan import make_plan
from dflash2_mlx.bench.run import turns
from dflash2_mlx.prompts import KINDS, own

GRID = list(product((2, 3, 4), (1, 2, 3), (1, 2, 7), (1, 2, 3)))


def usual(arms: int, depths: int, kinds: int, rounds: int, *, seed: int = 0, per_kind: int = 3) -> Plan:
    made = make_plan(own(KINDS[:kinds], per_kind), depths=(0, 512, 4096)[:depths], rounds=rounds, seed=seed)
    return replace(made, arms=[Arm(name=f"arm {i}") for i in range(arms)])


def in_turn(plan: Plan) -> list[list[tuple[str, str, int]]]:
    """For each prompt and round: arm, kind and depth, in order."""
    order = [(turn.arm.name, turn.prompt.kind, turn.prompt.depth) for turn in turns(plan)]
    count = len(plan.arms)
    return [order[i : i + count] for i in range(0, len(order), count)]


def spread(counts: Counter[str], plan: Plan) -> int:
    found = [counts[arm.name] for arm in plan.arms]
    return max(found) - min(found)


@pytest.mark.parametrize(("arms", "depths", "kinds", "rounds"), GRID)
def test_every_arm_is_first_equally_often_within_each_kind_and_depth(
    arms: int, depths: int, kinds: int, rounds: int
) -> None:
    plan = usual(arms, depths, kinds, rounds)
    groups = in_turn(plan)
    cells: dict[tuple[str, int], Counter[str]] = {}
    for (first, kind, depth), *_ in groups:
        cells.setdefault((kind, depth), Counter())[first] += 1
    assert len(cells) == depths * kinds
    assert all(spread(counts, plan) <= 1 for counts in cells.values())
    for by in (1, 2):
        for value in {group[0][by] for group in groups}:
            firsts = Counter(group[0][0] for group in groups if group[0][by] == value)
            assert spread(firsts, plan) <= 2, value
    assert spread(Counter(group[0][0] for group in groups), plan) <= 2


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_predecessors_vary(arms: int) -> None:
    plan = usual(arms, 2, 3, 3)
    order = [turn.arm.name for turn in turns(plan)]
    follows = Counter(pairwise(order))
    for arm in plan.arms:
        found = [follows[other.name, arm.name] for other in plan.arms if other != arm]
        assert min(found) > 0.5 * max(found), arm.name


def test_the_seed_decides_and_every_prompt_meets_all_arms() -> None:
    plan = usual(3, 2, 2, 2)
    assert in_turn(plan) == in_turn(plan)
    assert in_turn(plan) != in_turn(replace(plan, seed=1))
    assert all(len({arm for arm, _, _ in group}) == 3 for group in in_turn(plan))
