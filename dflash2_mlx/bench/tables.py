"""The tables of a benchmark's report."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from ..report.blocks import Cell as Entry
from ..report.blocks import Table
from .cells import By, Cell, groups
from .model import Result
from .notes import speculation


def summary(result: Result, overall: Sequence[Cell]) -> Table:
    """A row for each arm over all prompts."""
    return Table(
        title="All prompts",
        columns=(
            "arm",
            "tokens/s",
            "quartiles",
            "ratio",
            "99 % interval",
            "verdict",
            "tokens per cycle",
            "first token, s",
            "same greedy texts",
            "engine",
        ),
        rows=[_summary_row(result, cell) for cell in overall],
    )


def _summary_row(result: Result, cell: Cell) -> list[Entry]:
    arm = next(arm for arm in result.plan.arms if arm.name == cell.arm)
    samples = [sample for sample in result.samples if sample.arm == cell.arm]
    return [
        cell.arm,
        cell.speed,
        _span(cell.speed_low, cell.speed_high),
        cell.ratio,
        _span(*cell.interval) if cell.interval else None,
        verdict(cell, mixed=len(groups(result, "kind")) > 1),
        cell.tokens_per_cycle,
        cell.first_token_seconds,
        f"{cell.same_texts} of {cell.compared_texts}" if cell.compared_texts else None,
        speculation(arm, samples),
    ]


def verdict(cell: Cell, *, mixed: bool = False) -> str:
    """What the interval allows to say, in a word or two; of `mixed` kinds of content nothing, they can differ."""
    if cell.baseline is None:
        return "baseline"
    if mixed:
        return "mixed kinds"
    if cell.interval is None:
        return "too few pairs"
    if not cell.distinguishable:
        return "no difference to be told"
    return "faster" if cell.interval[0] > 1 else "slower"


def by_group(result: Result, by: By, found: Sequence[Cell]) -> Table:
    """Arms by kinds or depths: speed, and the ratio where there is one."""
    names = groups(result, by)
    known = {(cell.arm, cell.group): cell for cell in found}
    arms = [arm.name for arm in result.plan.arms if any(cell.arm == arm.name for cell in found)]
    return Table(
        title="Tokens per second (times the baseline)",
        columns=("arm", *names),
        rows=[[arm, *(_speed_and_ratio(known.get((arm, name))) for name in names)] for arm in arms],
        note="≈: not distinguishable from the baseline, or too few pairs to tell.",
    )


def _speed_and_ratio(cell: Cell | None) -> str | None:
    if cell is None or cell.speed is None:
        return None
    if cell.ratio is None:
        return f"{cell.speed:.1f}"
    return f"{cell.speed:.1f} ({'' if cell.distinguishable else '≈'}{cell.ratio:.2f}×)"


def throughput(result: Result) -> Table:
    """What all answers in flight came to together; no rows where one was answered at a time."""
    rows: list[list[Entry]] = []
    for arm in result.plan.arms:
        passes = [one for one in result.passes if one.arm == arm.name and one.seconds > 0]
        if passes:
            rates = [one.tokens / one.seconds for one in passes]
            middle, slowest = _waits(result, arm.name)
            rows.append([arm.name, len(passes), statistics.median(rates), middle, slowest])
    return Table(
        title=f"Throughput with {result.plan.concurrency} in flight",
        columns=("arm", "passes", "tokens/s in all", "first token, s, median", "95 of 100 within"),
        rows=rows,
    )


def _waits(result: Result, arm: str) -> tuple[float | None, float | None]:
    """Seconds to the first token, the median and what 95 of 100 are within; prompts cached in part are left out."""
    waits = [s.prompt_seconds for s in result.samples if s.arm == arm and not s.cached_tokens]
    if len(waits) < 2:
        return (waits[0], waits[0]) if waits else (None, None)
    return statistics.median(waits), statistics.quantiles(waits, n=20, method="inclusive")[-1]


def widths(result: Result) -> Table:
    """Which share of the target's passes had which width, for arms that chose it."""
    chosen = {
        arm.name: [sample.cycles_by_width for sample in result.samples if sample.arm == arm.name]
        for arm in result.plan.arms
        if arm.asks_for_speculation and (arm.block_size is None or arm.verify_mode == "adaptive")
    }
    widest = max((len(counts) for samples in chosen.values() for counts in samples), default=0)
    rows: list[list[Entry]] = []
    for name, samples in chosen.items():
        counts = [sum(c[width] for c in samples if width < len(c)) for width in range(widest)]
        if any(counts):
            rows.append([name, *(f"{count / sum(counts):.0%}" if count else None for count in counts)])
    return Table(
        title="Widths chosen, share of passes",
        columns=("arm", *("plain" if width == 1 else str(width) for width in range(1, widest + 1))),
        rows=rows,
    )


def endings(result: Result) -> Table:
    """How the answers ended, and how long they were."""
    reasons = list(dict.fromkeys(sample.finish_reason or "not told" for sample in result.samples))
    rows: list[list[Entry]] = []
    for arm in result.plan.arms:
        samples = [sample for sample in result.samples if sample.arm == arm.name]
        if samples:
            counts = Counter(sample.finish_reason or "not told" for sample in samples)
            tokens = statistics.median(sample.generation_tokens for sample in samples)
            rows.append([arm.name, *(counts[reason] for reason in reasons), round(tokens)])
    return Table(title="How answers ended", columns=("arm", *reasons, "tokens, median"), rows=rows)


def _span(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:.2f} to {high:.2f}"
