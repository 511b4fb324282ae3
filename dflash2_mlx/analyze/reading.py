"""One pass of the target over a text: its taps, what it would have said, and how likely it found what stands there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..decode.laws import log_probabilities
from ..drafter.context import DraftContext
from ..drafter.propose import Drafter
from ..target.adapter import Target
from .text import RecordedText

_PROMPT_CHUNK = 2048
# Rows whose logits are looked at: a vocabulary of 250,000 takes a megabyte a row in float32.
_ANSWER_CHUNK = 128


@dataclass(frozen=True)
class Reading:
    """A text of P prompt and A answer tokens as the target reads it, all of the answer's figures by answer token.

    `context` ends before the prompt's last token, `taps`, each (1, A, H), go on there. `choices` (A,) are the target's
    greedy tokens, `log_p` (A,) the log-probabilities (temperature 1) of the tokens that stand there.
    """

    text: RecordedText
    context: DraftContext
    taps: list[mx.array]
    choices: np.ndarray
    log_p: np.ndarray

    @property
    def agreement(self) -> float:
        """Share of the answer's tokens that are the target's greedy ones."""
        return float((self.choices == np.array(self.text.answer)).mean())


def read(target: Target, drafter: Drafter, text: RecordedText) -> Reading:
    """Feed prompt and answer, all but the last token, in chunks."""
    caches, context = target.new_cache(), drafter.new_context()
    body = text.prompt[:-1]
    for start in range(0, len(body), _PROMPT_CHUNK):
        _, taps = target.with_taps(mx.array([body[start : start + _PROMPT_CHUNK]]), caches)
        context.append(taps, start)
        mx.eval([cache.state for cache in caches], context.arrays())
    seen = [text.prompt[-1], *text.answer[:-1]]
    kept: list[Sequence[mx.array]] = []
    rows: list[tuple[mx.array, mx.array]] = []
    for start in range(0, len(seen), _ANSWER_CHUNK):
        logits, taps = target.with_taps(mx.array([seen[start : start + _ANSWER_CHUNK]]), caches)
        kept.append(taps)
        rows.append(_told(logits[0], text.answer[start : start + _ANSWER_CHUNK]))
        mx.eval(rows[-1], taps, [cache.state for cache in caches])
    mx.clear_cache()
    choices, log_p = (np.concatenate([np.array(row[i]) for row in rows]) for i in range(2))
    return Reading(
        text, context, [mx.concatenate(list(tap), axis=1) for tap in zip(*kept, strict=True)], choices, log_p
    )


def _told(logits: mx.array, answer: Sequence[int]) -> tuple[mx.array, mx.array]:
    """Greedy tokens and the log-probabilities of the given ones, each (n,), from logits (n, V)."""
    given = mx.array(list(answer))[:, None]
    return mx.argmax(logits, axis=-1), mx.take_along_axis(log_probabilities(logits), given, axis=-1)[:, 0]


def contexts(reading: Reading, stride: int) -> Iterator[tuple[int, DraftContext]]:
    """Every `stride`-th answer token as an anchor, by its number in the answer, with the context before it.

    The last token is none: nothing comes after it. The context goes on growing: use it before the next one is taken.
    """
    context = reading.context.copy()
    first = context.end  # the position of the prompt's last token
    for anchor in range(0, len(reading.text.answer) - 1, stride):
        known = context.end - first
        context.append([tap[:, known : anchor + 1] for tap in reading.taps], context.end)
        yield anchor, context
