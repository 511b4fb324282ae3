"""What the page Live shows, as data."""

from __future__ import annotations

from dataclasses import replace

from dflash2_app import plots
from dflash2_app.live_page import requests_html, tile_values
from dflash2_server.management import ActiveRequest, LiveFigures, PairFigures

SAMPLE = LiveFigures(
    time=1000.0, prompt_tps=1500.0, generation_tps=61.25, tokens_per_cycle=3.5, running=1, waiting=2,
    weights_bytes=4_000_000_000, prefix_cache_bytes=1_000_000_000, request_bytes=2_000_000_000,
    free_cache_bytes=1_000_000_000, memory_limit=10_000_000_000,
)  # fmt: skip
REQUEST = ActiveRequest(
    number=7, model="<b>", phase="prefill", seconds=12.3, prompt_tokens=300, prompt_done=100, cached_tokens=50,
    generation_tokens=0, tokens_per_second=0.0, tokens_per_cycle=1.0, engine="dflash2",
)  # fmt: skip


def at(time: float, **changes: float) -> LiveFigures:
    return replace(SAMPLE, time=time, **changes)  # type: ignore[arg-type]


def test_samples_that_lie_apart_are_not_joined() -> None:
    history = [at(1), at(2), at(60)]
    assert plots.points(history, lambda sample: sample.generation_tps) == [
        [1000, 61.25], [2000, 61.25], [3000, None], [60000, 61.25],
    ]  # fmt: skip


def test_the_axis_ends_with_the_latest_sample() -> None:
    axis = plots.speed_options([at(10), at(400)])["xAxis"]
    assert (axis["min"], axis["max"]) == (100_000, 400_000)
    assert plots.cycle_options([])["series"][0]["data"] == []


def test_the_plots_are_said_in_words() -> None:
    history = [at(1, generation_tps=90.0), at(2)]
    assert "answers 61.2, prompts 1500. Highest of answers: 90.0" in plots.speed_words(history)
    assert plots.cycle_words(history).endswith("Now: 3.50")
    assert "no samples" in plots.speed_words([])


def test_memory_is_drawn_to_the_limit_or_beyond_it() -> None:
    html = plots.memory_html(SAMPLE)
    assert 'class="part-weights" style="width:40.00%"' in html
    assert 'style="left:100.00%"' in html
    assert "weights 4.00 GB, prefix cache 1.00 GB, requests 2.00 GB, free buffers 1.00 GB. Limit: 10.0 GB" in html
    beyond = plots.memory_html(replace(SAMPLE, memory_limit=4_000_000_000))
    assert 'style="left:50.00%"' in beyond
    assert 'class="part-weights" style="width:50.00%"' in beyond


def test_acceptance_and_times_are_bars_with_words() -> None:
    figures = PairFigures(
        acceptance_by_position=(0.9, 0.5, 1.2), draft_seconds=1.0, verify_seconds=3.0, commit_seconds=None
    )
    html = plots.acceptance_html(figures)
    assert 'aria-label="Accepted drafts by position: 1: 90 %, 2: 50 %, 3: 120 %"' in html
    assert "height:50.0%" in html
    assert "height:100.0%" in html
    times = plots.cycle_time_html(figures)
    assert 'aria-label="Time of a cycle: draft 25 %, verify 75 %"' in times
    assert "commit" not in times
    assert "No drafts" in plots.acceptance_html(PairFigures())
    assert "No cycle" in plots.cycle_time_html(PairFigures())


def test_requests_stand_in_a_table_and_names_are_escaped() -> None:
    html = requests_html([REQUEST])
    assert "<td>&lt;b&gt;</td><td>reading the prompt</td><td>12</td><td>100 of 300</td><td>50</td><td>–</td>" in html
    decoding = replace(REQUEST, phase="decode", generation_tokens=9, tokens_per_second=55.55)
    assert "<td>300</td><td>50</td><td>9</td><td>55.5</td><td>1.00</td>" in requests_html([decoding])
    assert "No request" in requests_html([])


def test_tiles() -> None:
    assert tile_values(SAMPLE) == {
        "Answers, tok/s": "61.2", "Prompts, tok/s": "1500", "Tokens per cycle": "3.50", "Running, waiting": "1, 2",
        "Memory held": "8.00 GB",
    }  # fmt: skip
