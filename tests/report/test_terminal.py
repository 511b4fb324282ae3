"""The report in a terminal: within its width, with and without colour, no number cut."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from dflash2_mlx.report.blocks import Heatmap, Plot, Report, Series, Table
from dflash2_mlx.report.terminal import show
from tests.report.samples import bars, everything, lines, nasty


def shown(report: Report, width: int = 80, **options: object) -> str:
    stream = io.StringIO()
    show(report, Console(file=stream, width=width, **options))  # type: ignore[arg-type]
    return stream.getvalue()


def of(*blocks: Plot | Table | Heatmap) -> Report:
    return Report(title="t", facts={}, blocks=blocks)


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_no_line_is_wider_than_the_console(width: int) -> None:
    for report in (everything(), nasty()):
        assert max(cell_len(line) for line in shown(report, width).splitlines()) <= width


def test_everything_is_told_without_colour() -> None:
    text = shown(everything(), no_color=True)
    assert "\x1b" not in text
    for words in ("A report", "a machine", "A section", "A paragraph.", "12,345", "1.23", "–", "a note", "layer 1"):
        assert words in text


def test_texts_are_no_markup() -> None:
    table = Table(title="[red]t[/red]", columns=["[b]"], rows=[["[/nothing]"]])
    assert all(words in shown(of(table)) for words in ("[red]t[/red]", "[b]", "[/nothing]"))


def test_bars_grow_with_their_values_and_tell_them() -> None:
    text = shown(of(bars()))
    found = {m[1].strip(): len(m[2]) for m in re.finditer(r"^ {3}(plain|block 5) +(█+)", text, re.MULTILINE)}
    assert found  # the last name's bars
    rows = [line for line in text.splitlines() if "█" in line]
    assert [line.split()[-1] for line in rows if "plain" in line] == ["1", "1.1"]
    assert "2 (1 to 3)" in text
    lengths = [line.count("█") for line in rows if "block 5" in line]
    assert lengths == sorted(lengths, reverse=True)
    assert "baseline 1" in text


def test_negative_bars_look_different() -> None:
    text = shown(of(bars(series=(Series(name="", x=["a", "b"], y=[-2.0, 1.0]),))))
    assert re.search(r"a +▒+ +-2", text)
    assert re.search(r"b +█+ +1", text)


def test_lines_show_a_sign_for_each_point_and_none_for_a_gap() -> None:
    text = shown(of(lines()))
    grid = [line for line in text.splitlines() if "│" in line or "┤" in line]
    assert "".join(grid).count("●") == 4
    assert "".join(grid).count("■") == 3
    assert "● plain  ■ block 5" in text


def test_points_in_one_place_are_marked_as_such() -> None:
    same = tuple(Series(name=name, x=[1, 2], y=[1.0, 2.0]) for name in "ab")
    assert "*" in shown(of(lines(series=same)))


def test_a_plot_of_nothing_says_so() -> None:
    assert "no data" in shown(of(lines(series=())))


@pytest.mark.parametrize("kind", ["lines", "bars"])
@pytest.mark.parametrize(
    ("x", "y"),
    [([1], [1.0]), ([1, 2], [1e300, -1e300]), ([1, 2], [0.0, 0.0]), (["a", 1], [1, None]), ([1e-9, 1e9], [1, 2])],
)
def test_hard_values_are_drawn(kind: str, x: list[float | str], y: list[float | None]) -> None:
    assert "no data" not in shown(of(lines(kind=kind, series=(Series(name="s", x=x, y=y),))))


def test_a_table_that_is_too_wide_is_split_and_no_number_is_cut() -> None:
    numbers = [1000.01 + i for i in range(20)]
    heat = Heatmap(title="h", rows=["first row"], columns=[f"head {i}" for i in range(20)], values=[numbers])
    text = shown(of(heat), 50)
    assert re.findall(r"\d,\d{3}\.\d\d", text) == [f"{number:,.2f}" for number in numbers]
    assert text.count("first row") >= 3


def test_a_table_without_columns_or_rows_is_no_error() -> None:
    assert shown(of(Table(title="none", columns=[], rows=[]), Table(title="head", columns=["a"], rows=[])))


@pytest.mark.parametrize("colour", [None, 3])
def test_a_series_has_the_sign_that_it_is_given(colour: int | None) -> None:
    text = shown(of(lines(series=(Series(name="a", x=[1, 2], y=[1.0, 2.0], colour=colour),))))
    assert ("◆" in text, "●" in text) == (colour == 3, colour is None)
