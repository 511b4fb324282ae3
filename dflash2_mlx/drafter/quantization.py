"""Quantising a drafter when it is loaded: attention, MLP and `fc`; everything else keeps its precision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from ..errors import CheckpointError, RequestError
from .model import DraftModel

_SPEC = re.compile(r"w(\d+)(?:a(\d+))?(?::gs(\d+))?")
WEIGHT_BITS = (2, 4, 8)
GROUP_SIZES = (32, 64, 128)
_DTYPES = {16: mx.bfloat16, 32: mx.float32}


@dataclass(frozen=True)
class QuantSpec:
    """`w(2|4|8)[a(16|32)][:gs(32|64|128)]`: weight bits, compute dtype and group size."""

    weight_bits: int = 4
    activation_bits: int = 16
    group_size: int = 64

    @property
    def dtype(self) -> mx.Dtype:
        """a16 is bfloat16 and a32 float32."""
        return _DTYPES[self.activation_bits]

    def __str__(self) -> str:
        return f"w{self.weight_bits}a{self.activation_bits}:gs{self.group_size}"


def parse_spec(text: str | None) -> QuantSpec | None:
    """Read a spec such as `w4a16:gs64`; None, "off" and "none" mean no quantisation.

    Raises RequestError (param `quantize`) that names the part at fault.
    """
    if text is None or text in ("off", "none"):
        return None
    match = _SPEC.fullmatch(text)
    if match is None:
        raise _refusal(
            f"{text!r} is no quantisation: write w(2|4|8)[a(16|32)][:gs(32|64|128)], such as w4a16:gs64, or off"
        )
    weight, activation, group = (int(part) if part else None for part in match.groups())
    spec = QuantSpec(weight or 0, activation or 16, group or 64)
    if spec.weight_bits not in WEIGHT_BITS:
        raise _refusal(f"weight bits {spec.weight_bits} in {text!r}: use one of {WEIGHT_BITS}")
    if spec.activation_bits not in _DTYPES:
        raise _refusal(f"activation bits {spec.activation_bits} in {text!r}: use 16 (bfloat16) or 32 (float32)")
    if spec.group_size not in GROUP_SIZES:
        raise _refusal(f"group size {spec.group_size} in {text!r}: use one of {GROUP_SIZES}")
    return spec


def compute_dtype(name: str | mx.Dtype | None) -> mx.Dtype | None:
    """The dtype of that name; float16 is refused, since a drafter's residual stream passes its largest number."""
    dtype: Any = getattr(mx, name, name) if isinstance(name, str) else name
    if dtype is None:
        return None
    if dtype == mx.float16:
        raise _refusal(
            "float16 for the drafter: its residual stream peaks near 114,000 and float16 ends at 65,504, so that "
            "nothing would be accepted; use bfloat16 or float32"
        )
    if dtype == mx.bfloat16:
        return mx.bfloat16
    if dtype == mx.float32:
        return mx.float32
    raise _refusal(f"dtype {name!r} for the drafter: use bfloat16 or float32")


def quantizable(path: str, module: nn.Module) -> bool:
    """Whether the module at `path` is one that quantisation at load packs."""
    inside = path == "fc" or ".self_attn." in path or ".mlp." in path
    return inside and isinstance(module, nn.Linear | nn.QuantizedLinear)


def quantize(model: DraftModel, spec: QuantSpec) -> None:
    """Pack the model's Linear modules in place; those that the checkpoint has packed already must agree."""
    for path, module in _modules(model):
        if not quantizable(path, module):
            continue
        if isinstance(module, nn.QuantizedLinear):
            if (module.bits, module.group_size) != (spec.weight_bits, spec.group_size):
                raise CheckpointError(
                    f"{path} is packed already, at w{module.bits}:gs{module.group_size}, not at {spec}: "
                    "turn draft quantisation off, or use the bfloat16 checkpoint"
                )
        elif module.weight.shape[-1] % spec.group_size:
            width = module.weight.shape[-1]
            fitting = [size for size in GROUP_SIZES if width % size == 0]
            raise CheckpointError(
                f"group size {spec.group_size} does not divide {path}'s {width}: use one of {fitting}"
            )
    nn.quantize(
        model,
        group_size=spec.group_size,
        bits=spec.weight_bits,
        class_predicate=lambda path, module: isinstance(module, nn.Linear) and quantizable(path, module),
    )


def describe(model: DraftModel) -> str:
    """The packing in force, such as `w4a16:gs64`; `off` without any, `mixed` where modules differ."""
    activation = 32 if model.norm.weight.dtype == mx.float32 else 16
    found = {
        f"w{m.bits}a{activation}:gs{m.group_size}" if isinstance(m, nn.QuantizedLinear) else "off"
        for path, m in _modules(model)
        if quantizable(path, m)
    }
    return found.pop() if len(found) == 1 else "mixed"


def _modules(model: DraftModel) -> list[tuple[str, nn.Module]]:
    leaves = tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module)
    return list(leaves)  # type: ignore[arg-type]


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="quantize")
