"""What a reader has to know beside the figures: what is missing, what was disturbed, what did not do as asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .cells import Cell, cells, ran_plain
from .disturbed import counted, gathered
from .model import Arm, Result, Sample
from .spread import values_needed


def notes(result: Result) -> list[str]:
    """Sentences, the gravest first."""
    overall = cells(result, "all")
    return [
        *_missing(result),
        *_plain_instead(result),
        *gathered(result.samples),
        *_forks(result, overall),
        *_short(result.samples),
        *_in_flight(result),
        *_reading(overall),
    ]


def speculation(arm: Arm, samples: Sequence[Sample]) -> str:
    """Whether an arm speculated, as far as its backend tells."""
    engines = Counter(sample.engine for sample in samples)
    told = {engine: count for engine, count in engines.items() if engine}
    if not told:
        return "not told"
    plain = told.get("plain", 0)
    others = ", ".join(engine for engine in told if engine != "plain")
    if not others:
        return "plain, though asked to speculate" if arm.asks_for_speculation else "plain"
    return others if not plain else f"{others}; plain in {plain} of {len(samples)}"


def _missing(result: Result) -> Iterator[str]:
    if result.cancelled:
        yield (
            f"Ended early ({result.extra.get('ended', 'cancelled')}): {len(result.samples)} of {result.plan.total} "
            "samples are there, and the groups are not evenly filled."
        )
    if result.failures:
        first = result.failures[0]
        yield (
            f"{counted(len(result.failures))} failed; the first was {first.arm} on {first.prompt}, round "
            f"{first.round + 1}: {first.error}"
        )


def _plain_instead(result: Result) -> Iterator[str]:
    for arm in result.plan.arms:
        of_arm = [sample for sample in result.samples if sample.arm == arm.name]
        plain = sum(ran_plain(arm, sample) for sample in of_arm)
        if plain:
            yield f"{arm.name} asked for speculation and ran plain in {plain} of {counted(len(of_arm))}."


def _forks(result: Result, overall: Sequence[Cell]) -> Iterator[str]:
    exact = any(value == "float32" for key, value in result.facts.items() if key.endswith("target compute type"))
    for cell in overall:
        forked = cell.compared_texts - cell.same_texts
        if forked:
            why = (
                "which float32 should not do: `dflash2-mlx doctor` tells whether this machine verifies exactly"
                if exact
                else "as happens at near-ties of the target's two best tokens outside float32"
            )
            yield f"{cell.arm} gave another greedy text in {forked} of {cell.compared_texts}, {why}."


def _short(samples: Sequence[Sample]) -> Iterator[str]:
    short = sum(sample.tokens_per_second <= 0 for sample in samples)
    if short:
        yield f"{counted(short)} without a speed: fewer than two tokens, or too many of them at once."


def _in_flight(result: Result) -> Iterator[str]:
    if result.plan.concurrency == 1:
        return
    for arm in result.plan.arms:
        of_arm = [sample for sample in result.samples if sample.arm == arm.name]
        if of_arm:
            yield f"With {result.plan.concurrency} in flight, speculation in {arm.name}: {speculation(arm, of_arm)}."
    if len(result.plan.prompts) < result.plan.concurrency:
        yield f"There are only {len(result.plan.prompts)} prompts: never were {result.plan.concurrency} in flight."


def _reading(overall: Sequence[Cell]) -> Iterator[str]:
    if any(cell.baseline for cell in overall):
        yield (
            "A ratio is the median over pairs of answers to the same prompt in the same round. Its interval holds the "
            "true median for these prompts on this machine in 99 of 100 runs, and takes at least "
            f"{values_needed()} pairs; an arm is called faster or slower only where the interval leaves 1 out."
        )
