"""The loss against its formula, written out in numpy; what each part of the recipe changes."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.train.learning.head import ABSENT, choose_ids, head_columns
from dflash2_mlx.train.learning.loss import LossParts, block_loss
from dflash2_mlx.train.learning.packed import embedded_rows, packed_hidden
from dflash2_mlx.train.learning.step import wanted_tokens
from dflash2_mlx.train.recipe.values import Loss
from tests.train.training import Subject, batch_of, subject, whole_columns

WHOLE = Loss(frequent=0, sampled=0, distill=0.0, selector=1.0)


def parts_of(one: Subject, recipe: Loss = WHOLE, anchors: int = 4) -> LossParts:
    batch, _ = batch_of(one, anchors)
    return block_loss(one.drafter, one.target, batch, whole_columns(one.target), recipe)


def logits_of(one: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, V) and hidden rows (N, H) of every drafted row."""
    batch, _ = batch_of(one)
    rows = embedded_rows(one.target, one.config, batch.truth[:, :, 0], mx.float32)
    hidden = packed_hidden(one.drafter, rows, batch.taps.astype(mx.float32), batch.anchors)[:, :, 1:]
    hidden = hidden.reshape(-1, hidden.shape[-1])
    return np.array(one.drafter.scale_logits(one.target.head(hidden[None])[0]), np.float64), np.array(hidden)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_the_rows_part_is_the_weighted_cross_entropy_of_the_true_tokens() -> None:
    one = subject()
    batch, blocks = batch_of(one)
    logits, _ = logits_of(one)
    truth, weights = blocks.truth[:, :, 1:].ravel(), np.array(batch.weights).ravel()
    wanted = -(weights * log_softmax(logits)[np.arange(len(truth)), truth]).sum()
    assert parts_of(one).ce.item() == pytest.approx(wanted, rel=1e-4)


def test_distilling_mixes_in_the_targets_law() -> None:
    one = subject()
    batch, blocks = batch_of(one)
    logits, _ = logits_of(one)
    truth, weights = blocks.truth[:, :, 1:].ravel(), np.array(batch.weights).ravel()
    ids = np.array(batch.ids).reshape(len(truth), -1)
    law = np.exp(log_softmax(np.array(batch.logits, np.float64).reshape(len(truth), -1)))
    own = log_softmax(logits)
    hard = own[np.arange(len(truth)), truth]
    soft = (law * np.take_along_axis(own, ids, axis=1)).sum(axis=1)
    wanted = -(weights * (0.3 * hard + 0.7 * soft)).sum()
    assert parts_of(one, replace(WHOLE, distill=0.7)).ce.item() == pytest.approx(wanted, rel=1e-4)


def test_the_selector_learns_the_choice_after_the_true_predecessor() -> None:
    one = subject()
    batch, blocks = batch_of(one)
    logits, hidden = logits_of(one)
    selector = one.drafter.candidate_selector
    first, second = (np.array(c.weight) for c in (selector.predecessor_codebook, selector.successor_codebook))
    gate = hidden @ np.array(selector.hidden_projection.weight).T
    truth, before = blocks.truth[:, :, 1:].ravel(), blocks.truth[:, :, :-1].ravel()
    total, missing = 0.0, 0
    for i, weight in enumerate(np.array(batch.weights).ravel()):
        ids = np.argsort(-logits[i])[: selector.top_k]
        if truth[i] not in ids:
            missing += 1
            ids[-1] = truth[i]
        scores = logits[i, ids] + second[ids] @ (first[before[i]] * gate[i])
        total -= weight * log_softmax(scores)[list(ids).index(truth[i])]
    assert missing > 5
    assert parts_of(one).selector.item() == pytest.approx(total, rel=1e-3)
    both = parts_of(one, replace(WHOLE, selector=0.25))
    assert both.loss.item() == pytest.approx(both.ce.item() + 0.25 * both.selector.item(), rel=1e-5)


def test_what_is_not_learnt_counts_nowhere() -> None:
    one = subject()
    batch, blocks = batch_of(one)
    recipe = replace(WHOLE, distill=0.5)
    columns = whole_columns(one.target)
    kept = block_loss(one.drafter, one.target, batch, columns, recipe)
    unlearnt = mx.array(~blocks.learnt)
    other = mx.where(unlearnt, (batch.truth[:, :, 1:] + 5) % 40, batch.truth[:, :, 1:])
    truth = mx.concatenate([batch.truth[:, :, :1], other], axis=2)
    spoilt = block_loss(one.drafter, one.target, batch._replace(truth=truth), columns, recipe)
    assert unlearnt.any().item()
    for name in LossParts._fields:
        assert mx.allclose(getattr(kept, name), getattr(spoilt, name)), name
    assert kept.counted.sum().item() == blocks.labels


def test_the_figures_are_shares_of_right_rows() -> None:
    one = subject(selector_rank=0, selector_top_k=0)
    _, blocks = batch_of(one)
    logits, _ = logits_of(one)
    truth, learnt = blocks.truth[:, :, 1:], blocks.learnt
    right = (logits.argmax(axis=-1).reshape(truth.shape) == truth) & learnt
    parts = parts_of(one)
    assert parts.best.tolist() == right.sum(axis=(0, 1)).tolist()
    assert parts.run.tolist() == np.logical_and.accumulate(right, axis=2).sum(axis=(0, 1)).tolist()
    ranks = (logits > np.take_along_axis(logits, truth.reshape(-1, 1), axis=1)).sum(axis=1).reshape(truth.shape)
    assert parts.within.tolist() == ((ranks < 16) & learnt).sum(axis=(0, 1)).tolist()


def test_columns_hold_the_frequent_tokens_and_every_true_one() -> None:
    order = np.arange(50)[::-1].copy()
    ids, correction = choose_ids(order, np.array([3, 4, 49], np.int32), 5, 6, np.random.default_rng(0))
    assert len(ids) == len(set(ids)) == 11
    assert {45, 46, 47, 48, 49, 3, 4} <= set(ids.tolist())
    # 43 tokens are left out, of which 4 are drawn and stand for all.
    assert correction[:7].tolist() == [0.0] * 7
    assert np.allclose(correction[7:], np.log(43 / 4))
    everything, none = choose_ids(order, np.array([], np.int32), 45, 9, np.random.default_rng(0))
    assert everything.tolist() == list(range(50))
    assert not none.any()


def test_more_true_tokens_than_columns_all_have_one() -> None:
    truths = np.arange(20, dtype=np.int32)
    ids, correction = choose_ids(np.arange(50), truths, 2, 3, np.random.default_rng(0))
    assert sorted(ids.tolist()) == truths.tolist()
    assert not correction.any()


def test_drawn_columns_estimate_the_whole_normaliser() -> None:
    one = subject()
    _, hidden = logits_of(one)
    rows = mx.array(hidden)
    whole = mx.logsumexp(one.target.head(rows[None])[0], axis=-1)
    estimates = []
    for seed in range(300):
        ids, correction = choose_ids(
            np.arange(one.target.vocab_size), np.array([], np.int32), 20, 30, np.random.default_rng(seed)
        )
        columns = head_columns(one.target, ids, correction, mx.float32)
        estimates.append(mx.exp(mx.logsumexp(columns.logits(rows) + columns.correction, axis=-1) - whole))
    mean = mx.stack(estimates).mean(axis=0)
    assert mx.abs(mean - 1).mean().item() < 0.05


@pytest.mark.parametrize("family", ["llama", "llama_untied", "gemma4", "muse_glimmer", "qwen3_5"])
def test_columns_are_the_heads_own_rows(family: str) -> None:
    one = subject(family)
    ids = np.array([5, 0, 17], np.int32)
    columns = head_columns(one.target, ids, np.zeros(3, np.float32), mx.float32)
    hidden = mx.random.normal((4, one.target.hidden_size), key=mx.random.key(1))
    assert mx.allclose(columns.logits(hidden), one.target.head(hidden[None])[0][:, mx.array(ids)], atol=1e-4)
    assert columns.place[17].item() == 2
    assert columns.place[1].item() == ABSENT


def test_columns_of_a_packed_head_are_unpacked() -> None:
    from mlx import nn

    one = subject("llama_untied")
    nn.quantize(one.model, group_size=32, bits=8, class_predicate=lambda path, module: path.endswith("lm_head"))
    hidden = mx.random.normal((4, one.target.hidden_size), key=mx.random.key(1))
    columns = head_columns(one.target, np.array([9, 2], np.int32), np.zeros(2, np.float32), mx.float32)
    assert mx.allclose(columns.logits(hidden), one.target.head(hidden[None])[0][:, mx.array([9, 2])], atol=1e-3)


def test_what_the_target_finds_likely_has_a_column_where_it_is_learnt() -> None:
    one = subject()
    batch, blocks = batch_of(one)
    found = set(wanted_tokens(batch).tolist())
    law = np.exp(log_softmax(np.array(batch.logits, np.float64)))
    ids = np.array(batch.ids)
    learnt = np.array(batch.weights) > 0
    assert found >= set(blocks.truth[:, :, 1:][learnt].tolist())
    assert found >= set(ids[learnt][law[learnt] > 0.02].tolist())
    nothing = wanted_tokens(batch._replace(weights=mx.zeros_like(batch.weights)))
    assert nothing.tolist() == []
