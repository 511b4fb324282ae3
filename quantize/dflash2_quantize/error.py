"""What packing does to a weight, in numbers."""

from __future__ import annotations

import math

import mlx.core as mx

# Numbers compared at a time, in float32: whole matrices would need several copies of the largest one.
_AT_ONCE = 1 << 22


def relative_error(
    weight: mx.array, integers: mx.array, scales: mx.array, biases: mx.array, *, bits: int, group_size: int
) -> float:
    """The root mean square of what packing changes, over that of `weight` (N, W); 0 for a weight of zeros.

    `integers`, `scales` and `biases` are as `mx.quantize` gives them.
    """
    error, size = 0.0, 0.0
    step = max(1, _AT_ONCE // weight.shape[1])
    for row in range(0, weight.shape[0], step):
        rows = slice(row, row + step)
        wanted = weight[rows].astype(mx.float32)
        packed = mx.dequantize(integers[rows], scales[rows], biases[rows], bits=bits, group_size=group_size)
        error += _squares(packed.astype(mx.float32) - wanted)
        size += _squares(wanted)
    return math.sqrt(error / size) if size else 0.0


def _squares(array: mx.array) -> float:
    rows = mx.square(array).sum(axis=1)  # millions of numbers in one float32 sum would lose the small ones
    return float(rows.sum().item())  # type: ignore[arg-type]
