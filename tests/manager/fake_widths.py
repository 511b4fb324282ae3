"""What a width controller would know and do: figures that move with each tick, and an exactness report."""

from __future__ import annotations

import random

from dflash2_mlx.decode.exactness_report import ExactnessReport, WidthExactness
from dflash2_mlx.decode.width_figures import WidthFigures

_ACCEPTANCE = {"all": 0.84, "greedy": 0.87, "sampled": 0.78}  # of a draft whose predecessors stand
_DEPTHS = (0, 1024, 8192)


class Widths:
    """The controller of one pair: its choice goes between wide blocks and plain steps as the acceptance moves."""

    def __init__(self, block_size: int, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._block_size = block_size
        self._cycles = [0] * block_size
        self._width, self._switches, self._probes, self._depth = block_size, 0, 0, 0
        self._stands = 0.84

    def tick(self) -> None:
        """One second, in which it may choose another width."""
        self._stands = min(0.95, max(0.3, self._stands + self._random.uniform(-0.08, 0.08)))
        self._depth = (self._depth + 37) % 12_000
        rates = self._rates()
        best = max(range(self._block_size), key=lambda i: rates[i]) + 1
        self._switches += best != self._width
        self._width = best
        self._cycles[best - 1] += 24
        self._cycles[self._random.randrange(self._block_size)] += 1
        self._probes += 1

    def figures(self) -> WidthFigures:
        rates = self._rates()
        name = "plain decoding" if self._width == 1 else f"block {self._width}"
        return WidthFigures(
            block_size=self._block_size,
            width=self._width,
            reason=f"{name}: {rates[self._width - 1]:.1f} tokens/s expected, {rates[0]:.1f} by plain decoding",
            depth=self._depth,
            rates=tuple(rates),
            costs={depth: tuple(self._cost(w, depth) for w in range(1, self._block_size + 1)) for depth in _DEPTHS},
            acceptance={
                kind: tuple((stands * self._stands / 0.84) ** (i + 1) for i in range(self._block_size - 1))
                for kind, stands in _ACCEPTANCE.items()
            },
            cycles_by_width=tuple(self._cycles),
            switches=self._switches,
            probes=self._probes,
            source="cycles",
        )

    def _rates(self) -> list[float]:
        tokens = [sum(self._stands**i for i in range(width)) for width in range(1, self._block_size + 1)]
        return [count / self._cost(width, self._depth) for width, count in enumerate(tokens, 1)]

    def _cost(self, width: int, depth: int) -> float:
        """Seconds: a step, drafting, and a cliff at 5 rows."""
        step = 0.033 * (1 + depth / 60_000)
        return step if width == 1 else step * (1.12 + 0.03 * width + (0.5 if width > 5 else 0.0))


def exactness(block_size: int) -> ExactnessReport:
    """A report as a load makes it: within rounding, with a flip at a near-tie."""
    widths = tuple(
        WidthExactness(width=width, verdict="rounding", rows=2 * width + 2, gap=0.011 * width, share=0.0006 * width,
                       flips=int(width == block_size), margin=0.004 if width == block_size else None, rolled_back=False)
        for width in range(2, block_size + 1)
    )  # fmt: skip
    return ExactnessReport("bfloat16", widths)
