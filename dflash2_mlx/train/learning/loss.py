"""What is learnt from blocks: each drafted row's token, and the selector's choice among candidates.

A row's target is the token that the text has there, mixed with the target's own law for that place. The selector
learns with the true token before as predecessor, since a draft counts only where those before it are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from ...drafter.model import DraftModel
from ...drafter.selector import CandidateSelector, top_candidates
from ..recipe.values import Loss
from .head import ABSENT, Columns
from .packed import embedded_rows, packed_hidden
from .quick import logsumexp

# Rows without a selector still report recall among so many.
RECALL_AT = 16


class BlockBatch(NamedTuple):
    """Arrays of S conversations of L tokens with A blocks of B rows.

    `taps` (S, L, T*H); `anchors` (S, A); `truth` (S, A, B); `weights` (S, A, B-1), zero where nothing is learnt, which
    sum to 1 over all micro batches of a step; `ids`, `logits` (S, A, B-1, K): the target's likeliest tokens there.
    """

    taps: mx.array
    anchors: mx.array
    truth: mx.array
    weights: mx.array
    ids: mx.array
    logits: mx.array


class LossParts(NamedTuple):
    """Sums over the blocks of a batch: the loss and its parts (scalars), and counts by drafted position (B-1,).

    `best` counts rows whose first choice is the true token (the selector's, after the true predecessor, where there
    is one), `within` those that have it among the candidates, `counted` all that are learnt, and `run` those where
    this and all rows before it are right.
    """

    loss: mx.array
    ce: mx.array
    selector: mx.array
    best: mx.array
    within: mx.array
    counted: mx.array
    run: mx.array


@dataclass(frozen=True)
class _Rows:
    """N = S*A*(B-1) drafted rows, flat."""

    hidden: mx.array  # (N, H)
    logits: mx.array  # (N, C)
    truth: mx.array  # (N,) tokens
    before: mx.array  # (N,) the tokens before them
    weights: mx.array  # (N,)
    likely: mx.array  # (N, K) tokens
    law: mx.array  # (N, K) the target's probabilities of those that have a column


def block_loss(
    model: DraftModel, target: Any, batch: BlockBatch, columns: Columns, recipe: Loss, *, checkpointing: bool = False
) -> LossParts:
    """The loss of a batch, of which the first part is differentiated."""
    config = model.config
    dtype = model.norm.weight.dtype
    rows = embedded_rows(target, config, batch.truth[:, :, 0], dtype)
    hidden = packed_hidden(model, rows, batch.taps.astype(dtype), batch.anchors, checkpointing=checkpointing)
    hidden = hidden[:, :, 1:].reshape(-1, hidden.shape[-1])
    found = _rows(hidden, model.scale_logits(columns.logits(hidden)), batch, columns)
    ce = (found.weights * _cross_entropy(found, columns, recipe.distill)).sum()
    candidates, first = _candidates(found, model.config.selector_top_k or RECALL_AT)
    best = columns.ids[first]
    within = (columns.ids[candidates] == found.truth[:, None]).any(axis=1)
    selected = mx.zeros(())
    if config.has_selector:
        losses, best = _selector_loss(model.candidate_selector, found, candidates, columns, recipe.distill)
        selected = (found.weights * losses).sum()
    return LossParts(
        ce + recipe.selector * selected,
        mx.stop_gradient(ce),
        mx.stop_gradient(selected),
        *_counts(best == found.truth, within, batch.weights),
    )


def _rows(hidden: mx.array, logits: mx.array, batch: BlockBatch, columns: Columns) -> _Rows:
    likely = batch.ids.reshape(-1, batch.ids.shape[-1])
    known = columns.place[likely] != ABSENT
    law = mx.softmax(mx.where(known, batch.logits.reshape(likely.shape), mx.array(-1e30)), axis=-1) * known
    return _Rows(
        hidden,
        logits,
        batch.truth[:, :, 1:].reshape(-1),
        batch.truth[:, :, :-1].reshape(-1),
        batch.weights.reshape(-1),
        likely,
        law,
    )


def _cross_entropy(rows: _Rows, columns: Columns, distill: float) -> mx.array:
    """Of each row (N,), against the true token and the target's law mixed."""
    normaliser = logsumexp(rows.logits + columns.correction)
    places = mx.concatenate([columns.place[rows.truth][:, None], columns.place[rows.likely]], axis=1)
    picked = mx.take_along_axis(rows.logits, mx.maximum(places, 0), axis=1)
    shares = _shares(rows.law, distill)
    return normaliser - (shares * picked).sum(axis=1)


def _shares(law: mx.array, distill: float) -> mx.array:
    """Of the true token, then of each likely one: (N, 1 + K); a row whose law is not known has the true token alone."""
    known = law.sum(axis=1, keepdims=True)
    return mx.concatenate([1.0 - distill * known, distill * law], axis=1)


def _candidates(rows: _Rows, k: int) -> tuple[mx.array, mx.array]:
    """Columns (N, k) of the largest logits, and (N,) that of the largest."""
    logits = mx.stop_gradient(rows.logits)
    candidates, values = top_candidates(logits, min(k, logits.shape[1]))
    first = mx.take_along_axis(candidates, mx.argmax(values, axis=1, keepdims=True), axis=1)
    return candidates, first[:, 0]


def _selector_loss(
    selector: CandidateSelector, rows: _Rows, candidates: mx.array, columns: Columns, distill: float
) -> tuple[mx.array, mx.array]:
    """(loss (N,), the token (N,) that is chosen after the true one before).

    The true token takes the place of the least candidate where it is missing; what is chosen is among the real ones.
    """
    own = mx.take_along_axis(rows.logits, candidates, axis=1)
    ids = columns.ids[candidates]
    missing = (ids != rows.truth[:, None]).all(axis=1, keepdims=True)
    least = mx.arange(ids.shape[1]) == mx.argmin(mx.stop_gradient(own), axis=1)[:, None]
    place = mx.where(missing & least, columns.place[rows.truth][:, None], candidates)
    unary = mx.take_along_axis(rows.logits, place, axis=1)
    tokens = columns.ids[place]
    left = selector.predecessor_codebook(rows.before) * selector.hidden_projection(rows.hidden)
    edges = (selector.successor_codebook(tokens) @ left[:, :, None])[..., 0]
    scores = unary + edges.astype(mx.float32)
    is_true = tokens == rows.truth[:, None]
    law = (rows.law[:, None] * (tokens[:, :, None] == rows.likely[:, None])).sum(axis=-1)
    total = law.sum(axis=1, keepdims=True)
    law = mx.where(total > 0, law / mx.maximum(total, 1e-9), is_true)
    shares = (1.0 - distill) * is_true + distill * law
    losses = logsumexp(scores) - (shares * scores).sum(axis=1)
    real = mx.where(missing & least, mx.array(-mx.inf), mx.stop_gradient(scores))
    chosen = mx.take_along_axis(tokens, mx.argmax(real, axis=1, keepdims=True), axis=1)[:, 0]
    return losses, chosen


def _counts(right: mx.array, within: mx.array, weights: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """(best, within, counted, run) by drafted position."""
    shape = (-1, weights.shape[-1])
    counted = weights.reshape(shape) > 0
    right = right.reshape(shape) & counted
    run = mx.cumprod(right.astype(mx.float32), axis=1)
    parts = (right, within.reshape(shape) & counted, counted, run)
    best, inside, all_of, runs = (part.astype(mx.float32).sum(axis=0) for part in parts)
    return best, inside, all_of, runs
