"""Rolling a recurrent layer back without a copy of its forward.

A recurrent state cannot be trimmed. While a block is verified, the module that owns it records its input and the
outputs of its projections; when drafts were rejected, the state from before the block is put back and the module's own
forward runs on the accepted rows, its projections served from the record. What the state does not need of that forward
(output projection, gates) is never evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import BoundArguments, Signature, signature
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache

from ..errors import TargetError
from .instances import equip


@dataclass
class Record:
    """One call of a recurrent module on a block: its arguments and its projections' outputs by number."""

    call: BoundArguments
    inputs: str  # the name of the parameter with the rows (1, S, H)
    projections: dict[int, mx.array] = field(default_factory=dict)


class Recorder:
    """Shared by the recurrent modules of one target: records by cache object, while a block is verified."""

    def __init__(self) -> None:
        self.records: dict[int, Record] | None = None
        self.current: Record | None = None
        self.serving: int | None = None  # rows to serve from `current`; None: not replaying

    def replay(self, record: Record, rows: int) -> None:
        """Run the recorded module again on its first `rows` rows, from the state that its cache holds now."""
        call = record.call
        module, *_ = call.args
        arguments = {**call.arguments, record.inputs: call.arguments[record.inputs][:, :rows]}
        self.current, self.serving = record, rows
        try:
            module(**{name: value for name, value in arguments.items() if name != "self"})
        finally:
            self.current = self.serving = None


class Recording:
    """Mixin of a module that keeps its state in an ArraysCache, given to it as its argument `cache`."""

    _recorder: Recorder
    _signature: Signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if recorder.records is None or recorder.serving is not None:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        call = self._signature.bind(self, *args, **kwargs)
        cache = call.arguments.get("cache")
        if not isinstance(cache, ArraysCache):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        if call.arguments.get("mask") is not None:
            raise TargetError(f"{type(self).__name__} masks its rows: padded batches cannot be rolled back")
        inputs = list(self._signature.parameters)[1]
        recorder.current = recorder.records[id(cache)] = Record(call, inputs)
        try:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        finally:
            recorder.current = None


class Projecting:
    """Mixin of a linear child of a recording module: records its rows, or serves them instead of computing."""

    _recorder: Recorder
    _projection: int

    def __call__(self, x: mx.array) -> mx.array:
        record, rows = self._recorder.current, self._recorder.serving
        if record is None:
            out: mx.array = super().__call__(x)  # type: ignore[misc]
        elif rows is None:
            out = record.projections[self._projection] = super().__call__(x)  # type: ignore[misc]
        else:
            out = record.projections[self._projection][:, :rows]
        return out


def equip_recurrent(layer: nn.Module, recorder: Recorder) -> None:
    """Make the modules of `layer` that take a cache record; their linear children become projections."""
    for module in layer.children().values():
        if not isinstance(module, nn.Module) or isinstance(module, Recording):
            continue
        call = signature(type(module).__call__)
        if "cache" in call.parameters:
            equip(module, Recording, _recorder=recorder, _signature=call)
            for number, (_, child) in enumerate(tree_flatten(module.leaf_modules(), is_leaf=nn.Module.is_module)):
                if isinstance(child, nn.Linear | nn.QuantizedLinear):
                    equip(child, Projecting, _recorder=recorder, _projection=number)
