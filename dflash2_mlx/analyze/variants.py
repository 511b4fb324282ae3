"""Drafters with a part taken out, beside the served one: they share its weights and leave it as it is."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import mlx.core as mx
from mlx import nn

from ..drafter.conv import SIDES, GroupedDynamicCausalConv
from ..drafter.model import DecoderLayer
from ..drafter.propose import Drafter

Change = Callable[[GroupedDynamicCausalConv], GroupedDynamicCausalConv]


class NoDelta(nn.Module):
    """Stands for a kernel projection whose output is zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def __call__(self, x: mx.array) -> mx.array:
        return mx.zeros((*x.shape[:-1], self.width), x.dtype)


def static_convolution(conv: GroupedDynamicCausalConv) -> GroupedDynamicCausalConv:
    """With its base kernel alone: what it does to a row no longer depends on the row."""
    twin = copy(conv)
    groups = conv.base_kernel.shape[-1] // conv.group_size
    twin.kernel_projection = NoDelta(SIDES * conv.kernel_size * groups)  # type: ignore[assignment]
    return twin


def no_convolution(conv: GroupedDynamicCausalConv) -> GroupedDynamicCausalConv:
    """That gives back each row as it is."""
    twin = static_convolution(conv)
    own = mx.arange(conv.kernel_size)[:, None] == 0
    twin.base_kernel = mx.broadcast_to(own, conv.base_kernel.shape).astype(conv.base_kernel.dtype)
    return twin


def with_convolutions(drafter: Drafter, change: Change) -> Drafter:
    """A DFlash 2 drafter with every convolution changed. Contexts of the served one serve it too."""

    def changed(layer: DecoderLayer) -> DecoderLayer:
        twin = copy(layer)
        twin.attention_conv, twin.mlp_conv = change(layer.attention_conv), change(layer.mlp_conv)
        return twin

    return with_layers(drafter, changed)


def with_layers(drafter: Drafter, change: Callable[[DecoderLayer], DecoderLayer]) -> Drafter:
    """A drafter of the same parts with other layers; `change` gives a new layer and leaves the one it gets."""
    # A copy, not a new Drafter: that would join the weights once more and rebind the served modules' own.
    twin = copy(drafter)
    twin.model = copy(drafter.model)
    twin.model.layers = [change(layer) for layer in drafter.model.layers]
    return twin
