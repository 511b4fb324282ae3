"""What a drafter makes of one block, as numpy arrays: candidates, their logits, pair scores, and the drafts."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafter.context import DraftContext
from ..drafter.propose import Drafter
from ..drafter.selector import top_candidates
from ..errors import DecodeError
from ..target.adapter import Target

# Candidates of a first-generation drafter, which has no selector that would say how many.
FIRST_GENERATION_CANDIDATES = 16


@dataclass(frozen=True)
class Block:
    """R rows after an anchor: `candidates` and their logits `unary` (R, k), pair `scores` (R, k, k).

    `scores[t, a, b]` is candidate b of row t after candidate a of row t-1; None in the first generation. `best` (R,)
    is each row's token by its own logits alone.
    """

    candidates: np.ndarray
    unary: np.ndarray
    scores: np.ndarray | None
    best: np.ndarray


def draft(drafter: Drafter, target: Target, context: DraftContext, anchor: int, width: int) -> Block:
    """The block of `width` rows whose anchor is the token `anchor`, after `context`.

    Raises DecodeError where the drafter gives numbers that are not finite.
    """
    first = mx.array([anchor])
    if drafter.config.has_selector:
        lattice = drafter.lattice(target, context, first, width)
        candidates, unary, scores = lattice.candidates, lattice.unary, lattice.scores
        mx.eval(candidates, unary, scores)
    else:
        logits = drafter.logits(target, drafter.hidden(target, context, first, width))
        candidates, unary = top_candidates(logits, min(FIRST_GENERATION_CANDIDATES, logits.shape[-1]))
        scores = None
        mx.eval(candidates, unary)
    ids, values = np.array(candidates), np.array(unary)
    pairs = None if scores is None else np.array(scores)
    if not np.isfinite(values if pairs is None else pairs).all():
        raise DecodeError(
            f"the drafter's numbers after position {context.end} are not finite: its weights or its type are at fault "
            "(try --dtype float32, or another --draft-quant)"
        )
    return Block(ids, values, pairs, ids[np.arange(len(ids)), values.argmax(axis=-1)])
