"""Variants and attention against the formulas in numpy; the served drafter stays as it is, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx.analyze.arms import NO_CONVOLUTION, SERVED, STATIC_CONVOLUTION, arms_of
from dflash2_mlx.analyze.attention import AttentionWatch
from dflash2_mlx.analyze.run import analyze
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from tests.analyze.dense import Dense
from tests.analyze.small import SEED, Small, small, written
from tests.drafting import ends_for, filled, outputs
from tests.tiny_drafters import tiny_drafter_config, write_drafter

SWITCHES: dict[str, dict[str, bool]] = {
    SERVED: {},
    STATIC_CONVOLUTION: {"dynamic": False},
    NO_CONVOLUTION: {"dynamic": False, "base": False},
}
LENGTHS = [1, 14, 23]  # context rows: all in the window of 16, and some out of it


def served(of: Small) -> Drafter:
    assert of.pair.drafter is not None
    return of.pair.drafter


def at(of: Small, length: int) -> tuple[Any, Any, int, list[np.ndarray]]:
    """A context of so many rows, the anchor after it, and the taps it came of."""
    ids = written(of).ids[: length + 1]
    taps = of.taps(ids[:-1])
    context = served(of).new_context()
    context.append([mx.array(tap.astype(np.float32))[None] for tap in taps], 0)
    return context, mx.array(ids[-1:]), ids[-1], taps


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", list(SWITCHES))
def test_a_variant_is_the_formula_without_that_part(name: str, length: int) -> None:
    of = small()
    context, first, anchor, taps = at(of, length)
    drafters, _ = arms_of(served(of))
    found = np.array(drafters[name].hidden(of.pair.target, context, first, of.pair.block_size))
    expected = of.dense(**SWITCHES[name]).block(taps, of.embedded(anchor)).hidden
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def test_the_parts_matter() -> None:
    """Otherwise the comparisons with the formulas would see nothing."""
    of = small()
    _, _, anchor, taps = at(of, 14)
    rows = [of.dense(**switches).block(taps, of.embedded(anchor)).hidden for switches in SWITCHES.values()]
    assert min(np.abs(rows[a] - rows[b]).max() for a, b in ((0, 1), (0, 2), (1, 2))) > 0.1


@pytest.mark.parametrize("packing", [None, "w8a16:gs32"])
def test_the_served_drafter_stays_bit_identical(packing: str | None, tmp_path: Any) -> None:
    of = small()
    config = tiny_drafter_config(of.plain, head_dim=16, intermediate_size=64)  # what groups of 32 divide
    drafter = load_drafter(write_drafter(tmp_path, config, SEED), dtype="float32", spec=packing)
    before = dict(tree_flatten(drafter.model.parameters()))
    modules = [id(module) for _, module in drafter.model.named_modules()]
    out = outputs(drafter)
    drafters, _ = arms_of(drafter)
    watch = AttentionWatch(drafter)
    context, ends, first = filled(drafter), ends_for(drafter), mx.array([3])
    changed = [np.array(one.hidden(ends, context, first, 5).astype(mx.float32)) for one in drafters.values()]
    watch.shares(ends, context, 3, 5)  # type: ignore[arg-type]
    assert not np.array_equal(changed[0], changed[1])
    assert np.array_equal(outputs(drafter), out)
    assert [id(module) for _, module in drafter.model.named_modules()] == modules
    after = dict(tree_flatten(drafter.model.parameters()))
    assert all(after[name] is before[name] for name in before)


def test_variants_share_the_weights() -> None:
    """No variant holds a copy of what it does not change."""
    drafter = served(small())
    own = {id(value) for _, value in tree_flatten(drafter.model.parameters())}
    for name, variant in arms_of(drafter)[0].items():
        new = [path for path, value in tree_flatten(variant.model.parameters()) if id(value) not in own]
        assert all("base_kernel" in path for path in new)
        assert bool(new) == (name == NO_CONVOLUTION)


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_is_that_of_the_formulas(length: int) -> None:
    of = small()
    context, _, anchor, taps = at(of, length)
    width = of.pair.block_size
    shares = AttentionWatch(served(of)).shares(of.pair.target, context, anchor, width)
    dense = of.dense().block(taps, of.embedded(anchor)).attention
    expected = np.stack([layer[..., -width:].sum(-1) for layer in dense])
    np.testing.assert_allclose(shares.block, expected, atol=2e-4)
    np.testing.assert_allclose(shares.even, [even(of.dense(), layer, length, width) for layer in range(3)], atol=1e-6)
    assert expected.std() > 0.05


def even(dense: Dense, layer: int, length: int, width: int) -> list[float]:
    """The block's share of all rows that each block row sees."""
    window = dense.config["sliding_window"] if dense.config["layer_types"][layer] == "sliding_attention" else length * 9
    seen = [sum(length + i - position < window for position in range(length)) for i in range(width)]
    return [width / (count + width) for count in seen]


def test_a_causal_blocks_rows_see_themselves_and_earlier_ones(tmp_path: Any) -> None:
    of = small()
    drafter = load_drafter(write_drafter(tmp_path, {**of.config, "is_causal": True}), dtype="float32")
    shares = AttentionWatch(drafter).shares(ends_for(drafter), filled(drafter, 7), 3, 5)  # type: ignore[arg-type]
    np.testing.assert_allclose(shares.even[0], [(i + 1) / (i + 8) for i in range(5)])


def test_attention_figures_are_means_of_every_nth_block() -> None:
    of, text = small(), written(small(), tokens=12)
    drafter, target = served(of), of.pair.target
    watch = AttentionWatch(drafter)
    blocks = []
    for anchor in range(3, 11, 4):  # of the 11 anchors the fourth and the eighth
        context, _, token, _ = at(of, len(text.prompt) + anchor)
        assert token == text.ids[len(text.prompt) + anchor]
        blocks.append(watch.shares(target, context, token, of.pair.block_size).block)
    found = analyze(of.pair, [text], attention_every=4).attention
    assert found is not None
    assert found.blocks == 2
    np.testing.assert_allclose(found.heads, np.mean(blocks, axis=(0, 3)), atol=1e-5)
    np.testing.assert_allclose(found.rows, np.mean(blocks, axis=(0, 2)), atol=1e-5)
    assert len(found.even) == 3


def test_a_packed_drafter_in_bfloat16_is_analysed_too(tmp_path: Any) -> None:
    of = small()
    config = tiny_drafter_config(of.plain, head_dim=16, intermediate_size=64)
    drafter = load_drafter(write_drafter(tmp_path, config, SEED), dtype="bfloat16", spec="w8a16:gs32")
    figures = analyze(replace(of.pair, drafter=drafter), [written(of, tokens=10)], attention_every=2)
    assert figures.served.tokens is not None
    assert figures.attention is not None
    assert np.isfinite(figures.attention.heads).all()
