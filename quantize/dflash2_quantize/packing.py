"""Which modules of a drafter are packed, and how: from a spec, checked, and as the config tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.drafter.quantization import GROUP_SIZES, QuantSpec, quantizable
from dflash2_mlx.errors import CheckpointError

_NAMED = 4  # modules that a message names in full


@dataclass(frozen=True)
class Packing:
    """Bits of a weight, and how many of a row share one scale."""

    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"w{self.bits}:gs{self.group_size}"


# By module path. A module that is not in it stays as the source has it.
Plan = Mapping[str, Packing]


def leaves(model: DraftModel) -> dict[str, nn.Module]:
    """Every module with parameters of its own, by path."""
    found: Any = tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module)
    return dict(found)


def candidates(model: DraftModel) -> dict[str, nn.Module]:
    """The modules that quantisation packs: attention, MLP and `fc`, packed already or not."""
    return {path: module for path, module in leaves(model).items() if quantizable(path, module)}


def plan_for(model: DraftModel, spec: QuantSpec) -> Plan:
    """Every candidate at the spec's bits and group size, as at load.

    Raises CheckpointError for modules that are packed otherwise, or that the group size does not divide.
    """
    wanted = Packing(spec.weight_bits, spec.group_size)
    packed = {path: found for path, module in candidates(model).items() if (found := packing_of(module)) is not None}
    other = {path: found for path, found in packed.items() if found != wanted}
    if other:
        raise CheckpointError(
            f"the source is packed already, at {_kinds(other)}, not at {wanted} ({_listed(other)}): "
            "packing twice would add both errors; give the unpacked checkpoint (bfloat16 or float32)"
        )
    free = {path: module.weight.shape[-1] for path, module in candidates(model).items() if path not in packed}
    check_group_size(free, spec.group_size)
    return dict.fromkeys(free, wanted)


def check_group_size(widths: Mapping[str, int], group_size: int) -> None:
    """Raises CheckpointError that names every module whose row width the group size does not divide."""
    bad = {path: width for path, width in widths.items() if width % group_size}
    if not bad:
        return
    fitting = [size for size in GROUP_SIZES if not any(width % size for width in widths.values())]
    remedy = f"use a group size of {fitting}" if fitting else f"none of {GROUP_SIZES} divides all: it cannot be packed"
    named = ", ".join(f"{path} ({width})" for path, width in bad.items())
    raise CheckpointError(f"group size {group_size} does not divide the rows of {named}: {remedy}")


def packing_of(module: nn.Module) -> Packing | None:
    """How a module is packed; None when it is not."""
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return Packing(module.bits, module.group_size)
    return None


def pack(model: DraftModel, plan: Plan) -> dict[str, mx.array]:
    """Pack in place, lazily; the weights before, by path, not read either."""
    before = {path: module.weight for path, module in leaves(model).items() if path in plan}

    def packing(path: str, module: nn.Module) -> bool | dict[str, int]:
        chosen = plan.get(path)
        return {"bits": chosen.bits, "group_size": chosen.group_size} if chosen else False

    nn.quantize(model, class_predicate=packing)
    return before


def config_entry(model: DraftModel) -> dict[str, Any] | None:
    """The config's `quantization` as mlx-lm writes it: the commonest packing, and each module that has another."""
    found = {path: _parameters(module) for path, module in leaves(model).items() if packing_of(module)}
    if not found:
        return None
    common = Counter(tuple(entry.items()) for entry in found.values()).most_common(1)[0][0]
    return {**dict(common), **{path: entry for path, entry in found.items() if tuple(entry.items()) != common}}


def weight_bytes(elements: int, packing: Packing | None, itemsize: int) -> int:
    """The bytes of a weight of so many elements: the packed integers, and a scale and a bias for each group."""
    if packing is None:
        return elements * itemsize
    return elements * packing.bits // 8 + 2 * (elements // packing.group_size) * itemsize


def _parameters(module: nn.Module) -> dict[str, Any]:
    entry = {"group_size": module.group_size, "bits": module.bits}
    return entry if module.mode == "affine" else {**entry, "mode": module.mode}


def _kinds(packed: Mapping[str, Packing]) -> str:
    return " and ".join(sorted({str(packing) for packing in packed.values()}))


def _listed(packed: Mapping[str, Packing]) -> str:
    names = list(packed)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
