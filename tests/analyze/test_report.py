"""The report: every figure has its place, what does not apply is left out and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import machine
from dflash2_mlx.analyze.blocks import report
from dflash2_mlx.analyze.facts import facts_of
from dflash2_mlx.analyze.run import Figures, analyze
from dflash2_mlx.report.blocks import Heatmap, Plot, Report, Table, Text
from dflash2_mlx.report.files import write_report
from tests.analyze.small import small, written


@pytest.fixture(scope="module", params=[False, True], ids=["dflash2", "dflash"])
def figures(request: pytest.FixtureRequest) -> Figures:
    of = small(first_generation=request.param)
    texts = [
        written(of, tokens=12, temperature=temperature, kind=kind, seed=seed)
        for seed, kind in enumerate(("code", "prose"))
        for temperature in (0.0, 1.0)
    ]
    return analyze(of.pair, texts, attention_every=5)


def blocks(of: Report, kind: type[Any]) -> dict[str, Any]:
    return {
        getattr(block, "title", getattr(block, "text", "")): block for block in of.blocks if isinstance(block, kind)
    }


def test_tables_hold_the_figures(figures: Figures) -> None:
    found = blocks(report(figures), Table)
    served = figures.served
    lengths = found["Tokens per cycle"]
    assert [row[0] for row in lengths.rows] == list(figures.arms)
    oracle = [served.oracle] if figures.engine == "dflash2" else []
    assert lengths.rows[0][1:] == [served.tokens, served.cycle_tokens, served.expected, *oracle]
    assert f"{figures.measured[0.0]:.3f} at T 0" in lengths.note
    assert list(found["Accuracy by position"].rows[0][1:]) == served.accuracy
    recall = found["Recall@k by position"]
    assert [row[1] for row in recall.rows[:3]] == list(served.recall)[:3]
    kinds = found["Agreement by kind"]
    assert [row[:3] for row in kinds.rows] == [[kind, 2, arm.tokens] for kind, arm in figures.kinds.items()]
    for table in found.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_what_figures_of_temperature_1_are_means_of_is_said(figures: Figures) -> None:
    note = blocks(report(figures), Table)["Tokens per cycle"].note
    assert "it is a mean over all anchors." in note
    assert "counted over cycles" in note
    assert ("at T 1 “no selector” changes how drafts are proposed too" in note) == (figures.engine == "dflash2")
    if figures.engine == "dflash2":
        demo = (Path(__file__).parents[2] / "docs" / "analysis-demo.md").read_text(encoding="utf-8")
        assert note.partition("Measured by")[0] in demo


def test_plots_hold_the_figures(figures: Figures) -> None:
    found = report(figures)
    plots, maps = blocks(found, Plot), blocks(found, Heatmap)
    by_position = plots["Share of right drafts by position, temperature 0"]
    assert list(by_position.series[0].y) == figures.served.accuracy
    assert list(by_position.series[0].x) == [1, 2, 3, 4]
    assert list(by_position.series[-1].y) == figures.served.after_prefix
    assert figures.attention is not None
    values = [found.values for found in maps.values()]
    assert values == [figures.attention.heads, figures.attention.rows]
    for one in maps.values():
        assert (len(one.rows), len(one.columns)) == (len(one.values), len(one.values[0]))
    recall = plots["Recall by the drafter's own logits"]
    assert [series.name for series in recall.series] == [f"recall@{k}" for k in figures.served.recall]


def test_what_does_not_apply_is_left_out_and_said(figures: Figures) -> None:
    found = report(figures)
    first = figures.engine == "dflash"
    assert any("first-generation" in text for text in blocks(found, Text)) == first
    assert ("What each part brings" in blocks(found, Text)) != first
    assert ("Recall by the scores along the selector's walk" in blocks(found, Plot)) != first
    assert any("oracle" in column for column in blocks(found, Table)["Agreement by kind"].columns) != first


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_of_one_temperature_or_too_short_ones_give_a_report(temperature: float, tmp_path: Path) -> None:
    of = small()
    for tokens in (12, 3):
        found = report(analyze(of.pair, [written(of, tokens=tokens, temperature=temperature)], stride=2))
        write_report(found, tmp_path / "report.html")
        write_report(found, tmp_path / "report.json")


def test_facts_tell_what_the_report_stands_on() -> None:
    of = small()
    figures = analyze(of.pair, [written(of, tokens=12)], stride=2)
    facts = facts_of(of.pair, figures, "the command")
    assert facts["command"] == "the command"
    assert (facts["target"], facts["drafter"], facts["draft quantisation"]) == ("target", "drafter", "off")
    assert (facts["engine"], facts["block size"], facts["tokens"]) == ("dflash2", "5", "12")
    assert facts["blocks"] == "4 greedy, 0 drawn, every 2th token an anchor"
    assert facts["texts"] == "1 greedy, 0 drawn at temperature 1"
    assert facts["dtype"] == "target float32, drafter float32"
    assert all(version in facts["versions"] for version in machine.versions().values())
    assert all(facts.values())
