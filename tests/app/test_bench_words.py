"""The page Bench as data and words: what is asked for, what the samples prove, and how it is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash2_app import bench_plots, bench_request, bench_words, model_words
from dflash2_app.bench_request import AUTOMATIC, Wanted
from dflash2_app.form_values import Wrong
from dflash2_mlx.bench.cells import Cell, cells
from dflash2_mlx.bench.model import Failure
from dflash2_mlx.bench.run import turns
from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.management import DrafterFit, ModelView
from dflash2_server.work import BenchJob
from tests.manager import fake_catalog as catalog
from tests.manager.doubles import FakeManager

WANTED = Wanted(
    block_sizes=(AUTOMATIC, 5), modes=("dflash",), kinds=("code", "prose"), temperatures=(0.0,), depths=(0,),
    prompts_per_kind=3, max_tokens=100, rounds=3,
)  # fmt: skip


def cell(**changes: Any) -> Cell:
    given: dict[str, Any] = {
        "arm": "block 5", "group": "code", "samples": 9, "speed": 60.0, "speed_low": 58.0, "speed_high": 61.0,
        "first_token_seconds": 0.1, "tokens_per_cycle": 3.0, "baseline": "plain", "pairs": 9, "ratio": 2.0,
        "ratio_low": 1.9, "ratio_high": 2.1, "interval": (1.8, 2.2),
    }  # fmt: skip
    return Cell(**(given | changes))


def run(samples: int, request: dict[str, Any] | None = None) -> BenchJob:
    """A bench of the fake manager's that many samples on."""
    benches = FakeManager().benches
    job = benches.start("demo", request or {"kinds": ["code", "prose"], "rounds": 4})
    benches.samples_per_tick = samples
    benches.tick()
    return benches.get(job.id)


# what is asked for


def test_the_request_has_none_for_automatic_and_every_field() -> None:
    assert WANTED.request() == {
        "block_sizes": [None, 5], "verify_modes": ["dflash"], "kinds": ["code", "prose"], "temperatures": [0.0],
        "depths": [0], "prompts_per_kind": 3, "max_tokens": 100, "rounds": 3,
    }  # fmt: skip


def test_the_estimate_is_what_the_bench_then_counts() -> None:
    wanted = replace(WANTED, modes=("dflash", "adaptive"), temperatures=(0.0, 1.0), depths=(0, 2048))
    job = FakeManager().benches.start("demo", wanted.request())
    assert wanted.samples == job.total == 2 * 5 * 12 * 3
    words = bench_request.amount_words(wanted)
    assert words.startswith("360 samples: 10 ways of decoding × 12 prompts × 3 rounds; up to 36\u202f000 tokens")
    assert "no difference" not in words


def test_too_little_to_tell_a_difference_is_said_before_it_runs() -> None:
    words = bench_request.amount_words(replace(WANTED, rounds=2))
    assert "6 pairs of a kind tell no difference: it takes 8." in words


def test_what_has_to_be_chosen_is_named() -> None:
    assert bench_request.missing(WANTED) is None
    assert bench_request.missing(replace(WANTED, kinds=(), block_sizes=())) == (
        "Choose a block size and a kind of content."
    )


@pytest.mark.parametrize("typed", ["", None, "0", "-1", "2.5", "x"])
def test_a_number_is_1_or_more(typed: Any) -> None:
    with pytest.raises(Wrong, match="Rounds"):
        bench_request.whole("rounds", typed)
    assert bench_request.whole("rounds", " 1 000 ") == 1000


def test_no_more_prompts_are_counted_than_there_are() -> None:
    assert bench_request.whole("prompts_per_kind", "12") == 12
    with pytest.raises(Wrong, match="Prompts per kind: 13 is more than the 12 that there are of a kind"):
        bench_request.whole("prompts_per_kind", "13")


async def _loaded() -> FakeManager:
    manager = FakeManager()
    await manager.save_settings("demo", {"dflash_enabled": True})
    await manager.load("demo")
    return manager


def test_pairs_are_offered_loaded_ones_first_and_what_comes_before_is_said() -> None:
    import asyncio

    manager = asyncio.run(_loaded())
    views = bench_request.offered(manager.models())
    assert [view.id for view in views] == ["demo", catalog.TARGET]
    assert bench_request.choice_words(views[0]) == "demo – loaded, with demo-drafter"
    assert bench_request.note_words(views[0]) == ""
    assert bench_request.widest(views[0]) == 8
    assert bench_request.widest(views[1]) == 16
    assert "DFlash is off" in bench_request.note_words(views[1]) == bench_request.hindrance_words(views[1])
    on = replace(views[1], settings=views[1].settings.model_copy(update={"dflash_enabled": True}))
    assert "loads it first" in bench_request.note_words(on)
    assert bench_request.hindrance_words(on) == ""
    assert bench_request.depths_for(views[0], 128) == (0,)
    assert bench_request.depths_for(views[1], 128) == (0, 2048, 8192, 32768)


def test_the_drafter_that_is_chosen_by_itself_is_the_automatic_one() -> None:
    view = replace(view_of_target(), settings=ModelSettings(dflash_enabled=True))
    copy = DrafterFit(id="a-copy", repo_id=None, engine="dflash", block_size=8)
    view = replace(view, drafters=(copy, *view.drafters))
    assert bench_request.widest(view) == 16
    assert catalog.DRAFTER in model_words.dflash(view).text
    unclear = replace(view, automatic_drafter=None)
    assert bench_request.drafter_of(unclear) is None
    assert "several drafters fit" in model_words.dflash(unclear).text


def view_of_target() -> ModelView:
    return next(view for view in FakeManager().models() if view.id == catalog.TARGET)


# what is said of it


def test_progress_names_what_runs() -> None:
    job = run(4)
    assert job.plan is not None
    assert bench_words.progress_words(job).startswith(f"4 of {job.total} samples · now ")
    turn = list(turns(job.plan))[4]
    assert bench_words.next_words(job) == f"now {turn.arm.name}, {turn.prompt.kind}"
    assert bench_words.progress_words(replace(job, stage="load")) == "loading the model …"
    assert "ending" in bench_words.progress_words(replace(job, stage="cancelling"))
    assert bench_words.progress_words(replace(job, state="cancelled")) == f"4 of {job.total} samples"


def test_a_job_without_a_plan_has_no_figures() -> None:
    job = BenchJob(id="b", model="demo", state="failed", created=0.0)
    assert bench_words.result_of(job) is None
    assert bench_words.request_words(job) == ""


@pytest.mark.parametrize(
    ("changes", "words", "tone"),
    [
        ({}, "faster", "good"),
        ({"ratio": 0.9, "interval": (0.85, 0.95)}, "slower than plain decoding", "warn"),
        ({"ratio": 1.02, "interval": (0.97, 1.06)}, "no difference to be told", "idle"),
        ({"interval": None, "pairs": 3}, "too few pairs to tell: 3 of at least 8", "idle"),
        ({"ratio": None, "interval": None}, "no pair of samples yet", "idle"),
        ({"baseline": None, "ratio": None, "interval": None}, "what the others are compared with", "idle"),
        ({"ran_plain": 2}, "faster; 2 of 9 ran without drafts", "good"),
    ],
)
def test_no_more_is_said_than_the_samples_prove(changes: dict[str, Any], words: str, tone: str) -> None:
    assert (bench_words.verdict(cell(**changes)), bench_words.tone(cell(**changes))) == (words, tone)


def test_the_summary_tells_the_kinds_apart() -> None:
    kinds = [
        cell(), cell(group="prose", ratio=0.9, interval=(0.8, 0.95)), cell(group="chat", interval=(0.9, 1.1)),
        cell(group="copy-edit", interval=None), cell(arm="block 8", group="chat"),
    ]  # fmt: skip
    assert bench_words.summary([cell(group="all", ratio=1.4), cell(arm="block 8", ratio=1.1)], kinds) == (
        "block 5: 1.40 times the speed of plain, the median over all prompts. Faster on code. Slower on prose. "
        "No difference to be told on chat. Too few pairs to tell on copy-edit."
    )
    assert bench_words.summary([], []) == "Nothing to compare yet."


def test_the_headline_has_a_number_only_for_what_is_proved() -> None:
    few = [cell(group="all", ratio=2.4, interval=None, pairs=3), cell(arm="block 8", group="all", interval=None)]
    assert bench_words.summary(few, []) == "Too few pairs to tell: 9 of at least 8."
    even = {"group": "all", "interval": (0.9, 3.0)}
    lucky, proved = cell(ratio=2.9, **even), cell(arm="block 8", group="all", ratio=1.3, interval=(1.2, 1.4))
    assert bench_words.summary([lucky], []) == "Over all prompts no difference to be told."
    assert bench_words.summary([lucky, proved], []).startswith("block 8: 1.30 times the speed of plain")
    kinds = [cell(), cell(group="prose", ratio=0.9, interval=(0.8, 0.95)), cell(arm="block 8", interval=None)]
    assert bench_words.summary([lucky], kinds) == (
        "Over all prompts no difference to be told. block 5: Faster on code. Slower on prose."
    )


def test_the_table_groups_arms_and_escapes_what_it_shows() -> None:
    html = bench_words.table_html([cell(arm="<b>", baseline=None, ratio=None), cell()], "kind")
    assert '<th scope="rowgroup" rowspan="2">code</th><td>&lt;b&gt;</td>' in html
    assert "<td>2.00 ×</td><td>1.90 to 2.10</td><td>1.80 to 2.20</td><td>3.00</td>" in html
    assert '<td class="tone-good">faster</td>' in html
    assert "99 % interval" in html
    assert "<th" in bench_words.table_html([cell(group="2048")], "depth")
    assert "2\u202f048 tokens" in bench_words.table_html([cell(group="2048")], "depth")
    assert "No samples" in bench_words.table_html([], "kind")


def test_equal_texts_disturbances_and_failures_are_told() -> None:
    job = run(12)
    assert bench_words.disturbed_words(job.samples) == "other requests ran (1 of 12 samples)"
    assert bench_words.noted_words(job.samples) == ""
    assert bench_words.same_words([cell(same_texts=4, compared_texts=4)]).startswith("All 4 greedy answers")
    assert bench_words.same_words([cell(same_texts=3, compared_texts=4)]).startswith("3 of 4 greedy answers")
    assert bench_words.same_words([cell()]) == ""
    result = bench_words.result_of(job)
    assert result is not None
    assert bench_words.failures_words(result) == ""
    failed = replace(result, failures=(Failure(arm="plain", prompt="p", depth=0, round=0, error="no room"),))
    assert bench_words.failures_words(failed) == "1 sample failed. The first: no room"


def test_what_is_noted_is_no_disturbance_and_the_list_is_short() -> None:
    sample = run(1).samples[0]
    cached = "prompt tokens were cached"
    notes = ["other requests ran", f"12 {cached}", f"15 {cached}; other requests ran", *"abcdefg"]
    samples = [replace(sample, note=note) for note in notes]
    assert bench_words.disturbed_words(samples) == "other requests ran (2 of 10 samples)"
    noted = bench_words.noted_words(samples)
    assert noted.startswith(f"2 samples: 12 to 15 {cached}. 1 sample: a. ")
    assert "And 2 more sorts of notes" in noted
    assert "other requests" not in noted


# plots


def test_bars_and_boxes_come_from_the_samples_so_far() -> None:
    result = bench_words.result_of(run(30))
    assert result is not None
    found = cells(result, "kind")
    speed = bench_plots.speed_options(found, "kind")
    arms = [arm.name for arm in result.plan.arms]
    assert [series["name"] for series in speed["series"]] == arms
    assert speed["xAxis"]["data"] == ["code", "prose"]
    assert speed["series"][0]["data"][0] == pytest.approx(28, abs=2)
    ratio = bench_plots.ratio_options(found, "kind")
    assert [series["name"] for series in ratio["series"]] == arms[1:]
    low, quartile, median, _, high = ratio["series"][0]["data"][0]
    assert low <= quartile <= median <= high
    assert median == pytest.approx(2.3, abs=0.2)
    assert ratio["series"][0]["markLine"]["data"] == [{"yAxis": 1}]
    assert speed["series"][1]["color"] == ratio["series"][0]["color"] != speed["series"][0]["color"]


def test_a_whisker_never_ends_within_its_box_and_what_is_missing_is_empty() -> None:
    inside = cell(interval=(1.95, 2.05))
    options = bench_plots.ratio_options([inside, cell(group="prose", arm="block 8")], "kind")
    assert options["series"][0]["data"] == [[1.9, 1.9, 2.0, 2.1, 2.1], []]
    assert bench_plots.speed_options([], "kind")["series"] == []


def test_plots_are_said_in_words() -> None:
    assert bench_plots.speed_said([cell()], "kind") == "Tokens per second. code: block 5 60.0"
    assert bench_plots.ratio_said([cell()], "kind").endswith("code: block 5 2.00")
    assert bench_plots.ratio_said([], "kind").endswith("No pairs yet")
