"""The report of a run: its figures by hand, and a page that says what was trained, on what, how fast and how well."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dflash2_mlx.report.blocks import Plot, Report, Table, Text
from dflash2_mlx.report.page import html_page
from dflash2_mlx.train.recipe.fields import FIELDS
from dflash2_mlx.train.recipe.values import Loop, Loss, Recipe, Shape
from dflash2_mlx.train.reporting import figures
from dflash2_mlx.train.reporting.blocks import brief, machine_facts, training_report
from dflash2_mlx.train.reporting.history import History
from tests.train.test_history import evaluation_line, step_line

RECIPE = Recipe(target="tiny", data="texts", loop=Loop(steps=300))


def history(steps: int, evaluations: dict[int, float] | None = None) -> History:
    lines = [step_line(step, loss=3.0 + step, seconds=0.5, tokens=100) for step in range(1, steps + 1)]
    found = [evaluation_line(step, tokens) for step, tokens in (evaluations or {}).items()]
    return History(Path("history.jsonl"), sorted([*lines, *found], key=lambda line: line.step), 0)


def plot(report: Report, beginning: str) -> Plot:
    return next(block for block in report.blocks if isinstance(block, Plot) and block.title.startswith(beginning))


def table(report: Report, beginning: str) -> Table:
    return next(block for block in report.blocks if isinstance(block, Table) and block.title.startswith(beginning))


def test_stretches_are_means_of_equal_runs_of_steps() -> None:
    found = figures.stretches([step_line(step, loss=float(step)) for step in range(1, 251)], most=100)
    assert len(found) == 84
    assert [found[0].step, found[-1].step] == [3, 250]
    assert found[0].loss == figures.Spread(2.0, 1.0, 3.0)
    assert found[-1].loss == figures.Spread(250.0, 250.0, 250.0)
    assert found[0].tokens_per_second == 200


def test_what_is_no_number_counts_nowhere() -> None:
    steps = [step_line(1, loss=math.nan, top1=[math.nan, 0.5]), step_line(2, loss=4.0, top1=[0.25])]
    found = figures.stretch(steps)
    assert found.loss == figures.Spread(4.0, 4.0, 4.0)
    assert found.top1 == [0.25, 0.5]
    assert figures.stretch(steps[:1]).loss == figures.Spread(None, None, None)


def test_speed_and_time_left_are_of_all_steps_and_of_the_latest() -> None:
    steps = [step_line(1, seconds=100.0)] + [step_line(step, seconds=2.0, tokens=50) for step in range(2, 60)]
    assert figures.seconds_left(steps, 159) == pytest.approx(200.0)
    assert figures.seconds_left(steps, 10) == 0
    assert figures.seconds_left([], 10) is None
    assert figures.tokens_per_second(steps) == pytest.approx((100 + 58 * 50) / 216)
    assert figures.tokens_per_second([step_line(1, seconds=0.0)]) is None


def test_positions_of_a_plot_are_few() -> None:
    assert figures.shown_positions(7) == [0, 1, 3, 6]
    assert figures.shown_positions(16) == [0, 1, 3, 7, 15]
    assert figures.shown_positions(1) == [0]
    assert figures.shown_positions(0) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [(9999, "9,999"), (12345, "12.3 k"), (999_999, "1000 k"), (1_234_000, "1.23 M"), (10**9, "1.00 G")],
)
def test_counts(value: int, words: str) -> None:
    assert figures.count(value) == words


def test_the_report_tells_what_was_trained_and_how_fast() -> None:
    report = training_report(RECIPE, history(240, {100: 1.5, 200: 2.0, 240: 1.75}), {"data": "digest 1234"})
    summary = report.blocks[0]
    assert isinstance(summary, Text)
    assert "A drafter for tiny, trained on texts: 240 of 300 steps in 2 min: 24.0 k tokens at 200/s" in summary.text
    assert "the one after step 200: 2.00 tokens per cycle (code 3.00, chat 1.25)" in summary.text
    assert report.facts["data"] == "digest 1234"
    assert (
        "5 layers, block size 8, window 2048, convolution in groups of 16, selector of rank 256"
        in (report.facts["drafter"])
    )


def test_acceptance_is_plotted_by_kind_and_its_table_marks_the_best() -> None:
    evaluations = {10: 3.0} | dict.fromkeys(range(20, 220, 10), 1.5)
    report = training_report(RECIPE, history(220, evaluations), {})
    series = {one.name: one for one in plot(report, "Tokens per cycle").series}
    assert set(series) == {"all", "code", "chat"}
    assert series["code"].y == [None, 4.0, *[2.5] * 20]
    assert series["all"].x == [0, *evaluations]
    rows = table(report, "Tokens per cycle").rows
    assert rows[0][:2] == ["10 (best)", 3.0]
    assert len(rows) == 13
    assert table(report, "Tokens per cycle").note.startswith("8 earlier evaluations")
    bars = plot(report, "Share of cycles").series
    assert [one.name for one in bars] == ["last, step 210", "best, step 10"]


def test_positions_losses_and_the_course_are_told() -> None:
    report = training_report(RECIPE, history(240), {})
    assert [one.name for one in plot(report, "Recall@16").series] == ["position 1", "position 2"]
    assert table(report, "By position, the last 50 steps").rows == [["top-1", 0.5, 0.25], ["recall@16", 0.875, 0.5]]
    loss = plot(report, "Loss").series[0]
    assert (loss.x[:2], loss.y[:2], loss.low[1], loss.high[1]) == ([0, 2], [None, 4.5], 4.0, 5.0)
    assert plot(report, "Norm").baseline == 1.0
    assert plot(report, "Speed").series[0].y[1] == 200
    assert plot(report, "Learning rate").series[0].y[-1] == 1e-3
    assert len(table(report, "Every field").rows) == len(FIELDS)


def test_a_loss_over_some_columns_is_not_taken_for_one_over_all() -> None:
    assert "6,144 frequent columns" in plot(training_report(RECIPE, history(3), {}), "Loss").note
    whole = replace(RECIPE, loss=Loss(frequent=0))
    assert "All of the vocabulary" in plot(training_report(whole, history(3), {}), "Loss").note


def test_a_drafter_without_the_parts_has_no_plot_of_them() -> None:
    plain = replace(RECIPE, shape=Shape(selector=False, convolution=False, window=None))
    report = training_report(plain, history(3), {})
    assert [one.name for one in plot(report, "Loss").series] == ["loss", "rows"]
    assert report.facts["drafter"].endswith("no window, no convolution, no selector")


def test_a_run_that_has_just_begun_has_a_report() -> None:
    for found in (history(0), history(1), history(0, {0: 1.0})):
        page = html_page(training_report(RECIPE, found, {}))
        assert "Training a drafter for tiny" in page
    assert "has not been evaluated yet" in html_page(training_report(RECIPE, history(1), {}))
    assert "before the first step" in html_page(training_report(RECIPE, history(0, {0: 1.0}), {}))


def test_one_layer_and_one_kind_are_told_as_one() -> None:
    recipe = replace(RECIPE, shape=Shape(layers=1))
    report = training_report(
        recipe, History(Path("h"), [replace(evaluation_line(5, 2.0), by_kind={"other": 2.0})], 0), {}
    )
    assert report.facts["drafter"].startswith("1 layer,")
    assert [one.name for one in plot(report, "Tokens per cycle").series] == ["all"]
    assert table(report, "Tokens per cycle").columns == ["after step", "all"]
    assert "other" not in html_page(brief(report))


def test_a_run_that_diverged_has_a_page_too() -> None:
    lost = [step_line(step, loss=math.nan, ce=math.inf, grad_norm=math.nan, top1=[math.nan]) for step in (1, 2, 3)]
    page = html_page(training_report(RECIPE, History(Path("h"), list(lost), 0), {}))
    assert "nan" not in page.lower().replace("nanos", "")


def test_the_page_of_a_long_run_stays_small() -> None:
    assert len(html_page(training_report(RECIPE, history(5000, {5000: 2.0}), {}))) < 400_000


def test_what_the_terminal_shows_is_short() -> None:
    report = brief(training_report(RECIPE, history(240, {100: 1.5}), {"data": "x"}))
    assert [type(block) for block in report.blocks] == [Text, Plot, Plot, Plot, Plot]


def test_the_machine_is_named() -> None:
    facts = machine_facts()
    assert set(facts) == {"device", "memory", "system", "versions"}
    assert "mlx " in facts["versions"]
