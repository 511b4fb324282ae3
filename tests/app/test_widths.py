"""Block sizes, exactness and quantised copies in words and HTML."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_app import exactness_line, model_words, quantize_words, width_view
from dflash2_app.live_pair import engine_words
from dflash2_app.wording import size
from dflash2_mlx.decode.exactness_report import ExactnessReport, WidthExactness
from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_mlx.facts import Tensor
from dflash2_quantize.checkpoint import stored_bytes
from dflash2_quantize.packing import plan_for
from dflash2_quantize.source import open_source
from dflash2_server.management import ModelView
from dflash2_server.work import QuantizeJob
from tests.manager import fake_catalog as catalog
from tests.manager.doubles import FakeManager
from tests.quantize import subjects

FIGURES = WidthFigures(
    block_size=4, width=3, reason="block 3: <60.0>", depth=3000, rates=(30.0, 45.0, 60.0, None),
    costs={0: (0.03, 0.04, 0.045, 0.07), 2048: (0.031, 0.041, 0.0462, None), 8192: (0.05, 0.06, 0.07, 0.08)},
    acceptance={"all": (0.8, 0.6, 0.4)}, cycles_by_width=(4, 0, 1200), switches=2, probes=1, source="cycles",
)  # fmt: skip
JOB = QuantizeJob(
    id="q", drafter=catalog.DRAFTER, spec="w4a16:gs64", name="copy", state="running", created=0.0, stage="write",
    share=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "mode", "words", "chosen"),
    [
        (None, "adaptive", "Adaptive: chosen cycle by cycle, from plain decoding up to 4. Now 3.", 3),
        (2, "adaptive", "Adaptive: chosen cycle by cycle, from plain decoding up to 2. Now 3.", 3),
        (None, "dflash", "Automatic: the best block of 2 to 4, chosen for each request. Now 3.", 3),
        (4, "dflash", "Fixed at 4 by the settings.", 4),
        (None, "off", "Verify mode off: plain decoding.", 1),
    ],
)
def test_how_the_block_size_is_chosen(size: int | None, mode: str, words: str, chosen: int) -> None:
    assert width_view.choice_words(FIGURES, size, mode) == words
    assert width_view.chosen_width(FIGURES, size, mode) == chosen


def test_the_costs_are_those_of_the_depth_that_is_reached() -> None:
    assert width_view.costs_here(FIGURES)[2] == 0.0462
    assert width_view.costs_here(replace(FIGURES, depth=100_000))[0] == 0.05
    assert width_view.costs_here(replace(FIGURES, depth=0, costs={2048: (1.0,)})) == (1.0,)
    assert width_view.costs_here(replace(FIGURES, costs={})) == ()


def test_the_chosen_bar_is_marked_and_said() -> None:
    html = width_view.rates_html(FIGURES, chosen=3)
    assert "1: 30.0, 2: 45.0, 3: 60.0 (in use), 4: not known" in html
    assert html.count("column chosen") == 1
    assert '<div style="height:100.0%"></div></div><span>3</span>' in html
    assert '<div style="height:50.0%"></div></div><span>1</span>' in html
    assert "Nothing is measured" in width_view.rates_html(replace(FIGURES, rates=(None, None)), chosen=1)


def test_cost_and_cycles_stand_below_each_block_size() -> None:
    html = width_view.table_html(FIGURES, chosen=3)
    assert '<td>31.0</td><td>41.0</td><td class="chosen" aria-current="true">46.2</td><td>–</td>' in html
    assert '<td>4</td><td>0</td><td class="chosen" aria-current="true">1\u202f200</td><td>0</td>' in html
    assert "1 plain" in html


def test_reasons_are_escaped_and_switches_counted() -> None:
    html = width_view.facts_html(FIGURES)
    assert "<dd>block 3: &lt;60.0&gt;</dd>" in html
    assert "2, 1 cycle at another block size" in html
    assert "3\u202f000 tokens of context" in html


async def _view(**settings: Any) -> ModelView:
    manager = FakeManager()
    await manager.save_settings("demo", {"dflash_enabled": True, **settings})
    return await manager.load("demo")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dflash_verify_mode": "dflash", "dflash_block_size": 5}, "5"),
        ({"dflash_verify_mode": "dflash"}, "automatic, now 8"),
        ({"dflash_verify_mode": "adaptive", "dflash_block_size": 6}, "up to 6, now 8"),
        ({}, "automatic, now 8"),
        ({"dflash_verify_mode": "off"}, "–"),
    ],
)
def test_the_block_size_in_force_in_a_few_words(settings: dict[str, Any], words: str) -> None:
    view = asyncio.run(_view(**settings))
    assert width_view.in_force_words(view) == words
    assert ("Block size", words) in model_words.running_facts(view)
    assert f"block size {words}" in engine_words(view)


# exactness


@pytest.mark.parametrize(("verdict", "tone"), [("equal", "good"), ("rounding", "good"), ("different", "warn")])
def test_only_what_differs_is_a_warning(verdict: str, tone: str) -> None:
    width = WidthExactness(2, verdict, rows=4, gap=0.1, share=0.3, flips=1, margin=0.01, rolled_back=False)
    report = ExactnessReport("bfloat16", (width,))
    assert exactness_line.tone(report) == tone
    assert exactness_line.words(report) == f"Exactness, bfloat16: {report.summary}"


# quantised copies


def test_a_choice_is_told_as_the_command_line_takes_it() -> None:
    from dflash2_mlx.drafter.quantization import parse_spec

    for bits in quantize_words.BITS:
        for group in quantize_words.GROUPS:
            for activation in quantize_words.ACTIVATIONS:
                spec = quantize_words.spec_of(bits, activation, group)
                assert parse_spec(str(spec)) == spec


def test_only_drafters_that_are_not_quantised_yet_are_offered() -> None:
    views = {view.id: view for view in catalog.views()}
    drafter = views[catalog.DRAFTER]
    assert quantize_words.can_be_quantised(drafter)
    assert not quantize_words.can_be_quantised(views[catalog.TARGET])
    assert not quantize_words.can_be_quantised(replace(drafter, quantization="4-bit, group 64"))
    assert not quantize_words.can_be_quantised(replace(drafter, problem="no weights"))


@pytest.mark.parametrize("text", ["w4a16:gs64", "w2a16:gs32", "w8a32:gs64"])
def test_the_size_of_a_copy_is_what_is_then_written(text: str, tmp_path: Path) -> None:
    folder = subjects.write(tmp_path / "source")
    view = replace(next(view for view in catalog.views() if view.id == catalog.DRAFTER), path=str(folder))
    spec = quantize_words.spec_of(*map(int, re.findall(r"\d+", text)))
    assert str(spec) == text
    source = open_source(str(folder))
    written = stored_bytes(source, plan_for(source.model(), spec), spec.dtype)
    words = quantize_words.estimate_words(quantize_words.tensors_of(view), spec)
    assert words == f"About {size(written)} instead of {size(source.bytes)}; the original stays."


def test_a_copy_that_would_be_larger_is_said_to_be() -> None:
    tensors = {"fc.weight": Tensor("BF16", (64, 64), 8192), "norm.weight": Tensor("BF16", (64_000,), 128_000)}
    words = quantize_words.estimate_words(tensors, quantize_words.spec_of(8, 32, 64))
    assert words.startswith("About 261 kB, which is larger than now (136 kB)")


def test_a_drafter_that_cannot_be_read_has_no_estimate(tmp_path: Path) -> None:
    view = replace(next(view for view in catalog.views() if view.id == catalog.DRAFTER), path=str(tmp_path))
    assert "once it is written" in quantize_words.estimate_words(
        quantize_words.tensors_of(view), quantize_words.spec_of(4, 16, 64)
    )


@pytest.mark.parametrize(
    ("changes", "words", "tone"),
    [
        ({}, "w4a16:gs64 to copy: write 50 %", "busy"),
        ({"stage": None, "share": None}, "w4a16:gs64 to copy: starting", "busy"),
        ({"state": "completed", "bytes": 3 * 10**8}, "copy is written: 300 MB", "good"),
        ({"state": "completed", "summary": "a quarter"}, "copy is written: a quarter", "good"),
        ({"state": "cancelled"}, "w4a16:gs64 to copy was cancelled; nothing of it is left.", "idle"),
        ({"state": "failed", "error": "disk full"}, "w4a16:gs64 to copy failed: disk full", "bad"),
    ],
)
def test_a_job_in_words(changes: dict[str, Any], words: str, tone: str) -> None:
    assert quantize_words.job_words(replace(JOB, **changes)) == (words, tone)


def test_the_newest_job_of_a_drafter_is_shown() -> None:
    drafter = next(view for view in catalog.views() if view.id == catalog.DRAFTER)
    other, newer = replace(JOB, drafter="other"), replace(JOB, id="newer")
    found = quantize_words.job_of([other, newer, JOB], drafter)
    assert found is not None
    assert found.id == "newer"
    assert quantize_words.job_of([other], drafter) is None
