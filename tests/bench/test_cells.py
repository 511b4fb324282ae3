"""Figures of samples, and what a benchmark may say: no difference where there is none, one where there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash2_mlx.bench.cells import Cell, cells
from dflash2_mlx.bench.model import Arm, Result, Sample
from dflash2_mlx.bench.run import run
from tests.bench.benching import BLOCK, PLAIN, NoisyBackend, plan, prompts, sample

AGAIN = replace(PLAIN, name="plain again")
KINDS = ("code", "mathematics", "chat", "prose", "structured", "copy-edit", "translation")


def result(samples: list[Sample], *arms: Arm, **options: object) -> Result:
    return Result(plan=plan(*arms, **options), facts={}, samples=samples, started=0.0)


def noisy(seed: int, speed: float, **options: object) -> Result:
    """The size of a usual run, on a machine that gets slower all the time and jitters."""
    backend = NoisyBackend(speeds={"plain again": 10.0 * speed}, noise=0.05, drift=0.002, seed=seed)
    given = {"prompts": tuple(prompts(21, KINDS)), **options}
    return run(plan(PLAIN, AGAIN, **given), {"pair": backend})


def test_a_thing_compared_with_itself_shows_no_difference() -> None:
    runs = [noisy(seed, 1.0) for seed in range(40)]
    overall = [cells(one, "all")[1] for one in runs]
    by_kind = [cell for one in runs for cell in cells(one, "kind") if cell.baseline]
    assert all(cell.pairs == 63 and cell.interval for cell in overall)
    assert sum(cell.distinguishable for cell in overall) <= 1
    assert len(by_kind) == 7 * 40
    assert sum(cell.distinguishable for cell in by_kind) <= 4  # 1 in 100


def test_a_fifth_more_speed_is_seen() -> None:
    runs = [noisy(seed, 1.2) for seed in range(20)]
    assert all(cells(one, "all")[1].distinguishable for one in runs)
    by_kind = [cell for one in runs for cell in cells(one, "kind") if cell.baseline]
    assert sum(cell.distinguishable for cell in by_kind) > 0.8 * len(by_kind)
    assert all(cells(one, "all")[1].ratio == pytest.approx(1.2, abs=0.06) for one in runs)


def test_unpaired_orders_would_have_shown_one() -> None:
    """The control of the first test: had each arm run in one go, the drift would look like a difference."""
    alternated = noisy(0, 1.0)
    backend = NoisyBackend(noise=0.05, drift=0.002)
    halves = [run(plan(arm, prompts=tuple(prompts(21, KINDS))), {"pair": backend}).samples for arm in (PLAIN, AGAIN)]
    assert cells(replace(alternated, samples=[*halves[0], *halves[1]]), "all")[1].distinguishable
    assert not cells(alternated, "all")[1].distinguishable


def test_the_figures_of_a_cell() -> None:
    found = [
        sample("plain", prompt="p0", generation_seconds=2.0),
        sample("plain", prompt="p1", generation_seconds=4.0, kind="chat"),
        sample("block 5", prompt="p0", generation_seconds=1.0, tokens_per_cycle=3.0, acceptance_by_position=(0.9, 0.3)),
        sample(
            "block 5",
            prompt="p1",
            kind="chat",
            generation_seconds=4.0,
            generation_tokens=41,
            tokens_per_cycle=2.05,
            acceptance_by_position=(0.3,),
        ),
    ]
    plain, block = cells(result(found), "all")
    assert (plain.speed, plain.baseline, plain.ratio, plain.interval) == (7.5, None, None, None)
    assert (block.speed, block.baseline, block.pairs) == (15.0, "plain", 2)
    assert (block.ratio, block.ratio_low, block.ratio_high) == (2.0, 2.0, 2.0)
    assert block.interval is None
    assert not block.distinguishable
    assert block.tokens_per_cycle == pytest.approx(62 / (7 + 20))  # of all cycles, not the mean of both
    assert block.acceptance == pytest.approx(((7 * 0.9 + 20 * 0.3) / 27, 0.3))
    assert block.first_token_seconds == 0.5
    kinds = cells(result(found), "kind")
    assert [(cell.arm, cell.group, cell.speed) for cell in kinds] == [
        ("plain", "code", 10.0),
        ("plain", "chat", 5.0),
        ("block 5", "code", 20.0),
        ("block 5", "chat", 10.0),
    ]


def test_pairs_have_the_same_prompt_depth_and_round() -> None:
    found = [
        sample("plain", round=0),
        sample("plain", round=1, generation_seconds=1.0),
        sample("plain", depth=64, generation_seconds=4.0),
        sample("block 5", round=1, generation_seconds=1.0),
        sample("block 5", depth=64, generation_seconds=1.0),
        sample("block 5", prompt="p3"),
    ]
    block = cells(result(found), "all")[1]
    assert (block.pairs, block.ratio_low, block.ratio_high) == (2, 1.75, 3.25)  # quartiles of 1 and 4


def test_depths_are_groups_from_the_lowest() -> None:
    mixed = (*prompts(1, depth=512), *prompts(1), *prompts(1, depth=64))
    found = [sample(arm, depth=depth) for depth in (0, 64, 512) for arm in ("plain", "block 5")]
    by_depth = cells(result(found, prompts=mixed), "depth")
    assert [cell.group for cell in by_depth] == ["0", "64", "512"] * 2


def test_answers_without_a_speed_make_no_pair() -> None:
    found = [sample("plain"), sample("block 5", generation_tokens=1, generation_seconds=0.0)]
    block = cells(result(found), "all")[1]
    assert (block.samples, block.pairs, block.speed, block.ratio) == (1, 0, None, None)


def test_arms_are_compared_at_their_own_temperature() -> None:
    warm, warm_block = (
        replace(PLAIN, name="plain, T=1", temperature=1.0),
        replace(BLOCK, name="b, T=1", temperature=1.0),
    )
    found = [sample(name, digest=name) for name in ("plain", "block 5", "plain, T=1", "b, T=1")]
    by_name = {cell.arm: cell for cell in cells(result(found, PLAIN, BLOCK, warm, warm_block), "all")}
    assert [by_name[name].baseline for name in by_name] == [None, "plain", None, "plain, T=1"]
    assert by_name["block 5"].compared_texts == 1
    assert by_name["b, T=1"].compared_texts == 0, "sampled texts differ, and may"


@pytest.mark.parametrize(
    ("one", "other", "same", "compared"),
    [("a", "a", 1, 1), ("a", "b", 0, 1), ("tokens:a", "tokens:b", 0, 1), ("tokens:a", "a", 0, 0), ("", "a", 0, 0)],
)
def test_greedy_texts_are_compared_by_digests_of_one_kind(one: str, other: str, same: int, compared: int) -> None:
    block = cells(result([sample("plain", digest=one), sample("block 5", digest=other)]), "all")[1]
    assert (block.same_texts, block.compared_texts) == (same, compared)


@pytest.mark.parametrize(
    ("arm", "engine", "plain"),
    [(BLOCK, "plain", 1), (BLOCK, "dflash2", 0), (BLOCK, "", 0), (replace(BLOCK, verify_mode="server"), "plain", 0)],
)
def test_an_arm_that_ran_plain_is_counted(arm: Arm, engine: str, plain: int) -> None:
    found = cells(result([sample("block 5", engine=engine)], PLAIN, arm), "all")
    assert [cell.ran_plain for cell in found] == [plain]


def cell(interval: tuple[float, float] | None) -> Cell:
    return Cell(
        arm="a",
        group="all",
        samples=9,
        speed=1.0,
        speed_low=1.0,
        speed_high=1.0,
        first_token_seconds=0.1,
        tokens_per_cycle=None,
        interval=interval,
    )


def test_a_difference_is_told_only_where_the_interval_leaves_one_out() -> None:
    intervals = [None, (0.9, 1.1), (1.0, 1.2), (1.01, 1.2), (0.5, 0.99)]
    assert [cell(interval).distinguishable for interval in intervals] == [False, False, False, True, True]


def adaptive(**values: object) -> Sample:
    """40 of 100 first drafts stood in 100 cycles, beside 60 plain steps; 200 tokens in 160 passes."""
    given = {"generation_tokens": 200, "tokens_per_cycle": 1.25, "acceptance_by_position": (0.4,), **values}
    return sample("block 5", **given)


def test_acceptance_is_counted_in_drafts_and_plain_steps_have_none() -> None:
    counted = adaptive(accepted_by_position=(40,), proposed_by_position=(100,))
    drafts = {"accepted_by_position": (9,), "proposed_by_position": (10,)}
    other = sample("block 5", acceptance_by_position=(0.9,), tokens_per_cycle=1.9, **drafts)
    assert cells(result([counted, other]), "all")[0].acceptance == pytest.approx((49 / 110,))


def test_acceptance_of_an_older_result_leaves_plain_steps_out_by_widths() -> None:
    old = [
        adaptive(cycles_by_width=(60, 60, 40), acceptance_by_position=(0.4, 0.1)),
        adaptive(cycles_by_width=(0, 100), acceptance_by_position=(0.9,)),
    ]
    assert cells(result(old), "all")[0].acceptance == pytest.approx(((40 + 90) / 200, 0.1))
