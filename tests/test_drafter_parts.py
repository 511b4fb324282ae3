"""The drafter's parts one by one: top-k, the walk, visibility by position, the context's rings, the joined products."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.drafter.context import DraftContext, Ring, visibility
from dflash2_mlx.drafter.conv import GroupedDynamicCausalConv
from dflash2_mlx.drafter.layer_kv import LayerKV
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.drafter.selector import top_candidates, walk
from tests.drafting import ANCHOR, ends_for, random_taps
from tests.test_drafter_load import DFLASH1, DFLASH2, packed, write
from tests.tiny_drafters import drafter_weights

SLIDING, FULL = "sliding_attention", "full_attention"

# Top-k


def check_top(logits: np.ndarray, k: int) -> None:
    """The ids are distinct, their values are their own, and together they are the k largest."""
    ids, values = (np.array(a) for a in top_candidates(mx.array(logits), k))
    assert ids.shape == values.shape == (len(logits), k)
    assert (ids < logits.shape[1]).all()
    assert all(len(set(row)) == k for row in ids.tolist())
    np.testing.assert_array_equal(np.take_along_axis(logits, ids.astype(np.int64), axis=1), values)
    np.testing.assert_array_equal(np.sort(values, axis=1), np.sort(logits, axis=1)[:, -k:])


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("k", [1, 2, 4, 16])
@pytest.mark.parametrize("vocab", [16, 63, 64, 65, 127, 1024, 1025, 1087, 4096, 5001])
def test_top_candidates_equal_a_sort(vocab: int, k: int, rows: int) -> None:
    rng = np.random.default_rng(vocab + k)
    logits = rng.permutation(rows * vocab).reshape(rows, vocab).astype(np.float32)
    check_top(logits, k)
    ids, _ = top_candidates(mx.array(logits), k)
    expected = np.argsort(logits, axis=1)[:, -k:]
    np.testing.assert_array_equal(np.sort(np.array(ids), axis=1), np.sort(expected, axis=1))


@settings(max_examples=80, deadline=None)
@given(vocab=st.integers(17, 2600), k=st.integers(1, 17), levels=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_ties_give_as_many_of_the_best_as_there_are(vocab: int, k: int, levels: int, seed: int) -> None:
    check_top(np.random.default_rng(seed).integers(0, levels, (2, vocab)).astype(np.float32), k)


@pytest.mark.parametrize("finite", [0, 3, 16, 200])
@pytest.mark.parametrize("vocab", [1100, 3000])
def test_rows_of_minus_infinity_give_no_id_past_the_vocabulary(vocab: int, finite: int) -> None:
    rng = np.random.default_rng(finite)
    logits = np.full((3, vocab), -np.inf, np.float32)
    for row in logits:
        row[rng.choice(vocab, finite, replace=False)] = rng.normal(size=finite)
    logits[:, -1] = 0.5
    ids, values = (np.array(a) for a in top_candidates(mx.array(logits), 16))
    assert (ids < vocab).all()
    np.testing.assert_array_equal(np.sort(values, axis=1), np.sort(logits, axis=1)[:, -16:])


# The walk


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 20), k=st.integers(1, 16), seed=st.integers(0, 1 << 30))
def test_the_walk_equals_step_by_step(rows: int, k: int, seed: int) -> None:
    successor = np.random.default_rng(seed).integers(0, k, (rows, k))
    successor[0] = successor[0, 0]
    path, choice = [], 0
    for row in successor.tolist():
        choice = row[choice]
        path.append(choice)
    assert walk(mx.array(successor)).tolist() == path


# Visibility, against positions written down one by one


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 24),
    written=st.integers(0, 60),
    start=st.integers(0, 60),
    rows=st.integers(1, 9),
    window=st.one_of(st.none(), st.integers(2, 30)),
    causal=st.booleans(),
)
def test_visibility_follows_positions(
    capacity: int, written: int, start: int, rows: int, window: int | None, causal: bool
) -> None:
    start = min(start, written)
    slots: list[int | None] = [None] * capacity
    for position in range(start, written):
        slots[position % capacity] = position
    expected = np.zeros((rows, capacity + rows), bool)
    for i in range(rows):
        for slot, position in enumerate(slots):
            near = window is None or (position is not None and written + i - position < window)
            expected[i, slot] = position is not None and near
        for j in range(rows):
            expected[i, capacity + j] = not causal or j <= i
    mask = visibility(written, start, capacity, rows, window=window, causal=causal)
    np.testing.assert_array_equal(np.array(mask), expected)
    on_device = visibility(mx.array(written), mx.array(start), capacity, rows, window=window, causal=causal)
    np.testing.assert_array_equal(np.array(on_device), expected)


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 12), chunks=st.lists(st.integers(1, 12), max_size=12))
def test_a_ring_keeps_the_last_rows_in_their_slots(capacity: int, chunks: list[int]) -> None:
    empty = mx.full((1, 1, capacity, 1), -1.0)
    ring, position = Ring(empty, empty), 0
    for count in (min(chunk, capacity) for chunk in chunks):
        rows = mx.arange(position, position + count, dtype=mx.float32).reshape(1, 1, count, 1)
        ring = ring.write(rows, -rows, position)
        position += count
    for kept in range(max(0, position - capacity), position):
        assert ring.keys[0, 0, kept % capacity, 0].item() == kept
        assert ring.values[0, 0, kept % capacity, 0].item() == -kept


# The context


def drafter_of(folder: Path, config: dict[str, Any], **changes: Any) -> Drafter:
    config = json.loads(json.dumps({**config, **changes}))
    return load_drafter(write(folder, config, drafter_weights(config)))


@pytest.fixture(scope="module", params=["sliding", "mixed", "dflash"])
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    folder = tmp_path_factory.mktemp("drafter")
    if request.param == "dflash":
        return drafter_of(folder, DFLASH1)
    types = [SLIDING, SLIDING] if request.param == "sliding" else [FULL, SLIDING]
    return drafter_of(folder, DFLASH2, layer_types=types)


def hidden(drafter: Drafter, context: DraftContext) -> np.ndarray:
    return np.array(drafter.hidden(ends_for(drafter), context, mx.array([ANCHOR]), 5))


def part(taps: Sequence[mx.array], start: int, end: int) -> list[mx.array]:
    return [tap[:, start:end] for tap in taps]


def assert_equal_context(drafter: Drafter, found: DraftContext, taps: Sequence[mx.array], end: int) -> None:
    """As if rows 0 to `end` had come at once."""
    whole = drafter.new_context()
    whole.append(part(taps, 0, end), 0)
    assert found.end == whole.end == end
    np.testing.assert_allclose(hidden(drafter, found), hidden(drafter, whole), rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(chunks=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=10))
def test_a_context_grown_in_steps_equals_one_at_once(drafter: Drafter, chunks: list[tuple[int, bool]]) -> None:
    total = sum(count for count, _ in chunks)
    taps, context, at = random_taps(drafter, total), drafter.new_context(), 0
    for count, deferred in chunks:
        if deferred:
            for row in range(at, at + count):
                context.defer(part(taps, row, row + 1), row, at_most=8)
        else:
            context.append(part(taps, at, at + count), at)
        at += count
        assert context.end == at
    assert_equal_context(drafter, context, taps, total)


@pytest.mark.parametrize("rows", [255, 256, 257, 600])
def test_a_context_grows_past_its_first_capacity(drafter: Drafter, rows: int) -> None:
    taps, context = random_taps(drafter, rows), drafter.new_context()
    for start in range(0, rows, 100):
        context.append(part(taps, start, min(start + 100, rows)), start)
    assert_equal_context(drafter, context, taps, rows)
    sizes = {kind: ring.capacity for kind, ring in context.rings.items()}
    for kind, capacity in sizes.items():
        assert capacity == (15 if kind == SLIDING else 256 if rows <= 256 else 512 if rows <= 512 else 1024)


def test_only_the_rows_that_a_window_shows_matter(tmp_path: Path) -> None:
    """The first drafted row sees 14 context rows of a window of 16, the anchor 15: a block as a whole 15."""
    drafter = drafter_of(tmp_path, DFLASH2, layer_types=[SLIDING, SLIDING])
    taps, late = random_taps(drafter, 50), drafter.new_context()
    late.append(part(taps, 35, 50), 35)
    assert_equal_context(drafter, late, taps, 50)
    short = drafter.new_context()
    short.append(part(taps, 36, 50), 36)
    whole = drafter.new_context()
    whole.append(taps, 0)
    assert not np.allclose(hidden(drafter, short), hidden(drafter, whole), rtol=1e-4, atol=1e-5)


def test_positions_are_absolute(drafter: Drafter) -> None:
    """The same rows elsewhere give the same block (rotary embedding sees distances); after a gap, all starts anew."""
    taps = random_taps(drafter, 9)
    at_zero, later, gap = (drafter.new_context() for _ in range(3))
    at_zero.append(taps, 0)
    later.append(taps, 100)
    np.testing.assert_allclose(hidden(drafter, later), hidden(drafter, at_zero), rtol=1e-3, atol=1e-4)
    gap.append(part(taps, 0, 4), 0)
    gap.append(part(taps, 4, 9), 8)
    assert gap.end == 13
    fresh = drafter.new_context()
    fresh.append(part(taps, 4, 9), 8)
    np.testing.assert_array_equal(hidden(drafter, gap), hidden(drafter, fresh))


@pytest.mark.parametrize("end", [0, 1, 20, 39, 40])
def test_a_trimmed_context_forgets_the_end(drafter: Drafter, end: int) -> None:
    taps, context = random_taps(drafter, 60), drafter.new_context()
    context.append(part(taps, 0, 40), 0)
    context.trim(end)
    assert context.end == end
    kept = 40 - 15  # a sliding ring has overwritten what lies before
    for kind in context.rings:
        assert context.start(kind) == (min(kept, end) if kind == SLIDING and end < 40 else 0)
    refill = min(end, kept)
    context.append(part(taps, end, 60), end)
    rebuilt = drafter.new_context()
    rebuilt.append(part(taps, 0, 60), 0)
    if refill <= 60 - 15:
        np.testing.assert_allclose(hidden(drafter, context), hidden(drafter, rebuilt), rtol=1e-4, atol=1e-5)


def test_a_copy_is_independent(drafter: Drafter) -> None:
    taps, context = random_taps(drafter, 30), drafter.new_context()
    context.append(part(taps, 0, 20), 0)
    twin = context.copy()
    context.append(part(taps, 20, 30), 20)
    assert_equal_context(drafter, twin, taps, 20)
    assert_equal_context(drafter, context, taps, 30)


def test_an_empty_context_drafts_from_the_block_alone(drafter: Drafter) -> None:
    assert np.isfinite(hidden(drafter, drafter.new_context())).all()


# Joined products


@pytest.mark.parametrize("packing", ["none", "all", "some"])
def test_joined_keys_and_values_equal_the_layers_own(packing: str, tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    sides = {f"layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "qkv"}
    if packing == "all":
        weights = packed(weights, sides, bits=4, group_size=32)
    elif packing == "some":
        weights = packed(weights, {"layers.1.self_attn.k_proj", "layers.0.self_attn.q_proj"}, bits=4, group_size=32)
    drafter = load_drafter(write(tmp_path, DFLASH2, weights))
    model, taps = drafter.model, random_taps(drafter, 6)
    keys, values = LayerKV(model)(taps, 11)
    features = model.context_features(taps)
    for i, layer in enumerate(model.layers):
        attention = layer.self_attn
        shape = (1, 6, attention.n_kv_heads, attention.head_dim)
        k = attention.k_norm(attention.k_proj(features).reshape(shape)).transpose(0, 2, 1, 3)
        v = attention.v_proj(features).reshape(shape).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(np.array(keys[i]), np.array(model.rope(k, offset=11)[0]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.array(values[i]), np.array(v[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taps", [1, 2, 3, 4])
def test_the_convolution_is_its_formula(taps: int) -> None:
    hidden_size, group, rows = 12, 3, 5
    conv = GroupedDynamicCausalConv(hidden_size, taps, group)
    conv.base_kernel = mx.random.normal(conv.base_kernel.shape)
    x, y = (mx.random.normal((1, rows, hidden_size), key=mx.random.key(i)) for i in (1, 2))
    delta = np.array(conv.kernel_projection(x)).reshape(rows, 2, taps, hidden_size // group)
    base = np.array(conv.base_kernel)

    def filtered(side: int, source: np.ndarray) -> np.ndarray:
        out = np.zeros((rows, hidden_size), np.float32)
        for i in range(rows):
            for t in range(min(taps, i + 1)):
                kernel = base[side, t] + np.repeat(delta[i, side, t], group)
                out[i] += kernel * source[i - t]
        return out

    before, kernels = conv.prepare(x)
    np.testing.assert_allclose(np.array(before[0]), filtered(0, np.array(x[0])), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(conv.finish(y, kernels)[0]), filtered(1, np.array(y[0])), rtol=1e-4, atol=1e-5)
