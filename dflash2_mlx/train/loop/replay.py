"""Tokens per cycle on recorded greedy answers, without running the target again.

Greedy decoding emits the recorded answer whatever is drafted, so a cycle commits the drafts that agree with it and one
more token. In float32 this is what real decoding counts (a test compares them), for the price of the drafter alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...drafter.model import DraftModel
from ...drafter.selector import top_candidates
from ...target.adapter import Target
from ..data.held_out import HeldOut
from ..data.tokens import Conversation
from ..lanes import Lanes
from ..learning.packed import embedded_rows, packed_hidden, padded_taps
from ..reporting.history import EvaluationLine
from ..rows.hidden import Rows, compute_rows

_ANCHORS = 32  # of one forward: their logits over the whole vocabulary lie in memory at once


@dataclass(frozen=True)
class Recorded:
    """A held-out text with the target's rows for it."""

    text: HeldOut
    rows: Rows

    @property
    def tokens(self) -> NDArray[np.int32]:
        return np.array([*self.text.prompt_ids, *self.text.answer], np.int32)


def record(target: Target, texts: Sequence[HeldOut], lanes: Lanes) -> list[Recorded]:
    """The texts with their rows; `target` is prepared for the drafter's taps. Texts of one token have no cycle."""
    texts = [text for text in texts if len(text.answer) > 1]
    conversations = []
    for text in texts:
        tokens = np.array([*text.prompt_ids, *text.answer], np.int32)
        conversations.append(Conversation(tokens, np.arange(len(tokens)) >= len(text.prompt_ids)))
    rows = compute_rows(target, conversations, lanes)
    return [Recorded(text, own) for text, own in zip(texts, rows, strict=True)]


def replay(model: DraftModel, target: Target, texts: Sequence[Recorded], step: int, lanes: Lanes) -> EvaluationLine:
    """What greedy decoding of the texts commits with this drafter at its own block size."""
    runs = [accepted(model, target, text, lanes) for text in texts]
    by_kind: dict[str, list[int]] = {}
    for text, run in zip(texts, runs, strict=True):
        by_kind.setdefault(text.text.kind, []).extend(run)
    everything = [n for run in runs for n in run]
    drafted = model.config.block_size - 1
    return EvaluationLine(
        step=step,
        tokens_per_cycle=_mean(everything),
        by_kind={kind: _mean(run) for kind, run in sorted(by_kind.items())},
        accepted_by_position=[sum(n > i for n in everything) / max(1, len(everything)) for i in range(drafted)],
    )


def _mean(accepted_drafts: Sequence[int]) -> float:
    return 1.0 + sum(accepted_drafts) / len(accepted_drafts) if accepted_drafts else 0.0


def accepted(model: DraftModel, target: Target, text: Recorded, lanes: Lanes) -> list[int]:
    """How many drafts each cycle accepts, in order; of the last block, which may go past the answer, what is there."""
    tokens, first = text.tokens, len(text.text.prompt_ids)
    anchors = np.arange(first, len(tokens) - 1)
    chunks = [anchors[i : i + _ANCHORS] for i in range(0, len(anchors), _ANCHORS)]
    drafts: list[NDArray[np.int64]] = []
    for i in range(0, len(chunks), len(lanes)):
        wave = lanes.map(lambda chunk: _lattice(model, target, text, chunk), chunks[i : i + len(lanes)])
        mx.eval(wave)
        drafts += [_walk(*(np.array(array) for array in parts)) for parts in wave]
    by_anchor = np.concatenate(drafts)
    found, place = [], first
    while place < len(tokens) - 1:
        truth = tokens[place + 1 : place + model.config.block_size]
        agree = by_anchor[place - first][: len(truth)] == truth
        found.append(int(np.cumprod(agree).sum()))
        place += found[-1] + 1
    return found


def _lattice(model: DraftModel, target: Target, text: Recorded, anchors: NDArray[np.int64]) -> tuple[mx.array, ...]:
    """Candidates (A, R, k) and, with a selector, their pair scores (A, R, k, k); without, the best token (A, R, 1)."""
    config, dtype = model.config, model.norm.weight.dtype
    places = mx.array(anchors.astype(np.int32))[None]
    first = mx.array(text.tokens[anchors])[None]
    taps = padded_taps([text.rows.taps], len(text.tokens), dtype)
    hidden = packed_hidden(model, embedded_rows(target, config, first, dtype), taps, places)[0, :, 1:]
    count, rows = hidden.shape[:2]
    flat = hidden.reshape(count * rows, -1)
    logits = model.scale_logits(target.head(flat.astype(target.dtype)[None])[0])
    if not config.has_selector:
        return (mx.argmax(logits, axis=-1).reshape(count, rows, 1),)
    selector = model.candidate_selector
    candidates, unary = top_candidates(logits, selector.top_k)
    candidates, unary = candidates.reshape(count, rows, -1), unary.reshape(count, rows, -1)
    blocks = [selector.scores(hidden[a], candidates[a], unary[a], first[0, a : a + 1]) for a in range(count)]
    return candidates, mx.stack(blocks)


def _walk(candidates: NDArray[np.int64], scores: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
    """The greedy path (A, R) of tokens through each lattice."""
    if scores is None:
        return candidates[:, :, 0]
    which = np.arange(len(candidates))
    choice = np.zeros(len(candidates), np.int64)
    path = []
    for row in range(candidates.shape[1]):
        choice = scores[which, row, choice].argmax(axis=-1)
        path.append(candidates[which, row, choice])
    return np.stack(path, axis=1)
