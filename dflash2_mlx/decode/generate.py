"""Token ids in, steps of token ids out: reuse, prefill, then cycles or single steps. It knows no text."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..errors import DecodeError
from ..target.adapter import Target
from .chooser import FixedWidth, Lap, WidthChooser
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
    target: Target,
    proposer: Proposer | None,
    request: Request,
    state: DecodeState,
    stats: Stats,
    chooser: WidthChooser | None = None,
) -> Generator[TokenStep]:
    """Run one request. `state` is left at the emitted tokens whenever the iterator ends or is closed, in any thread.

    `chooser` tells the width of each cycle; without one it is the request's block size. Raises DecodeError when a row
    of the target is not finite; the tokens before it have been given.
    """
    claim = state.claim()
    stats.start_prompt()
    stats.prompt_tokens = len(request.prompt)
    stats.cached_tokens = state.reuse(request.prompt)
    for _ in prefill(target, state, request):
        Lap.interrupt()
        if request.turns:
            yield TokenStep([], 0, None, None, stats)
            state.check_claim(claim)
    if len(state.tokens) < len(request.prompt) - 1:
        stats.start_generation()
        yield TokenStep([], 0, "cancelled", None, stats)
        return
    run = _Run(target, proposer, request, state, stats, claim, chooser)
    try:
        yield from run.steps()
    finally:
        run.chooser.end()


class _Run:
    """One request after its prefill.

    Between its stretches of plain steps and of cycles, the caches hold every emitted token but the last one.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer | None,
        request: Request,
        state: DecodeState,
        stats: Stats,
        claim: int,
        chooser: WidthChooser | None,
    ) -> None:
        self.claim = claim
        self.request, self.state, self.stats = request, state, stats
        self.chooser = chooser if chooser is not None and proposer is not None else FixedWidth(request.block_size)
        self.decoder = PlainDecoder(target, state, request, keys := Keys(request.seed))
        self.cycle = None if proposer is None else Cycle(target, proposer, state, request, keys)
        self.left = request.max_tokens
        self.lap = Lap()
        self.width = 1  # of what comes next
        self.reason: str | None = None  # of that width

    def steps(self) -> Iterator[TokenStep]:
        """Stretches of plain steps and of cycles in turn; each gives its last step unsent, for the next to send."""
        step = self._first()
        if step.finish_reason is None:
            self._choose()
        while step.finish_reason is None:
            if self.cycle is None or self.width == 1:
                step = yield from self._plain(step)
            else:
                step = yield from self._speculative(step, self.cycle)
            self.lap.restart()
        yield step

    def _choose(self) -> int:
        """The width of what comes next."""
        self.width = 1 if self.cycle is None else self.chooser.choose(len(self.state.tokens) + 1)
        self.reason = self.chooser.reason
        return self.width

    def _done(self, width: int, accepted: int, depth: int, reason: str | None, *, timed: bool = False) -> None:
        """A cycle of that width, or a plain step, has run."""
        self.stats.count_width(width, reason)
        self.chooser.cycle_done(width, accepted, depth, self.lap.end(counts=not timed))

    def _first(self) -> TokenStep:
        """Feed the last prompt token and read the first answer token."""
        last = self.request.prompt[-1]
        with self.state.changing():
            step = self.decoder.launch(mx.array([last]))
            self.state.tokens.append(last)
            token, logprobs = self.decoder.read(step)
        self.request.progress(len(self.request.prompt), len(self.request.prompt))
        self.stats.start_generation()
        return self._emit([token], 0, logprobs)

    def _plain(self, step: TokenStep) -> Generator[TokenStep, None, TokenStep]:
        """Single steps while the chooser says so; each is launched before the token of the one before is read."""
        anchor = step.tokens[-1]
        with self.state.changing():
            launched = self.decoder.launch(mx.array([anchor]))
            self.state.tokens.append(anchor)
        while True:
            yield from self._send(step)
            if self.request.cancelled():
                return self._cancelled()
            depth, reason = len(self.state.tokens), self.reason
            goes_on = self.left > 1 and self._choose() == 1
            with self.state.changing():
                following = self.decoder.launch(launched.token, unread=True) if goes_on else None
                token, logprobs = self.decoder.read(launched)
                if following is not None:
                    self.state.tokens.append(token)
            step = self._emit([token], 0, logprobs)
            self._done(1, 0, depth, reason)
            if step.finish_reason or following is None:
                return step
            launched = following

    def _speculative(self, step: TokenStep, cycle: Cycle) -> Generator[TokenStep, None, TokenStep]:
        """Cycles while the chooser says so; each is launched before the tokens of the one before are handed out."""
        pending: Launched | None = None
        try:
            while step.finish_reason is None and self.width > 1:
                anchor, depth, timed = step.tokens[-1], len(self.state.tokens), self.stats.next_is_timed
                pending = cycle.launch(anchor, self.width, timed=timed)
                self.state.pending = pending.transaction
                yield from self._send(step)
                if self.request.cancelled():
                    return self._cancelled()
                outcome = cycle.collect(pending)
                step = self._settle(cycle, pending, anchor, outcome)
                self.state.pending = pending = None
                self._done(self.width, outcome.accepted, depth, self.reason, timed=timed)
                if outcome.failed and step.finish_reason is None:
                    yield step
                    raise DecodeError(not_finite(len(self.state.tokens)))
                if step.finish_reason is None:
                    self._choose()
        finally:
            if pending is not None:
                pending.transaction.abort()  # does nothing where another request has aborted it
        return step

    def _send(self, step: TokenStep) -> Iterator[TokenStep]:
        """Hand a step out; raises RequestError where the state has gone on without this request meanwhile."""
        yield step
        self.state.check_claim(self.claim)

    def _settle(self, cycle: Cycle, launched: Launched, anchor: int, outcome: Outcome) -> TokenStep:
        """Count, cut and commit what a cycle gave."""
        step = self._emit(outcome.tokens, outcome.accepted, outcome.logprobs)
        self.stats.count_cycle(outcome.accepted, launched.width - 1, emitted=len(step.tokens), dropped=outcome.dropped)
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
