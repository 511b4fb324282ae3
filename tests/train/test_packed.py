"""Many blocks in one forward give what each gives alone, and see nothing that decoding would not show them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.train.learning.packed import embedded_rows, packed_hidden, padded_taps
from tests.train.training import Subject, drafter_model, subject

ANCHORS = (1, 2, 7, 15, 16, 21, 24)

VARIANTS: dict[str, dict[str, Any]] = {
    "both": {},
    "causal": {"is_causal": True},
    "mixed causal": {"is_causal": None},
    "no convolution": {"conv_kernel_size": 0},
    "no selector": {"selector_rank": 0, "selector_top_k": 0},
    "narrow window": {"sliding_window": 5},
    "all full": {"layer_types": ["full_attention"] * 3, "sliding_window": None},
    "wide kernel": {"conv_kernel_size": 3},
}


def packed(one: Subject, taps: list[mx.array], tokens: np.ndarray, anchors: np.ndarray, **options: Any) -> mx.array:
    """Hidden rows (S, A, B, H)."""
    first = np.take_along_axis(tokens, anchors, axis=1)
    rows = embedded_rows(one.target, one.config, mx.array(first), mx.float32)
    length = tokens.shape[1]
    return packed_hidden(one.drafter, rows, padded_taps(taps, length, mx.float32), mx.array(anchors), **options)


def alone(one: Subject, which: int, anchor: int) -> mx.array:
    """Hidden rows (B-1, H) of one block through the runtime's own path."""
    twin = drafter_model(one.config, one.raw)
    twin.update(one.drafter.parameters())
    drafter = Drafter(twin)
    context = drafter.new_context()
    taps = one.rows[which].taps[:anchor].astype(mx.float32)
    context.append([tap[None] for tap in mx.split(taps, len(one.config.target_layer_ids), axis=-1)], 0)
    token = int(one.conversations[which].tokens[anchor])
    return drafter.hidden(one.target, context, mx.array([token]), one.config.block_size)


@pytest.mark.parametrize("name", VARIANTS)
def test_each_block_is_what_the_runtime_computes_for_it_alone(name: str) -> None:
    one = subject(**VARIANTS[name])
    tokens = np.stack([c.tokens[:30] for c in one.conversations])
    taps = [rows.taps[:30] for rows in one.rows]
    anchors = np.array([ANCHORS] * len(taps), np.int32)
    hidden = packed(one, taps, tokens, anchors)
    for which, place in ((0, 0), (0, 3), (1, 4), (2, 6), (1, 2)):
        wanted = alone(one, which, ANCHORS[place])
        assert mx.allclose(hidden[which, place, 1:], wanted, atol=1e-3), (which, place)


def test_padding_and_other_blocks_change_nothing() -> None:
    one = subject()
    tokens = np.stack([c.tokens[:30] for c in one.conversations])
    taps = [rows.taps[:30] for rows in one.rows]
    together = packed(one, taps, tokens, np.array([[3, 9, 20]] * 3, np.int32))
    single = packed(one, taps[1:2], tokens[1:2], np.array([[9]], np.int32))
    padded = packed(one, [mx.pad(taps[1], [(0, 11), (0, 0)])], np.pad(tokens[1:2], ((0, 0), (0, 11))), np.array([[9]]))
    assert mx.allclose(together[1, 1], single[0, 0], atol=1e-5)
    assert mx.allclose(padded[0, 0], single[0, 0], atol=1e-5)


@pytest.mark.parametrize("name", ["both", "all full", "causal"])
def test_nothing_from_the_anchor_on_leaks_into_a_block(name: str) -> None:
    """Neither values nor gradients: taps at the anchor and after it do not count, those before it do."""
    one = subject(**VARIANTS[name])
    anchor, tokens = 12, one.conversations[0].tokens[None, :30]
    taps = one.rows[0].taps[:30].astype(mx.float32)

    def total(taps: mx.array) -> mx.array:
        hidden = packed(one, [taps], tokens, np.array([[anchor]], np.int32))
        return (hidden * mx.sin(mx.arange(hidden.size).reshape(hidden.shape))).sum()

    gradient = mx.grad(total)(taps)
    by_position = np.array(mx.abs(gradient).sum(axis=1))
    assert (by_position[anchor:] == 0).all()
    seen = by_position[:anchor] > 0
    assert seen.all() if name == "all full" else seen[-3:].all()
    spoilt = mx.concatenate([taps[:anchor], 100 + taps[anchor:]])
    assert total(spoilt).item() == total(taps).item()


def test_a_block_does_not_see_the_tokens_that_it_is_to_draft() -> None:
    one = subject()
    tokens = one.conversations[0].tokens[None, :30].copy()
    taps = [one.rows[0].taps[:30]]
    before = packed(one, taps, tokens, np.array([[12]], np.int32))
    tokens[0, 13:] = (tokens[0, 13:] + 1) % one.target.vocab_size
    assert mx.array_equal(packed(one, taps, tokens, np.array([[12]], np.int32)), before)
    tokens[0, 12] = (tokens[0, 12] + 1) % one.target.vocab_size
    assert not mx.allclose(packed(one, taps, tokens, np.array([[12]], np.int32)), before, atol=1e-3)


def test_recomputing_activations_gives_the_same_gradient() -> None:
    one = subject()
    tokens = np.stack([c.tokens[:30] for c in one.conversations])
    taps = [rows.taps[:30] for rows in one.rows]
    anchors = np.array([[3, 9, 20]] * 3, np.int32)
    weights = one.drafter.trainable_parameters()

    def total(weights: Any, again: bool) -> mx.array:
        one.drafter.update(weights)
        return mx.square(packed(one, taps, tokens, anchors, checkpointing=again)).sum()

    plain, again = (mx.grad(lambda w, again=again: total(w, again))(weights) for again in (False, True))
    one.drafter.update(weights)
    name = ("layers", 1, "mlp", "gate_proj", "weight")
    for tree in (plain, again):
        mx.eval(tree)
    first, second = plain, again
    for key in name:
        first, second = first[key], second[key]
    assert mx.abs(first).max().item() > 1e-4
    assert mx.allclose(first, second, rtol=1e-4, atol=1e-5)
