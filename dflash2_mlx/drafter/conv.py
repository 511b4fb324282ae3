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
        groups = hidden_size // group_size
        self.taps = kernel_size
        self.kernel_shape = (SIDES, kernel_size, groups, group_size)
        self.base_kernel = mx.zeros((SIDES, kernel_size, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, SIDES * kernel_size * groups, bias=False)

    def prepare(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Filter the input `x` (1, B, H); also give the kernel (1, B, K, G, g) that `finish` needs."""
        sides, taps, groups, _ = self.kernel_shape
        delta = self.kernel_projection(x).reshape(*x.shape[:-1], sides, taps, groups, 1)
        kernel = delta + self.base_kernel.reshape(self.kernel_shape)
        before, after = kernel[:, :, 0], kernel[:, :, 1]
        return self._filter(x, before), after

    def finish(self, x: mx.array, kernel: mx.array) -> mx.array:
        """Filter the output `x` (1, B, H) with the kernel from `prepare`."""
        return self._filter(x, kernel)

    def _filter(self, x: mx.array, kernel: mx.array) -> mx.array:
        rows = x.shape[1]
        grouped = x.reshape(*x.shape[:-1], *self.kernel_shape[2:])  # (1, B, G, g)
        padded = mx.pad(grouped, ((0, 0), (self.taps - 1, 0), (0, 0), (0, 0)))
        out = kernel[:, :, 0] * grouped
        for t in range(1, self.taps):
            start = self.taps - 1 - t
            out = out + kernel[:, :, t] * padded[:, start : start + rows]
        return out.reshape(x.shape)
