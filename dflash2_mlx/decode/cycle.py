"""A speculative cycle: propose, verify, accept, commit, with one host sync between the second last and the last."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ..drafter.context import DraftContext
from ..drafter.propose import Proposal
from ..errors import DecodeError
from ..target.adapter import Target
from ..target.one_by_one import OpenBlock, verify
from .accept import Verdict, accept_greedy, accept_sampled
from .laws import history_rows, only, rows_finite
from .logprobs import RowLogprobs, TokenLogprobs
from .request import Request
from .state import DecodeState


class Proposer(Protocol):
    """What a cycle asks of a drafter; `drafter.propose.Drafter` is one."""

    def propose(
        self,
        target: Target,
        context: DraftContext,
        anchor: mx.array,
        width: int,
        *,
        temperature: float = 0.0,
        key: mx.array | None = None,
    ) -> Proposal: ...


@dataclass(frozen=True)
class Launched:
    """A cycle on its way: everything on the device, the target's caches inside an open transaction."""

    transaction: OpenBlock
    taps: list[mx.array]
    outcome: mx.array  # int32: accepted, usable, bonus, R drafts, R + 1 flags of finite rows
    logprobs: RowLogprobs | None
    width: int
    parts: tuple[float, float] | None = None  # seconds of draft and verify, where they were timed


@dataclass(frozen=True)
class Outcome:
    """What a cycle emits: `tokens`, of which the first `accepted` were drafts. `failed`: the next row is not finite."""

    tokens: list[int]
    accepted: int
    dropped: bool
    failed: bool
    logprobs: list[TokenLogprobs] | None


class Keys:
    """Independent random keys of one request, in order; the same seed gives the same keys.

    They are drawn on the host: splitting keys on the device costs several operations a step.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def take(self, count: int) -> list[mx.array]:
        return [mx.array([self._random.getrandbits(32) for _ in range(2)], mx.uint32) for _ in range(count)]


class Cycle:
    """The cycles of one request."""

    def __init__(self, target: Target, proposer: Proposer, state: DecodeState, request: Request, keys: Keys) -> None:
        self.target, self.proposer, self.state, self.request, self.keys = target, proposer, state, request, keys

    def launch(self, anchor: int, width: int, *, timed: bool = False) -> Launched:
        """Send a whole cycle of `width` rows, two or more, after `anchor`, the last emitted token, to the device.

        Waits for nothing; where a constraint binds, for the drafts, while the target runs; where it is `timed`, for
        each part.
        """
        begin = time.perf_counter()
        law = self.request.law
        keys = [] if law.deterministic else self.keys.take(3)
        first = mx.array([anchor])
        proposal = self._propose(first, width, keys)
        mx.async_eval(proposal.tokens)
        if timed:
            mx.eval(proposal.tokens)
        drafted = time.perf_counter()
        with self.state.changing():
            block = mx.concatenate([first, proposal.tokens.astype(mx.int32)])[None]
            one_by_one = self.request.verify_precision == "reference"
            transaction, logits, taps = verify(self.target, self.state.caches, block, one_by_one=one_by_one)
            allowed = self._allowed(logits, proposal.tokens)
            outcome, logprobs = self._accept(anchor, proposal, only(logits[0], allowed), rows_finite(logits[0]), keys)
            mx.async_eval(outcome, *(logprobs.arrays() if logprobs else []))
            if timed:
                mx.eval(outcome)
        parts = (drafted - begin, time.perf_counter() - drafted) if timed else None
        return Launched(transaction, taps, outcome, logprobs, width, parts)

    def _propose(self, anchor: mx.array, width: int, keys: list[mx.array]) -> Proposal:
        context = self.state.context
        assert context is not None, "speculation needs a drafter's context"
        law = self.request.law
        if law.deterministic:
            return self.proposer.propose(self.target, context, anchor, width)
        return self.proposer.propose(self.target, context, anchor, width, temperature=law.temperature, key=keys[0])

    def _allowed(self, logits: mx.array, drafts: mx.array) -> mx.array | None:
        constraint = self.request.constraint
        if constraint is None or constraint.free(drafts.shape[0] + 1):
            return None
        mx.async_eval(logits)
        tokens: list[int] = drafts.tolist()  # type: ignore[assignment]
        return constraint.masks(tokens)

    def _accept(
        self, anchor: int, proposal: Proposal, logits: mx.array, finite: mx.array, keys: list[mx.array]
    ) -> tuple[mx.array, RowLogprobs | None]:
        law, drafts = self.request.law, proposal.tokens
        size = law.history_size
        history = history_rows([*self.state.tokens[-size:], anchor], size, drafts) if size else None
        logits = law.adjust(logits, history)
        if law.deterministic:
            verdict = accept_greedy(drafts, mx.argmax(logits, axis=-1), usable=proposal.finite)
        else:
            verdict = accept_sampled(
                drafts,
                law.log_law(logits),
                proposal.candidates,
                proposal.law,
                usable=proposal.finite,
                accept_key=keys[1],
                residual_key=keys[2],
            )
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = RowLogprobs(logits, _emitted(drafts, verdict), self.request.logprobs)
        parts = [verdict.accepted[None], proposal.finite[None], verdict.bonus[None], drafts, finite]
        return mx.concatenate([part.astype(mx.int32) for part in parts]), logprobs

    def collect(self, launched: Launched) -> Outcome:
        """Wait for a launched cycle: the one host sync."""
        drafted = launched.width - 1
        values: list[int] = launched.outcome.tolist()  # type: ignore[assignment]
        accepted, usable, bonus = values[:3]
        drafts, finite = values[3 : 3 + drafted], values[3 + drafted :]
        tokens = [*drafts[:accepted], bonus]
        sound = next((i for i, flag in enumerate(finite[: len(tokens)]) if not flag), len(tokens))
        failed = sound < len(tokens)
        if failed:
            if not sound:
                raise DecodeError(not_finite(len(self.state.tokens)))
            tokens, accepted = tokens[:sound], sound
        logprobs = launched.logprobs.read(tokens) if launched.logprobs else None
        return Outcome(tokens, accepted, not usable, failed, logprobs)

    def commit(self, launched: Launched, anchor: int, emitted: list[int]) -> None:
        """Leave caches, context and tokens at `emitted`, of which the last is the next anchor and stays outside."""
        keep = len(emitted)
        with self.state.changing():
            launched.transaction.commit(keep)
            context = self.state.context
            if context is not None:
                context.append([tap[:, :keep] for tap in launched.taps], len(self.state.tokens))
            self.state.tokens += [anchor, *emitted[:-1]]
            if launched.parts is not None:  # a timed cycle: what the commit has put off is its own
                mx.eval([cache.state for cache in self.state.caches], context.arrays() if context is not None else [])


def not_finite(position: int) -> str:
    """The message for a row of the target that holds NaN or infinity."""
    return (
        f"the target's logits after position {position} are not finite: its weights or its compute dtype are at "
        "fault (try --dtype bfloat16 or float32)"
    )


def _emitted(drafts: mx.array, verdict: Verdict) -> mx.array:
    """The token of each of the R + 1 rows, were it emitted: the drafts, and the bonus where they end."""
    rows = mx.arange(drafts.shape[0] + 1)
    line = mx.concatenate([drafts.astype(mx.int32), mx.zeros((1,), mx.int32)])
    return mx.where(rows == verdict.accepted, verdict.bonus.astype(mx.int32), line)
