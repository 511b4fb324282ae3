"""AdamW for a drafter, where what makes the convolutions' kernels has a rate and a clip of its own.

A block's masked rows are one and the same vector at first, so that a step of Adam on `kernel_projection` adds up over
all columns and moves the kernels of every row, which multiply all that a sublayer reads and writes.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_unflatten

from ..recipe.values import Loop

# Adam's second moment reaches back 20 steps at 0.95: runs here have hundreds of steps, not millions.
_BETAS = (0.9, 0.95)

# Two layers, warm, convolution alone, demo target, 8 conversations a step, learning rate 1e-3: cross-entropy over steps
# 46 to 60 was 8.23 at the whole rate with one clip for all, and with a clip of its own 7.43 at a tenth, 6.57 at a
# hundredth (MLX CPU on two cores of an AMD EPYC, 2026-11-30). A three-hundredth is as good: docs/log.md.
_KERNEL_RATE = 0.01


class DraftOptimizer(optim.MultiOptimizer):
    """AdamW with the recipe's decay on matrices; `set_rate` gives the rate of the next step."""

    def __init__(self, loop: Loop) -> None:
        def adamw(share: float, decay: float) -> optim.AdamW:
            return optim.AdamW(learning_rate=share * loop.learning_rate, betas=list(_BETAS), weight_decay=decay)

        kernels, factors = adamw(_KERNEL_RATE, loop.weight_decay), adamw(1.0, 0.0)
        super().__init__([kernels, factors, adamw(1.0, loop.weight_decay)], [makes_kernels, is_factor])

    def set_rate(self, rate: float) -> None:
        """The rate of everything but what makes kernels, which has a share of it."""
        kernels, *rest = self.optimizers
        kernels.learning_rate = _KERNEL_RATE * rate
        for one in rest:
            one.learning_rate = rate

    @staticmethod
    def clipped(gradient: Any, most: float) -> tuple[Any, mx.array]:
        """The gradient with a norm of at most `most`, the kernels' part on its own; and the norm of all that it had."""
        flat: list[tuple[str, mx.array]] = tree_flatten(gradient)  # type: ignore[assignment]
        parts = [
            [(name, one) for name, one in flat if makes_kernels(name, one) is kernels] for kernels in (True, False)
        ]
        shortened = [optim.clip_grad_norm(dict(part), most) for part in parts if part]
        whole = mx.sqrt(sum((norm * norm for _, norm in shortened), mx.array(0.0)))
        return tree_unflatten([pair for part, _ in shortened for pair in part.items()]), whole


def makes_kernels(name: str, weight: Any) -> bool:
    """Whether this weight makes the convolution's kernels by row (`kernel_projection`)."""
    del weight
    return "kernel_projection" in name.split(".")


def is_factor(name: str, weight: mx.array) -> bool:
    """Whether this weight multiplies channels (norms, the convolutions' `base_kernel`): near one, so nothing decays."""
    return weight.ndim == 1 or name.endswith("base_kernel")
