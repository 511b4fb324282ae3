"""One step: the arrays of its micro batches, and the gradient of its loss over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map, tree_map_with_path
from numpy.typing import NDArray

from ...drafter.model import DraftModel
from ..lanes import Lanes
from ..recipe.values import Loss
from ..rows.hidden import Rows
from .anchors import Blocks
from .head import Columns
from .loss import BlockBatch, LossParts, block_loss
from .packed import padded_taps

Tree = Any

_LIKELY = 0.02  # of the target's law; about 660 columns beside the frequent ones for 16 conversations of the demo


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


def wanted_tokens(batch: BlockBatch) -> NDArray[np.int32]:
    """Tokens that need a column: the true ones of the rows that are learnt, and what the target finds likely there.

    A likely token that is only drawn now and then would be learnt as if it were likelier than the target has it: where
    it competes with the true one it is mostly not there.
    """
    learnt = np.array(batch.weights) > 0
    law = np.array(mx.softmax(batch.logits, axis=-1))
    likely = np.array(batch.ids)[(law > _LIKELY) & learnt[..., None]]
    return np.unique(np.concatenate([np.array(batch.truth)[:, :, 1:][learnt], likely])).astype(np.int32)


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
        model.update(tree_map_with_path(lambda name, w: _computed(name, w, dtype), parameters))
        return tuple(block_loss(model, target, batch, columns, recipe, checkpointing=checkpointing))

    differentiate = mx.value_and_grad(loss)
    total: Tree = None
    try:
        for first in range(0, len(batches), len(lanes)):
            wave = lanes.map(lambda batch: differentiate(weights, batch), batches[first : first + len(lanes)])
            mx.eval(wave)
            for one in wave:
                total = one if total is None else tree_map(mx.add, total, one)
            # Each gradient has as many numbers as the drafter: the sum takes its place, the next wave finds one alone.
            del wave, one
            mx.eval(total)
    finally:
        model.update(weights)
    values, gradient = total
    return LossParts(*values), gradient


def _computed(name: str, weight: mx.array, dtype: mx.Dtype) -> mx.array:
    """A weight as the forward uses it. A looked-up row's gradient is a sum in the table's dtype: bfloat16 is too short,
    a count of ones ends at 256 there.
    """
    return weight if "codebook" in name else weight.astype(dtype)
