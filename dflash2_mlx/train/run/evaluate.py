"""Acceptance by real decoding: the pair answers the held-out prompts greedily, cycle by cycle."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ...decode import stats
from ...decode.stats import Stats
from ...drafter.config import DrafterConfig
from ...drafter.model import DraftModel
from ...drafter.propose import Drafter
from ...errors import PairError, RequestError
from ...pairs import Pair
from ...text.stream import generate
from ..data.held_out import HeldOut
from ..reporting.history import EvaluationLine


def decode_acceptance(
    pair: Pair,
    held_out: Sequence[HeldOut],
    *,
    block_size: int,
    tokens: int,
    step: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> EvaluationLine:
    """Tokens per cycle over all cycles and over those of each kind, and the share of cycles whose i-th draft stood.

    Each answer has up to `tokens` tokens, drafted in blocks of `block_size` rows. The first token of an answer is the
    prefill's and counts in no cycle. Raises PairError without a drafter, RequestError without prompts.
    """
    if pair.drafter is None:
        raise PairError(f"{pair.model_name} has no drafter: there is no acceptance to measure")
    if not held_out:
        raise RequestError("there are no held-out prompts to decode", param="held_out")
    tallies: dict[str, _Tally] = {}
    for number, one in enumerate(held_out):
        progress(number, len(held_out))
        with _without_alarm():
            decoded = generate(
                pair,
                one.prompt_ids,
                max_tokens=tokens,
                temperature=0.0,
                seed=0,
                block_size=block_size,
                verify_mode="dflash",
            )
        tallies.setdefault(one.kind, _Tally()).add(decoded.stats)
    progress(len(held_out), len(held_out))
    total = _Tally()
    for tally in tallies.values():
        total.join(tally)
    return EvaluationLine(
        step=step,
        tokens_per_cycle=total.rate,
        by_kind={kind: tally.rate for kind, tally in tallies.items()},
        accepted_by_position=[stood / total.cycles for stood in total.stood],
    )


@contextlib.contextmanager
def _without_alarm() -> Iterator[None]:
    """A young drafter has next to nothing accepted: that it does not fit its target would be a false alarm."""
    log = logging.getLogger(stats.__name__)
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def drafter_of(config: DrafterConfig, weights: Mapping[str, mx.array], dtype: mx.Dtype) -> Drafter:
    """A drafter of those weights, rounded to bfloat16 as an export rounds them, computing in `dtype`."""
    model = DraftModel(config)
    model.load_weights([(name, array.astype(mx.bfloat16)) for name, array in weights.items()], strict=True)
    model.set_dtype(dtype)
    model.freeze()
    model.eval()
    mx.eval(model.parameters())
    return Drafter(model)


@dataclass
class _Tally:
    """Cycles, the tokens that they gave, and how many of them had each drafted position accepted."""

    cycles: int = 0
    tokens: int = 0
    stood: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.cycles if self.cycles else 1.0

    def add(self, stats: Stats) -> None:
        self.join(_Tally(stats.cycles, stats.cycle_tokens, list(stats.accepted_by_position)))

    def join(self, other: _Tally) -> None:
        self.cycles += other.cycles
        self.tokens += other.tokens
        longest = max(len(self.stood), len(other.stood))
        ours, theirs = (one + [0] * (longest - len(one)) for one in (self.stood, other.stood))
        self.stood = [a + b for a, b in zip(ours, theirs, strict=True)]
