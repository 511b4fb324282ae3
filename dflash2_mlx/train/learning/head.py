"""Columns of the target's head: the part of the vocabulary that a step's loss sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from ...errors import TargetError
from ...target.adapter import Target

ABSENT = -1


@dataclass(frozen=True)
class Columns:
    """Part of the vocabulary: `ids` (C,), the head's `weight` (C, H) and `bias` (C,) for them.

    `place` (V,) is the column of each token, ABSENT where it has none; `correction` (C,) is added to logits in the
    normaliser, where a drawn column stands for several.
    """

    ids: mx.array
    weight: mx.array
    bias: mx.array | None
    place: mx.array
    correction: mx.array

    def logits(self, hidden: mx.array) -> mx.array:
        """Raw logits (N, C) of hidden rows (N, H)."""
        out = hidden @ self.weight.astype(hidden.dtype).T
        return out if self.bias is None else out + self.bias


def choose_ids(
    order: NDArray[np.int64],
    wanted: NDArray[np.int32],
    frequent: int,
    sampled: int,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Column ids and corrections: the first `frequent` tokens of `order` (V,), all `wanted` ones, and others drawn.

    The drawn ones stand for all that are left out: log(left / drawn) each. The count is frequent + sampled, so that
    shapes stay, unless the wanted ones are more. `frequent` 0 is the whole vocabulary.
    """
    size = len(order)
    if frequent <= 0 or frequent + sampled >= size:
        return np.arange(size, dtype=np.int32), np.zeros(size, np.float32)
    is_in = np.zeros(size, np.bool_)
    is_in[order[:frequent]] = True
    is_in[wanted] = True
    left = np.flatnonzero(~is_in)
    drawn = generator.choice(left, max(0, frequent + sampled - int(is_in.sum())), replace=False)
    ids = np.concatenate([np.flatnonzero(is_in), drawn]).astype(np.int32)
    correction = np.zeros(len(ids), np.float32)
    if len(drawn):
        correction[-len(drawn) :] = np.log(len(left) / len(drawn))
    return ids, correction


def head_columns(target: Target, ids: NDArray[np.int32], correction: NDArray[np.float32], dtype: mx.Dtype) -> Columns:
    """The head's rows for those tokens, unpacked. Raises TargetError for a head that is no matrix."""
    place = np.full(target.vocab_size, ABSENT, np.int32)
    place[ids] = np.arange(len(ids), dtype=np.int32)
    weight, bias = _matrix(target.head_module, mx.array(ids))
    columns = Columns(mx.array(ids), weight.astype(dtype), bias, mx.array(place), mx.array(correction))
    mx.eval(columns.ids, columns.weight, columns.place, columns.correction)
    return columns


def _matrix(head: nn.Module, ids: mx.array) -> tuple[mx.array, mx.array | None]:
    parameters: dict[str, Any] = dict(head.items())
    if "weight" not in parameters:
        raise TargetError(f"the target's head {type(head).__name__} has no weight to take columns of: use --frequent 0")
    weight, bias = parameters["weight"][ids], parameters.get("bias")
    if "scales" in parameters:
        biases = parameters.get("biases")
        weight = mx.dequantize(
            weight,
            parameters["scales"][ids],
            None if biases is None else biases[ids],
            group_size=head.group_size,
            bits=head.bits,
            mode=getattr(head, "mode", "affine"),
        )
    return weight, None if bias is None else bias[ids]
