"""One kept prefix as a safetensors file: tokens, a tree of arrays and numbers, and what it belongs to.

The arrays are named by number; the tree that holds them, the token ids and a checksum stand in the metadata, so that an
index is built from headers alone.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

VERSION = "2"
SUFFIX = ".safetensors"
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors format


class Damaged(ValueError):
    """A file that cannot be used, and why."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself: token ids, positions of its marks, bytes on disk."""

    fingerprint: str
    tokens: tuple[int, ...]
    marks: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Packed:
    """A prefix on its way to a file. The arrays are evaluated and contiguous: another thread may write them."""

    tokens: tuple[int, ...]
    marks: tuple[int, ...]
    tree: Any
    arrays: list[mx.array]

    @property
    def nbytes(self) -> int:
        """Of the file, but for its header."""
        return sum(array.nbytes for array in self.arrays)


def pack(tokens: Sequence[int], marks: Sequence[int], tree: Any) -> Packed:
    """On the thread that made the arrays."""
    arrays: list[mx.array] = []
    described = _describe(tree, arrays)
    arrays = [mx.contiguous(array) for array in arrays]
    mx.eval(arrays)
    return Packed(tuple(tokens), tuple(marks), described, arrays)


def save(path: Path, packed: Packed, fingerprint: str) -> int:
    """Write under another name, then rename: bytes on disk. Any thread; raises OSError or RuntimeError."""
    metadata = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "tokens": json.dumps(packed.tokens),
        "marks": json.dumps(packed.marks),
        "tree": json.dumps(packed.tree),
    }
    metadata["checksum"] = _checksum(metadata, packed.arrays)
    unfinished = path.with_name(f"{path.stem}.{os.getpid()}.part{SUFFIX}")
    try:
        mx.save_safetensors(str(unfinished), dict(zip(_names(packed.arrays), packed.arrays, strict=True)), metadata)
        size = unfinished.stat().st_size
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return size


def read_header(path: Path) -> Header:
    """From the first bytes of a file. Raises Damaged, also for a file that is shorter than it says, or OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(size, _LONGEST_HEADER):
            raise Damaged("it has no header")
        text = file.read(length)
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__")
        if metadata["version"] != VERSION:
            raise Damaged(f"its version is {metadata['version']}, not {VERSION}")
        tokens, marks = tuple(json.loads(metadata["tokens"])), tuple(json.loads(metadata["marks"]))
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        fingerprint = str(metadata["fingerprint"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"its header is wrong ({error!r})") from None
    if 8 + length + end != size:
        raise Damaged(f"it has {size} bytes, not {8 + length + end}")
    return Header(fingerprint, tokens, marks, size)


def load(path: Path) -> Any:
    """The tree of a file, its arrays evaluated. Raises Damaged for any fault of the content, or OSError."""
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        named, metadata = loaded
        arrays = [named[name] for name in _names(named)]
        mx.eval(arrays)
        if _checksum(metadata, arrays) != metadata["checksum"]:
            raise Damaged("its checksum is wrong")
        return _rebuild(json.loads(metadata["tree"]), arrays)
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"it cannot be read ({error})") from None


def _names(arrays: Any) -> list[str]:
    return [f"{i:06d}" for i in range(len(arrays))]


def _checksum(metadata: Mapping[str, str], arrays: Sequence[mx.array]) -> str:
    """Of what stands beside the arrays, their types, shapes and bytes; 2 GB/s (2026-11-30, one x86 core)."""
    said = [metadata[name] for name in ("version", "fingerprint", "tokens", "marks", "tree")]
    value = zlib.crc32(json.dumps([said, [(str(a.dtype), a.shape) for a in arrays]]).encode())
    for array in arrays:
        content: Any = array  # it has the buffer protocol, which its stubs do not say
        value = zlib.crc32(memoryview(content), value)
    return str(value)


def _describe(tree: Any, arrays: list[mx.array]) -> Any:
    """JSON for a tree; its arrays are appended to `arrays` and named by their number."""
    if isinstance(tree, mx.array):
        arrays.append(tree)
        return {"array": len(arrays) - 1}
    if isinstance(tree, tuple):
        return {"tuple": [_describe(item, arrays) for item in tree]}
    if isinstance(tree, list):
        return [_describe(item, arrays) for item in tree]
    if isinstance(tree, dict):
        return {"dict": {key: _describe(value, arrays) for key, value in tree.items()}}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"a {type(tree).__name__} in a cache's state cannot be written")


def _rebuild(described: Any, arrays: Sequence[mx.array]) -> Any:
    if isinstance(described, list):
        return [_rebuild(item, arrays) for item in described]
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "array":
        return arrays[content]
    if kind == "tuple":
        return tuple(_rebuild(item, arrays) for item in content)
    return {key: _rebuild(value, arrays) for key, value in content.items()}
