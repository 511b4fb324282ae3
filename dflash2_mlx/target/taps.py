"""Taps: the raw residual output of chosen target layers, kept while a forward asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn

from .instances import equip


class TapSink:
    """Where the tapped layers of one target leave their rows; it keeps nothing unless collecting."""

    def __init__(self) -> None:
        self._rows: dict[int, mx.array] | None = None

    def take(self, layer: int, out: Any) -> None:
        if self._rows is not None:
            # Some families return (rows, shared keys and values, …).
            self._rows[layer] = out[0] if isinstance(out, tuple) else out

    @contextmanager
    def collecting(self) -> Iterator[dict[int, mx.array]]:
        """Collect for the forward inside; gives the rows (1, n, H) by layer number."""
        rows: dict[int, mx.array] = {}
        self._rows = rows
        try:
            yield rows
        finally:
            self._rows = None


class Tapped:
    """Mixin of a decoder layer instance: also hands its output to a sink."""

    _tap_sink: TapSink
    _tap_layer: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = super().__call__(*args, **kwargs)  # type: ignore[misc]
        self._tap_sink.take(self._tap_layer, out)
        return out


def tap(layers: Sequence[nn.Module], ids: Sequence[int], sink: TapSink) -> None:
    """Tap the layers with those numbers, in place and by instance; tapping one again changes nothing."""
    for i in ids:
        equip(layers[i], Tapped, _tap_sink=sink, _tap_layer=i)
