"""A safetensors file written tensor by tensor: 8 bytes with the header's length, the header in JSON, the bytes.

`mx.save_safetensors` takes all tensors of a file at once, and so needs them all in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

_DTYPES = {mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16", mx.uint32: "U32", mx.uint8: "U8"}
# The data begin at a multiple of this, so that a reader may map them.
_ALIGNMENT = 8


@dataclass(frozen=True)
class Layout:
    """What a tensor will be, told before it is computed."""

    dtype: mx.Dtype
    shape: tuple[int, ...]
    bytes: int


def layout_of(array: mx.array) -> Layout:
    return Layout(array.dtype, tuple(array.shape), array.nbytes)


def header(layouts: Mapping[str, Layout]) -> bytes:
    """The file's beginning, up to where the first tensor's bytes start."""
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, layout in layouts.items():
        end = offset + layout.bytes
        entries[name] = {"dtype": _DTYPES[layout.dtype], "shape": list(layout.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(file: Path, layouts: Mapping[str, Layout], arrays: Iterable[tuple[str, mx.array]]) -> None:
    """Write `arrays`, which come in the order of `layouts` and may be computed only when they are asked for.

    Raises ValueError, and OSError with what the disk says, where an array is not what its layout told.
    """
    with file.open("wb") as stream:
        stream.write(header(layouts))
        for (name, array), (expected, layout) in zip(arrays, layouts.items(), strict=True):
            if name != expected or layout_of(array) != layout:
                raise ValueError(f"{name} {array.dtype} {array.shape} where {expected} {layout} was announced")
            flat = mx.contiguous(array).reshape(-1).view(mx.uint8)
            mx.eval(flat)
            stream.write(memoryview(flat))  # type: ignore[arg-type]


def shards(layouts: Mapping[str, Layout], limit: int) -> list[dict[str, Layout]]:
    """The tensors in their order, cut into files of at most `limit` bytes (a larger tensor has a file of its own)."""
    out: list[dict[str, Layout]] = [{}]
    size = 0
    for name, layout in layouts.items():
        if out[-1] and size + layout.bytes > limit:
            out.append({})
            size = 0
        out[-1][name] = layout
        size += layout.bytes
    return out


def file_names(count: int) -> list[str]:
    """The names that loaders look for."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
