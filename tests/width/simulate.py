"""A pair in numbers: what cycles cost, and which drafts stand; no model runs. For the width controller's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dflash2_mlx.decode.acceptance import committed
from dflash2_mlx.decode.adaptive import AdaptiveWidth
from dflash2_mlx.decode.width import WidthController

# Seconds of a cycle of that width after that many tokens of context.
Cost = Callable[[int, int], float]

# What a change between plain steps and cycles costs in plain steps: the overlap of two steps.
CROSSING = 0.2
TOKENS = 400


@dataclass(frozen=True)
class Content:
    """One request: how long its prompt is, and the conditional acceptance by position of each stretch of its answer."""

    stretches: Sequence[Sequence[float]]
    prompt: int = 200
    tokens: int = TOKENS


@dataclass
class Outcome:
    """Seconds of the controller, of plain decoding, and of each fixed width over the same requests."""

    adaptive: float = 0.0
    fixed: list[float] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)

    @property
    def best(self) -> int:
        return min(range(len(self.fixed)), key=lambda i: self.fixed[i]) + 1

    @property
    def against_best(self) -> float:
        """Speed of the controller over that of the best fixed width in hindsight."""
        return self.fixed[self.best - 1] / self.adaptive

    @property
    def against_plain(self) -> float:
        return self.fixed[0] / self.adaptive


def simulate(
    cost: Cost, requests: Sequence[Content], controller: WidthController, *, noise: float = 0.05, seed: int = 0
) -> Outcome:
    """Run the requests one after another; the fixed widths by expectation, without noise."""
    rng = random.Random(seed)
    outcome = Outcome(fixed=[0.0] * controller.block_size)
    for content in requests:
        for width in range(1, controller.block_size + 1):
            outcome.fixed[width - 1] += _expected(cost, content, width)
        outcome.adaptive += _run(cost, content, controller, outcome.widths, rng, noise)
    return outcome


def _run(
    cost: Cost, content: Content, controller: WidthController, widths: dict[int, int], rng: random.Random, noise: float
) -> float:
    chooser = AdaptiveWidth(controller, "greedy", controller.block_size)
    done, seconds, before = 1, 0.0, 0
    while done < content.tokens:
        depth = content.prompt + done
        rates = _rates(content, done)
        width = chooser.choose(depth)
        widths[width] = widths.get(width, 0) + 1
        accepted = _accepted(rates[: width - 1], rng)
        took = cost(width, depth) * rng.lognormvariate(0.0, noise)
        crossed = (width == 1) != (before == 1)
        seconds += took + (CROSSING * cost(1, depth) if crossed and before else 0.0)
        chooser.cycle_done(width, accepted, depth, None if crossed else took)
        done += accepted + 1
        before = width
    chooser.end()
    return seconds * content.tokens / done


def _rates(content: Content, done: int) -> Sequence[float]:
    stretch = min(len(content.stretches) - 1, done * len(content.stretches) // content.tokens)
    return content.stretches[stretch]


def _accepted(rates: Sequence[float], rng: random.Random) -> int:
    count = 0
    for rate in rates:
        if rng.random() >= rate:
            break
        count += 1
    return count


def _expected(cost: Cost, content: Content, width: int) -> float:
    done, seconds = 1.0, 0.0
    while done < content.tokens:
        seconds += cost(width, content.prompt + int(done))
        done += committed(_rates(content, int(done)))[width - 1]
    return seconds * content.tokens / done
