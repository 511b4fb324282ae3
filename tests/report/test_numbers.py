"""Numbers as text, and the round numbers of an axis."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.report import format, scale

ANY = st.floats(min_value=-1e300, max_value=1e300)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (-math.inf, "–"),
        (0, "0"),
        (32768, "32,768"),
        (10**18, "1.00e+18"),
        (10**400, "1e400"),
        (0.0, "0.00"),
        (-1.005, "-1.00"),
        (1234.5678, "1,234.57"),
        (0.004, "4.00e-03"),
        (3.2e12, "3.20e+12"),
    ],
)
def test_a_number_is_shown_with_its_decimals_or_an_exponent(value: float | None, shown: str) -> None:
    assert format.number(value) == shown


def test_a_text_in_a_cell_stays_as_it_is() -> None:
    assert format.cell("0.10000") == "0.10000"
    assert format.cell(0.10004, 3) == "0.100"


@pytest.mark.parametrize(
    ("value", "shown"), [(3.0, "3"), (16384, "16,384"), (0.123456, "0.1235"), (2.5e-7, "2.5e-07"), (1e300, "1e+300")]
)
def test_a_label_is_short(value: float, shown: str) -> None:
    assert format.short(value) == shown


@pytest.mark.parametrize(
    ("value", "step", "shown"),
    [
        (0.5, 0.25, "0.50"),
        (1.0, 0.5, "1.0"),
        (20.0, 20.0, "20"),
        (-0.0, 1.0, "0"),
        (3e7, 1e7, "3e+07"),
        (2.5, 2.5, "2.5"),
    ],
)
def test_the_ticks_of_an_axis_have_the_same_decimals(value: float, step: float, shown: str) -> None:
    assert format.tick(value, step) == shown


def test_what_cannot_be_drawn_is_none() -> None:
    assert [format.finite(value) for value in (1.5, None, math.nan, math.inf, -1e305)] == [1.5, None, None, None, None]


@given(st.lists(ANY, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_axis_spans_its_values_with_few_round_ticks(values: list[float], zero: bool) -> None:
    found = scale.y_range(values, zero=zero)
    assert found.low < found.high
    assert 1 <= len(found.ticks) <= 9
    assert all(found.low - found.step / 9 <= tick <= found.high + found.step / 9 for tick in found.ticks)
    slack = (found.high - found.low) * 1e-6
    assert all(found.low - slack <= value <= found.high + slack for value in values)
    assert not zero or found.low <= 0 <= found.high


def test_the_lower_end_can_be_given() -> None:
    assert scale.y_range([5.0, 9.0], y_from=1.0).low == 1.0
    assert scale.y_range([5.0], y_from=8.0).high > 8.0


def test_values_that_begin_near_zero_begin_at_zero() -> None:
    assert scale.y_range([20.0, 90.0]).low == 0
    assert scale.y_range([80.0, 90.0]).low == 80
    assert scale.y_range([-90.0, -20.0]).high == 0


def test_an_axis_is_logarithmic_where_x_is_far_apart_and_positive() -> None:
    assert scale.is_log([1, 31])
    assert not scale.is_log([1, 30])
    assert not scale.is_log([0, 1000])
    assert not scale.is_log([5])


def test_places_on_an_axis() -> None:
    assert scale.Scale(low=0, high=10, start=100, end=0).at(2.5) == 75
    assert scale.Scale(low=1, high=100, start=0, end=10, log=True).at(10) == pytest.approx(5)


def test_logarithmic_ticks_are_within_the_range() -> None:
    assert scale.log_ticks(1, 100) == pytest.approx([1, 2, 5, 10, 20, 50, 100])
    many = scale.log_ticks(1e-12, 1e12)
    assert 3 <= len(many) <= 13
