"""Adaptive block sizes against every fixed one in hindsight, on a real pair and this machine.

    python -m benchmarks.widths --per-kind 1 --tokens 96 --rounds 3

Arms take turns on every prompt, as in `dflash2-mlx bench`, whose runner this is. A fixed width's time is that of all
answers together; the best one is known only afterwards. Plain decoding runs twice ("plain again"): how far that is
from 1 tells what the other ratios are worth. With `--tune` the pair is tuned first.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from dflash2_mlx.bench.local import LocalPair
from dflash2_mlx.bench.model import Progress, Result, Sample
from dflash2_mlx.bench.plan import CONTROL, make_plan
from dflash2_mlx.bench.results import as_dict
from dflash2_mlx.bench.run import run
from dflash2_mlx.bench.tune import tune
from dflash2_mlx.pairs import load
from dflash2_mlx.prompts import KINDS, own

_DRAWS = 2000


def seconds_by_arm(samples: Sequence[Sample]) -> dict[str, float]:
    """Seconds of each arm for one token of every prompt, the median of its rounds."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.tokens_per_second:
            times[sample.arm, sample.prompt].append(1.0 / sample.tokens_per_second)
    totals: dict[str, float] = defaultdict(float)
    for (arm, _), values in times.items():
        totals[arm] += median(values)
    return dict(totals)


def ratios(samples: Sequence[Sample], adaptive: str, plain: str) -> tuple[str, float, float]:
    """The best fixed arm, and the speed of the adaptive one over it and over plain decoding."""
    totals = seconds_by_arm(samples)
    fixed = {arm: seconds for arm, seconds in totals.items() if arm != adaptive}
    best = min(fixed, key=lambda arm: fixed[arm])
    return best, fixed[best] / totals[adaptive], fixed[plain] / totals[adaptive]


def spread(samples: Sequence[Sample], adaptive: str, plain: str) -> list[tuple[float, float]]:
    """90 % intervals of both ratios: prompts drawn again and again."""
    rng = random.Random(0)
    by_prompt: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_prompt[sample.prompt].append(sample)
    names = list(by_prompt)
    found: list[tuple[float, float]] = []
    for _ in range(_DRAWS):
        drawn = [
            Sample(**{**vars(sample), "prompt": f"{i}"})
            for i, name in enumerate(rng.choices(names, k=len(names)))
            for sample in by_prompt[name]
        ]
        _, against_best, against_plain = ratios(drawn, adaptive, plain)
        found.append((against_best, against_plain))
    return [_middle([pair[i] for pair in found]) for i in (0, 1)]


def _middle(values: list[float]) -> tuple[float, float]:
    values.sort()
    return values[len(values) // 20], values[-1 - len(values) // 20]


def told(result: Result) -> None:
    plan = result.plan
    plain = next(arm.name for arm in plan.arms if not arm.asks_for_speculation)
    adaptive = next(arm.name for arm in plan.arms if arm.verify_mode == "adaptive")
    totals = seconds_by_arm(result.samples)
    for arm in sorted(totals, key=lambda arm: totals[arm]):
        print(f"{arm:<28} {totals[plain] / totals[arm]:.3f} of plain")
    samples = [sample for sample in result.samples if sample.arm != CONTROL]
    best, against_best, against_plain = ratios(samples, adaptive, plain)
    (low_b, high_b), (low_p, high_p) = spread(samples, adaptive, plain)
    print(f"adaptive over the best fixed ({best}): {against_best:.3f} ({low_b:.3f} to {high_b:.3f})")
    print(f"adaptive over plain: {against_plain:.3f} ({low_p:.3f} to {high_p:.3f})")
    widths: dict[int, int] = defaultdict(int)
    for sample in result.samples:
        if sample.arm == adaptive:
            for width, count in enumerate(sample.cycles_by_width, 1):
                widths[width] += count
    print("adaptive, cycles by width:", dict(sorted(widths.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description="Adaptive block sizes against every fixed one.")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--block-sizes", default="2,3,4,5,8")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--per-kind", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pair = load(args.model, args.draft)
    if args.tune:
        tune(pair, depths=(256,), seconds=args.tune, report=lambda stage, share: None)
    sizes = tuple(int(size) for size in args.block_sizes.split(","))
    fixed = make_plan(
        own(args.kinds.split(","), args.per_kind), block_sizes=sizes, max_tokens=args.tokens, control=True
    )
    plan = make_plan(
        own(args.kinds.split(","), args.per_kind),
        block_sizes=(None,),
        verify_modes=("adaptive",),
        max_tokens=args.tokens,
        rounds=args.rounds,
    )
    arms = [*fixed.arms, *(arm for arm in plan.arms if arm.verify_mode == "adaptive")]
    plan = type(plan)(**{**vars(plan), "arms": arms})
    result = run(plan, {"pair": LocalPair(pair)}, progress=_show)
    if args.json:
        args.json.write_text(json.dumps(as_dict(result)), encoding="utf-8")
    told(result)


def _show(progress: Progress) -> None:
    print(f"\r{progress.done} of {progress.total}", end="\n" if progress.done == progress.total else "", flush=True)


if __name__ == "__main__":
    main()
