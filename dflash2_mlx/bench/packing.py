"""How a target is quantised, in the words of the model library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def packing_words(config: Mapping[str, Any]) -> str:
    """Such as "4-bit, group 64" or "mixed 4/8-bit, group 32", where modules have widths of their own; else "off"."""
    packing = config.get("quantization")
    if not isinstance(packing, Mapping) or "bits" not in packing:
        return "off"
    modules = [value for value in packing.values() if isinstance(value, Mapping)]
    bits = {value["bits"] for value in (packing, *modules) if isinstance(value.get("bits"), int)}
    width = f"mixed {'/'.join(map(str, sorted(bits)))}-bit" if len(bits) > 1 else f"{packing['bits']}-bit"
    mode, group = packing.get("mode"), packing.get("group_size")
    kind = "" if mode in ("affine", None) else f" {mode}"
    return f"{width}{kind}" + (f", group {group}" if group else "")
