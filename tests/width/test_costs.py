"""The cost table: medians, what is told from neighbours, the common factor, the file's form."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash2_mlx.decode.costs import CostTable, depth_floor


def measured(costs: dict[int, float], depth: int = 0) -> CostTable:
    table = CostTable(8)
    for width, seconds in costs.items():
        table.set(width, depth, seconds)
    return table


@pytest.mark.parametrize(
    ("depth", "floor"), [(0, 0), (511, 0), (512, 512), (1023, 512), (1024, 1024), (8191, 4096), (8192, 8192)]
)
def test_depths_share_ranges(depth: int, floor: int) -> None:
    assert depth_floor(depth) == floor


@given(st.integers(0, 1 << 20))
def test_a_range_holds_its_depths(depth: int) -> None:
    assert depth_floor(depth) <= depth
    assert depth < 512 or depth < 2 * depth_floor(depth)


def test_nothing_is_known_at_first() -> None:
    table = CostTable(4)
    assert table.row(100) == [None] * 4
    assert not table.anywhere(2)
    assert table.at_least(3, 100) is None


def observe(table: CostTable, width: int, *seconds: float, depth: int = 100) -> None:
    """As after the first cycle of a width in a process, which is left out."""
    table.observe(width, depth, 0.0)
    for value in seconds:
        table.observe(width, depth, value)


def test_an_interrupted_cycle_does_not_count() -> None:
    table = CostTable(8)
    observe(table, 4, 0.010, 0.011, 0.010, 0.5, 0.010)
    assert table.seconds(4, 100) == pytest.approx(0.010, rel=0.15)
    assert table.samples(4, 100) == 5


def test_the_first_cycle_of_a_width_builds_kernels_and_is_left_out() -> None:
    table = CostTable(8)
    table.observe(4, 100, 2.0)
    assert table.seconds(4, 100) is None
    table.observe(4, 100, 0.010)
    assert table.seconds(4, 100) == pytest.approx(0.010)
    table.observe(4, 5000, 0.020)
    assert table.seconds(4, 5000) == pytest.approx(0.020), "once a process, not once a depth"


def test_a_cycle_without_a_time_is_left_out() -> None:
    table = CostTable(8)
    observe(table, 4, 0.0)
    assert table.seconds(4, 100) is None


def test_blocks_between_measured_ones_are_told_from_both_sides() -> None:
    table = measured({1: 1.0, 4: 2.0, 8: 4.0})
    assert table.seconds(6, 0) == pytest.approx(3.0)
    assert table.seconds(2, 0) == pytest.approx(2.0), "the nearest block, since a plain step is no block"
    assert table.seconds(1, 0) == pytest.approx(1.0)


def test_a_block_tells_nothing_of_plain_decoding() -> None:
    assert measured({4: 2.0}).seconds(1, 0) is None
    assert measured({1: 1.0}).seconds(4, 0) is None


def test_no_block_is_cheaper_than_a_narrower_one() -> None:
    table = measured({1: 1.0, 4: 2.0, 8: 4.0})
    assert table.at_least(6, 0) == pytest.approx(2.0)
    assert table.at_least(3, 0) == pytest.approx(1.0)


def test_another_depth_is_told_by_the_widths_measured_at_both() -> None:
    table = measured({1: 1.0, 4: 2.0})
    table.set(1, 4096, 3.0)
    assert table.seconds(4, 4096) == pytest.approx(6.0)
    assert table.seconds(4, 5000) == pytest.approx(6.0), "the same range"
    assert table.seconds(4, 300) == pytest.approx(2.0)


def test_the_nearest_depth_tells() -> None:
    table = measured({4: 2.0})
    table.set(4, 16384, 9.0)
    assert table.seconds(4, 32768) == pytest.approx(9.0)


def test_one_sample_at_a_new_depth_keeps_the_shape_of_the_others() -> None:
    table = CostTable(8)
    shape = [1.0, 1.2, 1.2, 1.2, 2.1, 2.1, 2.2, 2.2]
    for width, seconds in enumerate(shape, 1):
        table.set(width, 600, seconds)
    table.set(4, 1030, 1.3)
    assert table.row(1030) == pytest.approx([seconds * 1.3 / 1.2 for seconds in shape])


def test_a_slower_machine_makes_every_width_dearer() -> None:
    """What changes in the middle of a run is the machine's."""
    table = measured({1: 0.010, 4: 0.020})
    observe(table, 4, *[0.020] * 10, *[0.040] * 200)
    assert table.seconds(4, 100) == pytest.approx(0.040, rel=0.1)
    assert table.seconds(1, 100) == pytest.approx(0.020, rel=0.2)
    assert table.slower_since(1, 100) == pytest.approx(2.0, rel=0.2)
    assert table.slower_since(4, 100) == 1.0


def test_a_width_that_is_off_right_after_others_is_its_own_change() -> None:
    table = measured({1: 0.010, 4: 0.020})
    observe(table, 1, *[0.010] * 10)
    observe(table, 4, 0.040, 0.040, 0.040)
    assert table.seconds(4, 100) == pytest.approx(0.040, rel=0.1)
    assert table.seconds(1, 100) == pytest.approx(0.010, rel=0.1)
    observe(table, 1, *[0.010] * 10)
    table.observe(1, 100, 0.010)
    table.observe(4, 100, 0.5)
    assert table.seconds(4, 100) == pytest.approx(0.040, rel=0.1), "one may be an interruption"


def test_what_is_kept_is_taken_over() -> None:
    table = CostTable(8)
    rng = random.Random(0)
    for width in (1, 3, 8):
        for depth in (0, 600, 5000):
            seconds = [rng.uniform(0.9, 1.1) * width * (1 + depth / 5000) for _ in range(5)]
            observe(table, width, *seconds, depth=depth)
    twin = CostTable(8)
    twin.load(table.measured())
    assert twin.measured()[512] == pytest.approx(table.measured()[512])
    assert list(twin.measured()) == [0, 512, 4096]
    observe(twin, 8, *[80.0] * 8, depth=0)
    assert (twin.seconds(8, 0) or 0) > 40, "fresh samples outweigh what a file says"


@pytest.mark.parametrize(
    "tree",
    [
        {0: {9: 1.0}},
        {0: {0: 1.0}},
        {100: {1: 1.0}},
        {0: {1: 0.0}},
        {0: {1: -1.0}},
        {0: {1: float("nan")}},
        {0: {1: 1e-300}},
        {0: {1: True}},
        {0: {1: 10**400}},
    ],
)
def test_what_is_no_table_is_refused(tree: dict[int, dict[int, float]]) -> None:
    with pytest.raises(ValueError, match="no cost of a cycle"):
        CostTable(8).load(tree)
