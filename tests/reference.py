"""The reference drafter (`dflash` 0.1.0) as an oracle: its own config reader and modules.

Where one row is appended to a full window, the reference hides its newest rows; a context built from scratch
does not meet that fault, so `Oracle` builds one for every block. The stateful way is there to show the fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

try:
    import dflash.model_mlx as reference
except ImportError as error:
    raise ImportError("the oracle of the parity tests is missing: pip install --no-deps dflash==0.1.0") from error


@dataclass(frozen=True)
class Block:
    """What the reference computes for one block of R drafted rows; candidates are sorted by id."""

    hidden: np.ndarray  # (R, H)
    logits: np.ndarray  # (R, V)
    candidates: np.ndarray  # (R, k)
    scores: np.ndarray  # (R, k, k): [t, a, b], candidate b of row t after candidate a of row t-1
    path: list[int]


class OneCall:
    """The context cache of a block that is computed from scratch: it gives back what it is given."""

    def __init__(self, start: int) -> None:
        self.offset = start

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.offset += keys.shape[2]
        return keys, values


class Oracle:
    """A reference drafter bound to a target."""

    def __init__(self, folder: Path, target: nn.Module) -> None:
        with patch.object(reference, "snapshot_download", lambda path, **_: str(path)):
            self.model = reference.load_draft(folder)
        self.model.bind(target)
        self.config = self.model.config

    def new_cache(self) -> list[Any]:
        """The reference's own context caches, to be grown step by step."""
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def hidden(
        self,
        taps: Sequence[mx.array],
        anchor: int,
        width: int,
        *,
        start: int = 0,
        cache: list[Any] | None = None,
    ) -> mx.array:
        """Hidden rows (1, R, H) after context rows `taps` from `start` on; `cache` takes them in."""
        block = mx.array([[anchor] + [self.config.mask_token_id] * (width - 1)])
        if cache is None:
            cache = [OneCall(start) for _ in self.model.layers]
        return self.model.hidden_states(block, mx.concatenate(list(taps), axis=-1), cache, logits_start=1)

    def block(self, taps: Sequence[mx.array], anchor: int, width: int, *, start: int = 0) -> Block:
        """Everything about one block, its context built from scratch."""
        hidden = self.hidden(taps, anchor, width, start=start)
        logits = self.model.compute_logits(hidden)
        if not self.config.selector_rank:
            path = mx.argmax(logits, axis=-1)[0].tolist()
            empty = np.zeros((0,))
            return Block(np.array(hidden[0]), np.array(logits[0]), empty, empty, path)
        selector = self.model.candidate_selector
        tokens, candidates, _ = selector.select(hidden, logits, mx.array([anchor]), 0.0)
        candidates = mx.sort(candidates[0], axis=-1)
        scores = self._scores(hidden[0], logits[0], candidates, anchor)
        return Block(np.array(hidden[0]), np.array(logits[0]), np.array(candidates), scores, tokens[0].tolist())

    def _scores(self, hidden: mx.array, logits: mx.array, candidates: mx.array, anchor: int) -> np.ndarray:
        """All pairs by the formula of one pair, from the reference's own parameters."""
        selector = self.model.candidate_selector
        before = np.array(selector.predecessor_codebook.weight)
        after = np.array(selector.successor_codebook.weight)
        gate, ids, unary = (np.array(a) for a in (selector.hidden_projection(hidden), candidates, logits))
        rows, k = ids.shape
        scores = np.empty((rows, k, k), dtype=np.float32)
        for t in range(rows):
            previous = ids[t - 1] if t else [anchor] * k
            for a in range(k):
                for b in range(k):
                    edge = float(np.sum(before[previous[a]] * gate[t] * after[ids[t, b]]))
                    scores[t, a, b] = unary[t, ids[t, b]] + edge
        return scores


def best_path(candidates: np.ndarray, scores: np.ndarray) -> list[int]:
    """The greedy walk over scores, one row after the other."""
    path, choice = [], 0
    for t in range(len(candidates)):
        choice = int(np.argmax(scores[t, choice]))
        path.append(int(candidates[t, choice]))
    return path
