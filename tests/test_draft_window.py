"""A draft window and sinks: what block rows see, against a mask over all positions; what is kept, and for how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.decode.prefill import _visible
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.config import DrafterConfig, narrowed, parse_config
from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.layer_kv import LayerKV
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.errors import RequestError
from tests import tiny
from tests.drafting import ANCHOR, ends_for, random_taps
from tests.running import cold_drafts, config_of, decode, subject
from tests.test_drafter_load import DFLASH1, DFLASH2, write
from tests.tiny_drafters import drafter_weights, tiny_drafter_config, write_drafter

SLIDING, FULL = "sliding_attention", "full_attention"
WIDTH = 5
KINDS: dict[str, dict[str, Any]] = {
    "sliding": {**DFLASH2, "layer_types": [SLIDING, SLIDING]},
    "mixed": {**DFLASH2, "layer_types": [FULL, SLIDING]},
    "dflash": DFLASH1,
}
# (kind, window, sink): with and without a window of its own, sinks inside a window, as long as it, and longer
OPTIONS = [
    ("sliding", 8, 0),
    ("sliding", None, 3),
    ("sliding", 8, 3),
    ("sliding", 2, 20),
    ("mixed", None, 4),
    ("mixed", 16, 16),
    ("dflash", 8, 0),
    ("dflash", 8, 5),
]


def drafter_of(folder: Path, kind: str, window: int | None, sink: int) -> Drafter:
    config = KINDS[kind]
    return load_drafter(write(folder, config, drafter_weights(config)), draft_window=window, draft_sink=sink)


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda option: "-".join(map(str, option)))
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    return drafter_of(tmp_path_factory.mktemp("drafter"), *request.param)


def window_of(drafter: Drafter, kind: str) -> int | None:
    """Written down anew: the option, else the checkpoint's for layers that slide."""
    return drafter.config.sliding_window if kind == SLIDING else drafter.config.full_window


def brute(drafter: Drafter, taps: list[mx.array], end: int, lost: dict[str, set[int]] | None = None) -> np.ndarray:
    """Hidden rows with every position's keys before the block, in order, and a mask of single decisions.

    `lost` positions, by type of layer, are known no more.
    """
    keys, values = LayerKV(drafter.model)([tap[:, : max(end, 1)] for tap in taps], 0)
    columns = keys.shape[2]
    masks = {}
    for kind in drafter.config.layer_types:
        window, mask = window_of(drafter, kind), np.zeros((WIDTH, columns + WIDTH), bool)
        for i in range(WIDTH):
            for position in range(end):
                near = window is None or end + i - position < window
                gone = lost is not None and position in lost[kind]
                mask[i, position] = (near or position < drafter.config.sink) and not gone
            for j in range(WIDTH):
                mask[i, columns + j] = not drafter.config.causal(kind) or j <= i
        masks[kind] = mx.array(mask)
    ends = ends_for(drafter)
    ids = mx.array([[ANCHOR] + [drafter.config.mask_token_id] * (WIDTH - 1)])
    rows = ends.embed(ids)[0] * (ends.embed_scale * drafter.config.input_embedding_scale)
    context = [(keys[i : i + 1], values[i : i + 1]) for i in range(keys.shape[0])]
    return np.array(drafter.model(rows, context, masks, end)[1:])


def found(drafter: Drafter, context: DraftContext) -> np.ndarray:
    return np.array(drafter.hidden(ends_for(drafter), context, mx.array([ANCHOR]), WIDTH))


def check(drafter: Drafter, context: DraftContext, taps: list[mx.array]) -> None:
    np.testing.assert_allclose(found(drafter, context), brute(drafter, taps, context.end), rtol=1e-4, atol=1e-5)


def feed(context: DraftContext, taps: list[mx.array], start: int, end: int) -> None:
    if end > start:
        context.append([tap[:, start:end] for tap in taps], start)


@settings(max_examples=15, deadline=None)
@given(chunks=st.lists(st.tuples(st.integers(1, 24), st.booleans()), min_size=1, max_size=8))
def test_what_a_block_sees_is_what_a_mask_over_all_positions_shows(
    drafter: Drafter, chunks: list[tuple[int, bool]]
) -> None:
    taps, context, at = random_taps(drafter, sum(count for count, _ in chunks)), drafter.new_context(), 0
    for count, deferred in chunks:
        if deferred:
            for row in range(at, at + count):
                context.defer([tap[:, row : row + 1] for tap in taps], row, at_most=6)
        else:
            feed(context, taps, at, at + count)
        at += count
    check(drafter, context, taps)
    check(drafter, context.copy(), taps)
    check(drafter, context.compact(), taps)
    assert context.missing(at) == 0


@pytest.mark.parametrize("rows", [300, 700])
def test_rings_and_sinks_grow_no_further_than_window_and_sink(tmp_path: Path, rows: int) -> None:
    drafter = drafter_of(tmp_path, "dflash", 280, 270)
    taps, context = random_taps(drafter, rows), drafter.new_context()
    for start in range(0, rows, 90):
        feed(context, taps, start, min(rows, start + 90))
        assert all(ring.capacity <= 279 for ring in context.rings.values())
        assert all(ring.capacity <= 270 for ring in context.sinks.values())
    check(drafter, context, taps)
    twin = drafter.new_context()
    twin.unpack(context.pack())
    check(drafter, twin, taps)
    assert {array.shape[2] for array in twin.arrays()} == {279, 270}


@pytest.mark.parametrize("end", [0, 1, 2, 7, 30, 39, 40])
def test_a_trim_keeps_the_sinks_before_it(drafter: Drafter, end: int) -> None:
    taps, context = random_taps(drafter, 80), drafter.new_context()
    feed(context, taps, 0, 40)
    before = context.copy()
    context.trim(end)
    lost, missing = {}, [0]
    for kind, ring in context.rings.items():
        window, sinks = drafter.config.window(kind), drafter.config.sinks(kind)
        lost[kind] = set(range(min(end, 40 - ring.capacity))) - set(range(sinks)) if end < 40 else set()
        missing.append(sum(window is None or end - p < window for p in lost[kind]))
    assert before.missing(end) == context.missing(end) == max(missing)
    np.testing.assert_allclose(found(drafter, context), brute(drafter, taps, end, lost), rtol=1e-4, atol=1e-5)
    feed(context, taps, end, 80)
    check(drafter, context, taps)


def test_sinks_that_a_context_never_had_are_missing_and_not_seen(tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path, "sliding", 8, 3)
    taps, context = random_taps(drafter, 40), drafter.new_context()
    feed(context, taps, 2, 40)
    assert context.missing(40) == 3
    sinks = {SLIDING: {0, 1, 2}}
    np.testing.assert_allclose(found(drafter, context), brute(drafter, taps, 40, sinks), rtol=1e-4, atol=1e-5)
    late = drafter.new_context()
    feed(late, taps, 2, 5)  # in the window still: the ring shows the third
    np.testing.assert_allclose(found(drafter, late), brute(drafter, taps, 5, {SLIDING: {0, 1}}), rtol=1e-4, atol=1e-5)
    assert late.missing(5) == 2


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(0, 60),
    count=st.integers(1, 40),
    beyond=st.integers(0, 60),
    window=st.one_of(st.none(), st.integers(2, 30)),
    sink=st.integers(0, 30),
)
def test_prefill_keeps_the_rows_that_a_block_will_see(
    start: int, count: int, beyond: int, window: int | None, sink: int
) -> None:
    config = narrowed(parse_config(DFLASH1), window, sink)
    end = start + count
    kept = {p for first, last in _visible(config, start, end, end + beyond) for p in range(first, last)}
    wanted = {p for p in range(start, end) if window is None or p < sink or end + beyond - p < window}
    assert wanted <= kept
    # between the two ranges nothing is kept that is not needed
    assert len(kept) == len(wanted) or sink >= end + beyond - (window or 0)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_5"])
def test_a_request_drafts_as_with_a_context_made_in_one_piece(kind: str, tmp_path: Path) -> None:
    """A prompt of several chunks, then cycles; the text is the target's own."""
    of = subject(kind, 16)
    config = tiny_drafter_config(of.plain, block_size=6, target_layer_ids=of.taps, **config_of("dflash2", 16))
    drafter = load_drafter(write_drafter(tmp_path, config), dtype="float32", draft_window=12, draft_sink=70)
    prompt = tiny.random_prompt(200)
    helped = of.helped(drafter, prompt, 30)
    state = DecodeState(of.target, helped)  # type: ignore[arg-type]
    run = decode(of.target, helped, prompt, state=state, max_tokens=30, checkpoint_block_size=6)
    assert run.tokens == of.answer(prompt, 30)
    text = [*prompt, *run.tokens]
    assert [drafted for _, drafted in helped.drafted] == cold_drafts(of, drafter, text, helped.drafted)
    other = load_drafter(tmp_path, dtype="float32", draft_window=12)
    assert cold_drafts(of, other, text, helped.drafted) != cold_drafts(of, drafter, text, helped.drafted), "a control"


def config(kind: str) -> DrafterConfig:
    return parse_config(KINDS[kind])


def test_windows_and_sinks_of_each_kind_of_layer() -> None:
    sliding, mixed, full = config("sliding"), config("mixed"), config("dflash")
    assert narrowed(sliding, None, 0) == sliding
    assert (narrowed(sliding, 8, 3).context_rows, narrowed(sliding, 8, 3).sink_rows) == (7, 3)
    assert (narrowed(mixed, None, 3).context_rows, narrowed(mixed, None, 3).sink_rows) == (None, 3)
    assert [narrowed(mixed, 8, 3).window(kind) for kind in (SLIDING, FULL)] == [8, 8]
    assert (narrowed(full, 8, 3).context_rows, narrowed(full, 8, 3).sink_rows) == (7, 3)
    assert (narrowed(full, None, 3).context_rows, narrowed(full, None, 3).sink_rows) == (None, 0)


def test_options_that_cannot_be_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"17.*sliding_window 16") as refused:
        narrowed(config("sliding"), 17, 0)
    assert refused.value.param == "draft_window"
    assert narrowed(config("dflash"), 100_000, 0).context_rows == 99_999
    with pytest.raises(RequestError, match="draft window 1"):
        narrowed(config("dflash"), 1, 0)
    with pytest.raises(RequestError, match="draft sink -1") as refused:
        narrowed(config("dflash"), None, -1)
    assert refused.value.param == "draft_sink"


def test_sinks_without_a_window_are_noted(tmp_path: Path) -> None:
    (note,) = drafter_of(tmp_path, "dflash", None, 4).notes
    assert "draft sink 4" in note
    assert drafter_of(tmp_path / "b", "dflash", 8, 4).notes == ()
    assert drafter_of(tmp_path / "c", "mixed", None, 4).notes == ()
