"""The report of a benchmark: its tables and plots, and the honest words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash2_mlx.bench.blocks import report
from dflash2_mlx.bench.disturbed import MOST, gathered
from dflash2_mlx.bench.model import Arm, BenchPrompt, Result, Sample
from dflash2_mlx.bench.run import run
from dflash2_mlx.bench.tables import verdict
from dflash2_mlx.report.blocks import Plot, Report, Table, Text
from dflash2_mlx.report.page import html_page
from tests.bench.benching import BLOCK, PLAIN, NoisyBackend, plan, prompts, sample

SPEEDS = {"plain": 10.0, "block 5": 15.0}
MIXED = (*prompts(4), *prompts(4, depth=256))


class Changing(NoisyBackend):
    """A backend whose samples of speculative arms are changed."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(speeds=SPEEDS, concurrent=True)
        self.changes = changes

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample:
        found = super().sample(arm, prompt, max_tokens=max_tokens, seed=seed)
        return replace(found, **self.changes) if arm.asks_for_speculation else found


def result(
    backend: NoisyBackend | None = None, *arms: Arm, facts: dict[str, str] | None = None, **options: Any
) -> Result:
    return run(plan(*arms, **options), {"pair": backend or NoisyBackend(speeds=SPEEDS)}, facts=facts)


def table(made: Report, title: str) -> Table:
    return next(block for block in made.blocks if isinstance(block, Table) and block.title.startswith(title))


def plots(made: Report) -> dict[str, Plot]:
    return {block.title: block for block in made.blocks if isinstance(block, Plot)}


def words(made: Report) -> str:
    return "\n".join(block.text for block in made.blocks if isinstance(block, Text))


def test_the_summary_has_a_row_for_each_arm() -> None:
    made = report(result())
    summary = table(made, "All prompts")
    rows = [dict(zip(summary.columns, row, strict=True)) for row in summary.rows]
    assert [row["arm"] for row in rows] == ["plain", "block 5"]
    assert rows[0]["verdict"] == "baseline"
    assert rows[1]["ratio"] == pytest.approx(1.5)
    assert rows[1]["99 % interval"] == "1.50 to 1.50"
    assert rows[1]["verdict"] == "mixed kinds"
    assert rows[1]["same greedy texts"] == "12 of 12"
    assert [row["engine"] for row in rows] == ["plain", "dflash2"]


def test_a_verdict_is_of_one_kind_of_content() -> None:
    made = report(result(prompts=tuple(prompts(4, ["code"]))))
    assert [row[5] for row in table(made, "All prompts").rows] == ["baseline", "faster"]


def test_an_arm_has_one_colour_in_all_plots() -> None:
    found = plots(report(result(prompts=MIXED)))
    assert len(found) == 4
    for plot in found.values():
        assert {series.name: series.colour for series in plot.series}.items() <= {"plain": 0, "block 5": 1}.items()


def test_kinds_and_depths_have_tables_and_plots() -> None:
    made = report(result(prompts=MIXED))
    found = plots(made)
    assert list(found) == [
        "Speed by kind of content",
        "Ratio to the baseline by kind of content",
        "Ratio to the baseline by context depth",
        "Acceptance by position",
    ]
    speed = found["Speed by kind of content"]
    assert [(series.name, list(series.x)) for series in speed.series] == [
        ("plain", ["code", "chat"]),
        ("block 5", ["code", "chat"]),
    ]
    depth = found["Ratio to the baseline by context depth"]
    assert depth.kind == "lines"
    assert depth.baseline == 1.0
    assert [(series.name, list(series.x)) for series in depth.series] == [("block 5", [0.0, 256.0])]
    (line,) = found["Acceptance by position"].series
    assert (line.name, list(line.y)) == ("block 5", pytest.approx([0.6, 0.4]))
    assert table(made, "Tokens per second").rows[1] == ["block 5", "15.0 (1.50×)", "15.0 (1.50×)"]
    assert "at depths of 0, 256 tokens" in words(made)


def test_one_kind_at_one_depth_is_told_once() -> None:
    made = report(result(prompts=tuple(prompts(3, ["code"]))))
    assert list(plots(made)) == ["Acceptance by position"]


def test_too_few_pairs_are_no_finding() -> None:
    made = report(result(rounds=1, prompts=tuple(prompts(4, ["code"]))))
    assert [row[5] for row in table(made, "All prompts").rows] == ["baseline", "too few pairs"]
    several = report(result(rounds=1))
    assert table(several, "Tokens per second").rows[1] == ["block 5", "15.0 (≈1.50×)", "15.0 (≈1.50×)"]
    assert "takes at least 8 pairs" in words(made)


@pytest.mark.parametrize(("speed", "word"), [(5.0, "slower"), (20.0, "faster")])
def test_verdicts_are_told_apart(speed: float, word: str) -> None:
    made = result(NoisyBackend(speeds={"block 5": speed}))
    from dflash2_mlx.bench.cells import cells

    found = cells(made, "all")[1]
    assert verdict(found) == word
    assert verdict(replace(found, interval=(0.9, 1.1))) == "no difference to be told"


def test_the_report_carries_what_it_stands_on() -> None:
    made = report(result(facts={"machine": "m", "command": "c"}, seed=7, cool_down=0.0))
    assert made.facts["machine"] == "m"
    assert made.facts["target"] == "a fake"
    assert made.facts["seed"] == "7"
    assert "measured" in made.facts


def test_an_arm_that_ran_plain_is_shown_as_such() -> None:
    made = report(result(NoisyBackend(speeds=SPEEDS, engines={"block 5": "plain"})))
    assert table(made, "All prompts").rows[1][-1] == "plain, though asked to speculate"
    assert "block 5 asked for speculation and ran plain in 12 of 12 samples." in words(made)


@pytest.mark.parametrize(("kind", "told"), [("float32", "which float32 should not do"), ("bfloat16", "near-ties")])
def test_forks_of_greedy_texts_are_told(kind: str, told: str) -> None:
    made = report(result(Changing(digest="another"), facts={"target compute type": kind}))
    assert table(made, "All prompts").rows[1][8] == "0 of 12"
    assert "block 5 gave another greedy text in 12 of 12" in words(made)
    assert told in words(made)


def test_equal_texts_are_no_note() -> None:
    assert "another greedy text" not in words(report(result(facts={"target compute type": "float32"})))


def test_disturbed_and_short_samples_are_told() -> None:
    text = words(report(result(Changing(note="other requests ran", generation_tokens=1))))
    assert "12 samples: other requests ran." in text
    assert "12 samples without a speed" in text


@pytest.mark.parametrize(
    ("engine", "told"),
    [("dflash2", "dflash2"), ("plain", "plain, though asked to speculate"), ("", "not told")],
)
def test_with_several_in_flight_it_says_whether_speculation_ran(engine: str, told: str) -> None:
    made = report(result(Changing(engine=engine), concurrency=2))
    assert f"With 2 in flight, speculation in block 5: {told}." in words(made)
    assert [row[:2] for row in table(made, "Throughput with 2 in flight").rows] == [["plain", 3], ["block 5", 3]]


def test_an_ended_run_says_so_and_what_failed() -> None:
    backend = NoisyBackend(fails=lambda number: number in (5, 8, 9, 10))
    text = words(report(result(backend)))
    assert "Ended early (3 samples in a row failed: call 10 failed): 5 of 24 samples are there" in text
    assert "4 samples failed; the first was block 5 on p1, round 1: call 5 failed" in text


def test_without_a_sample_there_is_still_a_report() -> None:
    made = report(run(plan(), {"pair": NoisyBackend()}, cancelled=lambda: True))
    assert "There is no sample." in words(made)
    assert "Ended early (cancelled): 0 of 24" in words(made)


def test_chosen_widths_are_told_as_shares_of_passes() -> None:
    adaptive = replace(BLOCK, name="adaptive", block_size=None, verify_mode="adaptive")
    made = report(result(Changing(cycles_by_width=(30, 0, 10)), PLAIN, adaptive, BLOCK))
    widths = table(made, "Widths chosen")
    assert widths.columns == ("arm", "plain", "2", "3")
    assert widths.rows == [["adaptive", "75%", None, "25%"]]


def test_the_page_has_all_of_it() -> None:
    page = html_page(report(result(prompts=MIXED, facts={"machine": "a machine"})))
    for text in ("a machine", "Speed by kind of content", "Acceptance by position", "block 5", "How answers ended"):
        assert text in page


def noted(*given: str) -> list[str]:
    return list(gathered([sample(note=note) for note in given]))


def test_notes_that_differ_in_figures_alone_are_one_with_their_range() -> None:
    assert noted("12 prompt tokens were cached", "40 prompt tokens were cached; other requests ran") == [
        "1 sample: other requests ran.",
        "2 samples: 12 to 40 prompt tokens were cached.",
    ]
    assert noted(
        "990 prompt tokens at depth 512", "980 prompt tokens at depth 2048", "no drafter: qwen3-8b 4.5 is"
    ) == [
        "1 sample: no drafter: qwen3-8b 4.5 is.",
        "1 sample: 990 prompt tokens at depth 512.",
        "1 sample: 980 prompt tokens at depth 2048.",
    ]


def test_the_gravest_notes_come_first_and_what_is_cut_is_told() -> None:
    harmless = [f"remark {sign}" for sign in "abcdefgh" for _ in range(2)]
    found = noted(*harmless, "the answer came in one piece: no speed", "other requests ran")
    assert found[:2] == ["1 sample: other requests ran.", "1 sample: the answer came in one piece: no speed."]
    assert len(found) == MOST + 1
    assert found[-1].startswith("And 4 more sorts of notes, 8 in all")


def test_a_first_token_of_a_prompt_that_was_cached_is_left_out() -> None:
    made = report(result(Changing(cached_tokens=4), concurrency=2))
    assert [row[7] for row in table(made, "All prompts").rows] == [0.5, None]
    assert [row[3:] for row in table(made, "Throughput").rows] == [[0.5, 0.5], [None, None]]
