"""Token ids in, steps of token ids out: reuse, prefill, then cycles or single steps. It knows no text."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..errors import DecodeError
from ..target.adapter import Target
from .cycle import Cycle, Keys, Launched, Outcome, Proposer, not_finite
from .logprobs import TokenLogprobs
from .plain import PlainDecoder
from .prefill import prefill
from .request import Request
from .state import DecodeState
from .stats import Stats

_CLEAR_EVERY = 256  # tokens between releases of unused buffers, as in mlx-lm's own loop


@dataclass(frozen=True)
class TokenStep:
    """Newly emitted ids: of one cycle (up to block_size) or one plain step.

    `accepted` of them were drafts. `finish_reason` is None until exactly one last step says "stop" (end token or stop
    string), "length" or "cancelled". `stats` is live.
    """

    tokens: list[int]
    accepted: int
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None
    stats: Stats


def generate_tokens(
    target: Target, proposer: Proposer | None, request: Request, state: DecodeState, stats: Stats
) -> Generator[TokenStep]:
    """Run one request. `state` is left at the emitted tokens whenever the iterator ends or is closed, in any thread.

    Raises DecodeError when a row of the target is not finite; the tokens before it have been given.
    """
    claim = state.claim()
    stats.start_prompt()
    stats.prompt_tokens = len(request.prompt)
    stats.cached_tokens = state.reuse(request.prompt)
    for _ in prefill(target, state, request):
        if request.turns:
            yield TokenStep([], 0, None, None, stats)
            state.check_claim(claim)
    if len(state.tokens) < len(request.prompt) - 1:
        stats.start_generation()
        yield TokenStep([], 0, "cancelled", None, stats)
        return
    run = _Run(target, request, state, stats, claim)
    first = run.first()
    if proposer is None or request.block_size == 1:
        yield from run.plain(first)
    else:
        yield from run.speculative(first, proposer)


class _Run:
    """One request after its prefill."""

    def __init__(self, target: Target, request: Request, state: DecodeState, stats: Stats, claim: int) -> None:
        self.claim = claim
        self.request, self.state, self.stats, self.target = request, state, stats, target
        self.keys = Keys(request.seed)
        self.decoder = PlainDecoder(target, state, request, self.keys)
        self.left = request.max_tokens

    def first(self) -> TokenStep:
        """Feed the last prompt token and read the first answer token."""
        last = self.request.prompt[-1]
        with self.state.changing():
            step = self.decoder.launch(mx.array([last]))
            self.state.tokens.append(last)
            token, logprobs = self.decoder.read(step)
        self.request.progress(len(self.request.prompt), len(self.request.prompt))
        self.stats.start_generation()
        return self._emit([token], 0, logprobs)

    def plain(self, step: TokenStep) -> Iterator[TokenStep]:
        """Single steps; at each yield the caches hold every emitted token but a last one that ended it."""
        if step.finish_reason:
            yield step
            return
        with self.state.changing():
            launched = self.decoder.launch(mx.array(step.tokens))
            self.state.tokens += step.tokens
        while True:
            yield step
            self.state.check_claim(self.claim)
            if self.request.cancelled():
                yield self._cancelled()
                return
            with self.state.changing():
                following = self.decoder.launch(launched.token, unread=True) if self.left > 1 else None
                token, logprobs = self.decoder.read(launched)
                if following is not None:
                    self.state.tokens.append(token)
            step = self._emit([token], 0, logprobs)
            if step.finish_reason or following is None:
                yield step
                return
            launched = following

    def speculative(self, step: TokenStep, proposer: Proposer) -> Iterator[TokenStep]:
        """Cycles; each is launched before the tokens of the one before are handed out."""
        cycle = Cycle(self.target, proposer, self.state, self.request, self.keys)
        pending: Launched | None = None
        try:
            while step.finish_reason is None:
                anchor = step.tokens[-1]
                pending = cycle.launch(anchor, timed=self.stats.next_is_timed)
                self.state.pending = pending.transaction
                yield step
                self.state.check_claim(self.claim)
                if self.request.cancelled():
                    break
                outcome = cycle.collect(pending)
                step = self._settle(cycle, pending, anchor, outcome)
                self.state.pending = pending = None
                if outcome.failed and step.finish_reason is None:
                    yield step
                    raise DecodeError(not_finite(len(self.state.tokens)))
        finally:
            if pending is not None:
                pending.transaction.abort()  # does nothing where another request has aborted it
        yield step if step.finish_reason else self._cancelled()

    def _settle(self, cycle: Cycle, launched: Launched, anchor: int, outcome: Outcome) -> TokenStep:
        """Count, cut and commit what a cycle gave."""
        step = self._emit(outcome.tokens, outcome.accepted, outcome.logprobs)
        proposed = self.request.block_size - 1
        self.stats.count_cycle(outcome.accepted, proposed, emitted=len(step.tokens), dropped=outcome.dropped)
        begin = time.perf_counter()
        cycle.commit(launched, anchor, step.tokens)
        if launched.parts is not None:
            self.stats.time_parts(*launched.parts, time.perf_counter() - begin)
        return step

    def _emit(self, tokens: list[int], accepted: int, logprobs: list[TokenLogprobs] | None) -> TokenStep:
        """Cut at the earliest of end token, stop string and limit; an end or stop at the limit counts as "stop"."""
        reason = None
        keep = next((i + 1 for i, token in enumerate(tokens) if token in self.request.eos_token_ids), None)
        if keep is not None:
            reason = "stop"
        limit = min(self.left, len(tokens) if keep is None else keep)
        cut = self.request.cut(tokens[:limit])
        if cut is not None:
            keep, reason = cut, "stop"
        elif keep is None or keep > self.left:
            keep = limit
            reason = "length" if limit == self.left else None
        self.left -= keep
        if self.left % _CLEAR_EVERY < keep:
            mx.clear_cache()
        self.stats.count_tokens(keep)
        if self.request.constraint is not None:
            self.request.constraint.advance(tokens[:keep])
        return TokenStep(tokens[:keep], min(accepted, keep), reason, logprobs and logprobs[:keep], self.stats)

    def _cancelled(self) -> TokenStep:
        return TokenStep([], 0, "cancelled", None, self.stats)
