"""One step: the arrays of its micro batches, and the gradient of its loss over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from numpy.typing import NDArray

from ..drafter.model import DraftModel
from .anchors import Blocks
from .head import Columns
from .lanes import Lanes
from .loss import BlockBatch, LossParts, block_loss
from .packed import padded_taps
from .recipe import Loss
from .rows import Rows

Tree = Any


def position_weights(blocks: Blocks, decay: float) -> NDArray[np.float32]:
    """The weight (S, A, B-1) of each drafted row: exp(-i / decay), nothing where it is not learnt."""
    by_row = np.exp(-np.arange(blocks.learnt.shape[-1]) / decay)
    return (blocks.learnt * by_row).astype(np.float32)


def make_batch(blocks: Blocks, rows: Sequence[Rows], weights: NDArray[np.float32]) -> BlockBatch:
    """The arrays of some conversations' blocks; `weights` are already shares of the whole step."""
    length = blocks.tokens.shape[1]
    reach = blocks.anchors[:, :, None] + np.arange(blocks.truth.shape[-1] - 1)  # where each row's law stands
    places = [mx.array(np.minimum(one, row.ids.shape[0] - 1)) for one, row in zip(reach, rows, strict=True)]
    return BlockBatch(
        taps=padded_taps([row.taps for row in rows], length, mx.bfloat16),
        anchors=mx.array(blocks.anchors),
        truth=mx.array(blocks.truth),
        weights=mx.array(weights),
        ids=mx.stack([row.ids[place] for row, place in zip(rows, places, strict=True)]),
        logits=mx.stack([row.logits[place] for row, place in zip(rows, places, strict=True)]),
    )


def gradients(
    model: DraftModel,
    target: Any,
    batches: Sequence[BlockBatch],
    columns: Columns,
    recipe: Loss,
    lanes: Lanes,
    *,
    dtype: mx.Dtype = mx.float32,
    checkpointing: bool = False,
) -> tuple[LossParts, Tree]:
    """The sums of the parts of the loss over the micro batches, and the gradient by parameter in float32, evaluated.

    The forward runs in `dtype`; the model's own float32 weights are as before afterwards.
    """
    weights = model.trainable_parameters()

    def loss(parameters: Tree, batch: BlockBatch) -> tuple[mx.array, ...]:
        model.update(tree_map(lambda w: w.astype(dtype), parameters))
        return tuple(block_loss(model, target, batch, columns, recipe, checkpointing=checkpointing))

    differentiate = mx.value_and_grad(loss)
    sums: LossParts | None = None
    total: Tree = None
    try:
        for first in range(0, len(batches), len(lanes)):
            wave = lanes.map(lambda batch: differentiate(weights, batch), batches[first : first + len(lanes)])
            mx.eval(wave)
            for values, gradient in wave:
                parts = LossParts(*values)
                sums = parts if sums is None else LossParts(*(a + b for a, b in zip(sums, parts, strict=True)))
                total = gradient if total is None else tree_map(lambda a, b: a + b, total, gradient)
            mx.eval(sums, total)
    finally:
        model.update(weights)
    assert sums is not None
    return sums, total
