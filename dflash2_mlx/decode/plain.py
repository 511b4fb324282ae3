"""Plain decoding, double-buffered as mlx-lm's: step n + 1 is launched before token n is read."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..errors import DecodeError
from ..target.adapter import Target
from .cycle import Keys, not_finite
from .laws import history_rows, only, rows_finite
from .logprobs import RowLogprobs, TokenLogprobs
from .request import Request
from .state import DecodeState


@dataclass(frozen=True)
class Step:
    """A token on its way: int32 (1,) on the device, -1 where the target's row is not finite."""

    token: mx.array
    logprobs: RowLogprobs | None


class PlainDecoder:
    """Single steps of one request. The drafter's context, where there is one, is kept up without work a step."""

    def __init__(self, target: Target, state: DecodeState, request: Request, keys: Keys) -> None:
        self.target, self.state, self.request, self.keys = target, state, request, keys

    def launch(self, token: mx.array, *, unread: bool = False) -> Step:
        """Feed `token` (1,), which follows the state's tokens, and sample the next; waits for nothing.

        The caches hold the token from now on: the caller adds it to `state.tokens` once it knows it. A constraint
        has not heard of an `unread` token: then this waits for it, while the target runs.
        """
        state = self.state
        rings: list[mx.array] = []
        if state.context is None:
            logits = self.target(token[None], state.caches)
        else:
            logits, taps = self.target.with_taps(token[None], state.caches)
            state.context.defer(taps, len(state.tokens))
            # Nothing here reads them: unevaluated, they would hold every tapped row of a long answer.
            rings = state.context.arrays()
        step = self._choose(logits[0], token, self._allowed(logits, token if unread else None))
        mx.async_eval(step.token, *(step.logprobs.arrays() if step.logprobs else []), *rings)
        return step

    def _allowed(self, logits: mx.array, unread: mx.array | None) -> mx.array | None:
        constraint = self.request.constraint
        if constraint is None or constraint.free(1 if unread is None else 2):
            return None
        mx.async_eval(logits)
        known: list[int] = [] if unread is None else unread.tolist()  # type: ignore[assignment]
        if known and known[0] < 0:
            return None  # a row that was not finite: `read` tells
        return constraint.masks(known)[-1:]

    def _choose(self, logits: mx.array, token: mx.array, allowed: mx.array | None) -> Step:
        law = self.request.law
        finite = rows_finite(logits)
        logits = only(logits, allowed)
        size = law.history_size
        logits = law.adjust(logits, history_rows(self.state.tokens, size, token)[1:] if size else None)
        if law.deterministic:
            choice = mx.argmax(logits, axis=-1)
        else:
            (key,) = self.keys.take(1)
            choice = mx.random.categorical(law.log_law(logits), key=key)
        alternatives = self.request.logprobs
        logprobs = None if alternatives is None else RowLogprobs(logits, choice, alternatives)
        return Step(mx.where(finite, choice.astype(mx.int32), -1), logprobs)

    def read(self, step: Step) -> tuple[int, list[TokenLogprobs] | None]:
        """Wait for a launched step."""
        values: list[int] = step.token.tolist()  # type: ignore[assignment]
        token = values[0]
        if token < 0:
            raise DecodeError(not_finite(len(self.state.tokens) - 1))
        return token, step.logprobs.read([token]) if step.logprobs else None
