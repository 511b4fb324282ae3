"""Chooses bits for each module by what they cost in tokens per cycle, measured, under a limit of size or acceptance.

Each module is tried alone at each width. Then, from nothing packed on, the step that loses least per byte saved is
taken, again and again; along that path of plans the first that is small enough, or the last that is good enough, is
the answer. Losses of modules do not quite add up: what is promised of a plan is measured with all of it in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.drafter.quantization import WEIGHT_BITS
from dflash2_mlx.errors import CheckpointError, RequestError

from .measure import Acceptance, Progress
from .packing import Packing, Plan, candidates, check_group_size, packing_of, weight_bytes
from .trials import Trials

# Bytes of a header's entry for one tensor, rounded up: a limit holds for the file.
_ENTRY = 256

# By module path and packing; None is unpacked.
Losses = Mapping[str, Mapping[Packing | None, float]]
Sizes = Mapping[str, Mapping[Packing | None, int]]


@dataclass(frozen=True)
class Limit:
    """One of the two: the most bytes of the weight files, or the least share of the unpacked tokens per cycle."""

    max_bytes: int | None = None
    min_share: float | None = None

    def __post_init__(self) -> None:
        if (self.max_bytes is None) == (self.min_share is None):
            raise RequestError("--search needs a limit: either --max-size or --min-acceptance", param="search")
        if self.min_share is not None and not 0 < self.min_share <= 1:
            raise RequestError(
                f"min-acceptance {self.min_share}: it is a share of the unpacked drafter's tokens per cycle, "
                "above 0 and up to 1, such as 0.98",
                param="min_acceptance",
            )


@dataclass(frozen=True)
class Found:
    """The chosen plan, its bytes, the loss of each module at each packing, and the acceptance before and with it."""

    plan: Plan
    bytes: int
    losses: Losses
    before: Acceptance
    after: Acceptance


def search(
    model: DraftModel, group_size: int, dtype: mx.Dtype, trials: Trials, limit: Limit, progress: Progress
) -> Found:
    """The plan for `model`, whose numbers are stored in `dtype`, by `trials` on its weights.

    Raises CheckpointError for a model that is packed already, or where `group_size` divides no module, and
    RequestError (param max_size) for a limit that no plan meets; both before anything is tried.
    """
    options = packings(model, group_size)
    sizes, rest = stored_sizes(model, options, dtype)
    if limit.max_bytes is not None:
        _check_size(limit.max_bytes, rest + sum(min(of.values()) for of in sizes.values()))
    losses = measured_losses(trials.expected, options, progress)
    plans = list(downhill(losses, sizes))
    before = trials.acceptance({})
    if limit.max_bytes is not None:
        most = limit.max_bytes
        plan = next(plan for plan in plans if rest + size_of(plan, sizes) <= most)
        after = trials.acceptance(plan)
    else:
        assert limit.min_share is not None
        least = limit.min_share * before.tokens_per_cycle
        plan, after = last_good(plans, trials.acceptance, least, before)
    return Found(plan, rest + size_of(plan, sizes), losses, before, after)


def packings(model: DraftModel, group_size: int) -> dict[str, list[Packing]]:
    """What may be tried for each module, the finest first; nothing where the group size does not divide its rows."""
    modules = candidates(model)
    packed = [path for path, module in modules.items() if packing_of(module)]
    if packed:
        raise CheckpointError(f"{packed[0]} is packed already: a search needs the unpacked checkpoint")
    widths = {path: module.weight.shape[-1] for path, module in modules.items()}
    if all(width % group_size for width in widths.values()):
        check_group_size(widths, group_size)
    choices = [Packing(bits, group_size) for bits in sorted(WEIGHT_BITS, reverse=True)]
    return {path: [] if width % group_size else choices for path, width in widths.items()}


def stored_sizes(
    model: DraftModel, options: Mapping[str, list[Packing]], dtype: mx.Dtype
) -> tuple[dict[str, dict[Packing | None, int]], int]:
    """Bytes of each module under each packing, and those of everything else, headers included."""
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    names = {f"{path}.weight": path for path in options}
    sizes: dict[str, dict[Packing | None, int]] = {}
    rest = _ENTRY * (len(parameters) + 2 * len(options) + 1)
    for name, array in parameters:
        if name not in names:
            rest += array.size * (dtype.size if mx.issubdtype(array.dtype, mx.floating) else array.itemsize)
            continue
        path = names[name]
        of: list[Packing | None] = [None, *options[path]]
        sizes[path] = {packing: weight_bytes(array.size, packing, dtype.size) for packing in of}
    return sizes, rest


def measured_losses(
    expected: Callable[[Plan], float], options: Mapping[str, list[Packing]], progress: Progress
) -> dict[str, dict[Packing | None, float]]:
    """Expected tokens per cycle lost by each module alone. Fewer bits never count as the lesser loss: that is noise."""
    whole = expected({})
    count = sum(map(len, options.values()))
    done = 0
    losses: dict[str, dict[Packing | None, float]] = {}
    for path, choices in options.items():
        losses[path] = {None: 0.0}
        worst = 0.0
        for packing in choices:
            worst = max(worst, whole - expected({path: packing}))
            losses[path][packing] = worst
            done += 1
            progress(done / count)
    return losses


def downhill(losses: Losses, sizes: Sizes) -> Iterator[Plan]:
    """Plans of falling size, from nothing packed on, by the least loss per byte saved."""
    chosen: dict[str, Packing | None] = dict.fromkeys(sizes)
    while True:
        yield {path: packing for path, packing in chosen.items() if packing is not None}
        steps = []
        for path, now in chosen.items():
            for packing, size in sizes[path].items():
                saved = sizes[path][now] - size
                if saved > 0:
                    lost = losses[path][packing] - losses[path][now]
                    steps.append((lost / saved, -saved, path, packing))
        if not steps:
            return
        _, _, path, packing = min(steps, key=lambda step: step[:3])
        chosen[path] = packing


def size_of(plan: Plan, sizes: Sizes) -> int:
    return sum(of[plan.get(path)] for path, of in sizes.items())


def last_good(
    plans: list[Plan], acceptance: Callable[[Plan], Acceptance], least: float, before: Acceptance
) -> tuple[Plan, Acceptance]:
    """The last of `plans` that keeps `least` tokens per cycle, by bisection; the first one, unpacked, always does."""
    good, result = 0, before
    bad = len(plans)
    while bad - good > 1:
        middle = (good + bad) // 2
        measured = acceptance(plans[middle])
        if measured.tokens_per_cycle >= least:
            good, result = middle, measured
        else:
            bad = middle
    return plans[good], result


def _check_size(most: int, least: int) -> None:
    if most < least:
        raise RequestError(
            f"max-size {most / 1e6:.2f} MB: with every module at the fewest bits it is {least / 1e6:.2f} MB; "
            "allow that much",
            param="max_size",
        )
