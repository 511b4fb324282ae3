"""A drafter with some modules rounded to what a packing can say, tried along recorded texts, nothing written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx
from mlx import nn

from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target

from .measure import Acceptance, Recording, expected_tokens, replayed
from .packing import Packing, Plan, leaves

# Places in the recorded text at which packings are compared.
ANCHORS = 128


class Trials:
    """Tries plans on an unpacked model, which is left as it was. `dtype` is that of the weights that are packed."""

    def __init__(
        self,
        target: Target,
        model: DraftModel,
        recordings: Sequence[Recording],
        *,
        dtype: mx.Dtype,
        block_size: int | None = None,
        anchors: int = ANCHORS,
    ) -> None:
        self._target, self._model, self._recordings = target, model, recordings
        self._dtype, self._block_size, self._anchors = dtype, block_size, anchors

    def expected(self, plan: Plan) -> float:
        """Expected tokens per cycle, see `expected_tokens`."""
        with self._rounded(plan) as drafter:
            return expected_tokens(
                self._target, drafter, self._recordings, anchors=self._anchors, block_size=self._block_size
            )

    def acceptance(self, plan: Plan) -> Acceptance:
        """Greedy acceptance over all recordings."""
        with self._rounded(plan) as drafter:
            return replayed(self._target, drafter, self._recordings, block_size=self._block_size)

    @contextmanager
    def _rounded(self, plan: Plan) -> Iterator[Drafter]:
        modules = leaves(self._model)
        before = {path: modules[path].weight for path in plan}
        try:
            for path, packing in plan.items():
                modules[path].weight = _rounded_weight(modules[path], packing, self._dtype)
            yield Drafter(self._model)
        finally:
            for path, weight in before.items():
                modules[path].weight = weight


def _rounded_weight(module: nn.Module, packing: Packing, dtype: mx.Dtype) -> mx.array:
    bits, group_size = packing.bits, packing.group_size
    integers, scales, biases = mx.quantize(module.weight.astype(dtype), bits=bits, group_size=group_size)
    computed = module.weight.dtype  # of the products, as when the file is loaded
    return mx.dequantize(
        integers, scales.astype(computed), biases.astype(computed), bits=bits, group_size=group_size, dtype=computed
    )
