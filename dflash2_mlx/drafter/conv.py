"""The grouped dynamic causal convolution: a static kernel by channel plus a delta by group, from the input itself."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

SIDES = 2  # before the sublayer (`prepare`) and after it (`finish`)


class GroupedDynamicCausalConv(nn.Module):
    """Filters a sublayer's input and output along the block's rows; rows before the anchor count as zero.

    out[i, c] = sum over t of (base[side, t, c] + delta[i, side, t, c // group]) * x[i - t, c], where the delta of
    both sides comes from the sublayer's input. Nothing outlives the block.
    """

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.group_size = group_size
        self.base_kernel = mx.zeros((SIDES, kernel_size, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, SIDES * kernel_size * (hidden_size // group_size), bias=False)

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Filter the input `x` (…, B, H); also give the kernels (…, B, 2K, H) of both sides, for `finish`."""
        filters = SIDES * self.kernel_size
        groups = x.shape[-1] // self.group_size
        delta = self.kernel_projection(x).reshape(*x.shape[:-1], filters, groups, 1)
        kernels = delta + self.base_kernel.reshape(filters, groups, self.group_size)
        kernels = kernels.reshape(*x.shape[:-1], filters, -1)
        return self._filter(x, kernels[..., : self.kernel_size, :]), kernels

    def finish(self, x: mx.array, kernels: mx.array) -> mx.array:
        """Filter the output `x` (…, B, H) with the kernels from `prepare`."""
        return self._filter(x, kernels[..., self.kernel_size :, :])

    def _filter(self, x: mx.array, kernel: mx.array) -> mx.array:
        return (kernel * _shifted(x, self.kernel_size)).sum(axis=-2)


def _shifted(x: mx.array, taps: int) -> mx.array:
    """Row i - t of `x` (…, B, H) for each row i and tap t, zero before the first: (…, B, K, H), one view."""
    *lead, rows, width = x.shape
    padded = mx.pad(x, [(0, 0)] * len(lead) + [(taps - 1, 0), (0, 0)])
    strides = [width, -width, 1]
    step = (rows + taps - 1) * width
    for size in reversed(lead):
        strides.insert(0, step)
        step *= size
    return mx.as_strided(padded, [*lead, rows, taps, width], strides, (taps - 1) * width)
