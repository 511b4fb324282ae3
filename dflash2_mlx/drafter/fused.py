"""Linear modules that read the same rows, joined into one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx import nn

Product = Callable[[mx.array], mx.array]


def join(linears: Sequence[nn.Module], *, share: bool) -> Product:
    """One product whose output is that of all `linears` (without bias) side by side.

    With `share` the modules' own parameters become views of the joined matrix, so that it takes no memory of its
    own. Modules that are packed differently stay apart, and their outputs are joined.
    """
    first = linears[0]
    packing = {(type(m), getattr(m, "bits", 0), getattr(m, "group_size", 0), getattr(m, "mode", "")) for m in linears}
    if len(packing) > 1 or type(first) not in (nn.Linear, nn.QuantizedLinear):
        return lambda x: mx.concatenate([linear(x) for linear in linears], axis=-1)
    names = [name for name in ("weight", "scales", "biases") if first.get(name) is not None]
    parts = {name: mx.concatenate([m[name] for m in linears]) for name in names}
    mx.eval(parts)
    if share:
        _share(linears, parts)
    if isinstance(first, nn.Linear):
        weight = parts["weight"].T
        return lambda x: x @ weight
    packed = {"group_size": first.group_size, "bits": first.bits, "mode": first.mode}
    scales, biases = parts["scales"], parts.get("biases")
    return lambda x: mx.quantized_matmul(x, parts["weight"], scales, biases, transpose=True, **packed)


def _share(linears: Sequence[nn.Module], parts: dict[str, mx.array]) -> None:
    row = 0
    for module in linears:
        end = row + module["weight"].shape[0]
        for name, joined in parts.items():
            module[name] = joined[row:end]
        row = end
