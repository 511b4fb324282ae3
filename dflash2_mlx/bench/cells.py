"""Samples to figures: the speed of each arm by kind or depth, and its ratio to the baseline, with its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .model import Arm, BenchPrompt, Result, Sample
from .spread import median_interval, quartiles

By = Literal["all", "kind", "depth"]
Turn = tuple[str, int, int]  # prompt, depth, round: what pairs the samples of two arms

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm over one group of samples. Speeds are tokens per second after the first token.

    `ratio` is the median over `pairs` of samples of this arm and of `baseline` with the same prompt and round, `low`
    and `high` its quartiles, `interval` what holds it with 99 % (None: too few pairs). All None for a baseline.
    `first_token_seconds` leaves out prompts that a server had kept in part.
    `same_texts` of `compared_texts` greedy answers are those of the baseline, letter by letter.
    """

    arm: str
    group: str
    samples: int
    speed: float | None
    speed_low: float | None
    speed_high: float | None
    first_token_seconds: float | None
    tokens_per_cycle: float | None
    acceptance: tuple[float, ...] = ()
    baseline: str | None = None
    pairs: int = 0
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    interval: tuple[float, float] | None = None
    same_texts: int = 0
    compared_texts: int = 0
    ran_plain: int = 0  # samples in which an arm that asked for speculation had none

    @property
    def distinguishable(self) -> bool:
        """Whether the arm differs from its baseline by more than noise: the interval leaves 1 out."""
        return self.interval is not None and not self.interval[0] <= 1.0 <= self.interval[1]


def cells(result: Result, by: By = "kind") -> list[Cell]:
    """A cell for each arm and group that has samples, arms in the plan's order."""
    found = []
    for arm in result.plan.arms:
        for group in groups(result, by):
            samples = [s for s in result.samples if s.arm == arm.name and group in (ALL, group_of(s, by))]
            if samples:
                found.append(_cell(result, arm, group, samples))
    return found


def groups(result: Result, by: By) -> list[str]:
    """The names of the groups, kinds in the plan's order and depths from the lowest."""
    prompts = result.plan.prompts
    if by == "depth":
        return [str(depth) for depth in sorted({prompt.depth for prompt in prompts})]
    return [ALL] if by == "all" else list(dict.fromkeys(prompt.kind for prompt in prompts))


def group_of(item: Sample | BenchPrompt, by: By) -> str:
    return {"all": ALL, "kind": item.kind, "depth": str(item.depth)}[by]


def ran_plain(arm: Arm, sample: Sample) -> bool:
    """Whether a sample of an arm that asked for speculation was decoded plainly, as far as the backend tells."""
    return arm.asks_for_speculation and sample.engine == "plain"


def _cell(result: Result, arm: Arm, group: str, samples: Sequence[Sample]) -> Cell:
    speeds = [s.tokens_per_second for s in samples if s.tokens_per_second > 0]
    low, middle, high = quartiles(speeds) if speeds else (None, None, None)
    baseline = result.plan.baseline(arm)
    others = {turn(s): s for s in result.samples if s.arm == baseline.name} if baseline != arm else {}
    couples = [(s, others[turn(s)]) for s in samples if turn(s) in others]
    ratios = [a.tokens_per_second / b.tokens_per_second for a, b in couples if _both_timed(a, b)]
    ratio_low, ratio, ratio_high = quartiles(ratios) if ratios else (None, None, None)
    waits = [s.prompt_seconds for s in samples if not s.cached_tokens]
    texts = [a.digest == b.digest for a, b in couples if arm.temperature == 0 and _comparable(a, b)]
    return Cell(
        arm=arm.name,
        group=group,
        samples=len(samples),
        speed=middle,
        speed_low=low,
        speed_high=high,
        first_token_seconds=quartiles(waits)[1] if waits else None,
        tokens_per_cycle=tokens_per_cycle(samples),
        acceptance=acceptance(samples),
        baseline=baseline.name if baseline != arm else None,
        pairs=len(ratios),
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        interval=median_interval(ratios),
        same_texts=sum(texts),
        compared_texts=len(texts),
        ran_plain=sum(ran_plain(arm, sample) for sample in samples),
    )


def turn(sample: Sample) -> Turn:
    return sample.prompt, sample.depth, sample.round


def _both_timed(a: Sample, b: Sample) -> bool:
    return a.tokens_per_second > 0 and b.tokens_per_second > 0


def _comparable(a: Sample, b: Sample) -> bool:
    """Whether both have digests, of one kind."""
    return bool(a.digest and b.digest) and a.digest.rpartition(":")[0] == b.digest.rpartition(":")[0]


def _cycles(sample: Sample) -> float:
    return sample.generation_tokens / sample.tokens_per_cycle if sample.tokens_per_cycle else 0.0


def tokens_per_cycle(samples: Sequence[Sample]) -> float | None:
    """Of all cycles together, so that a long answer counts for more than a short one; None where nothing tells."""
    told = [sample for sample in samples if sample.tokens_per_cycle]
    cycles = sum(map(_cycles, told))
    return sum(sample.generation_tokens for sample in told) / cycles if cycles else None


def acceptance(samples: Sequence[Sample]) -> tuple[float, ...]:
    """The share of drafts at each position that stood, of all that were proposed there."""
    longest = max((len(sample.acceptance_by_position) for sample in samples), default=0)
    shares = []
    for position in range(longest):
        counts = [_drafts(sample, position) for sample in samples if len(sample.acceptance_by_position) > position]
        proposed = sum(count for _, count in counts)
        shares.append(sum(count for count, _ in counts) / proposed if proposed else 0.0)
    return tuple(shares)


def _drafts(sample: Sample, position: int) -> tuple[float, float]:
    """How many drafts at a position stood, and how many were proposed there; for results without counts, about.

    A cycle of width w proposes at w - 1 positions, a plain step at none.
    """
    if position < min(len(sample.accepted_by_position), len(sample.proposed_by_position)):
        return sample.accepted_by_position[position], sample.proposed_by_position[position]
    widths = sample.cycles_by_width
    proposed = sum(widths[position + 1 :]) if any(widths) else _cycles(sample)
    return proposed * sample.acceptance_by_position[position], proposed
