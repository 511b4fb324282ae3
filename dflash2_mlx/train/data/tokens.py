"""Token shards: conversations as ids, with a mask of those that the target wrote.

A shard is one safetensors file of some conversations laid end to end. It is written whole or not at all, so the shards
in a folder are what is done.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError

SHARD = 64  # conversations of one
SHARD_FILES = "tokens-*.safetensors"
_KEYS = {"tokens", "mask", "lengths", "temperatures"}


@dataclass(frozen=True)
class Conversation:
    """Ids (n,), int32, and for each whether the target itself wrote it (n,), bool; the temperature it wrote at."""

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    temperature: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)


def shard_path(folder: Path, number: int) -> Path:
    """Where the shard of that number lies."""
    return folder / f"tokens-{number:05d}.safetensors"


def write_shard(path: Path, conversations: Sequence[Conversation]) -> None:
    """Write the conversations, in their order."""
    arrays = {
        "tokens": mx.array(np.concatenate([c.tokens for c in conversations]).astype(np.int32)),
        "mask": mx.array(np.concatenate([c.mask for c in conversations]).astype(np.uint8)),
        "lengths": mx.array([len(c) for c in conversations], dtype=mx.int32),
        "temperatures": mx.array([c.temperature for c in conversations], dtype=mx.float32),
    }
    write_arrays(path, arrays)


def read_shard(path: Path) -> list[Conversation]:
    """The conversations of a shard. Raises CheckpointError for a file that is damaged or no shard."""
    try:
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        if set(arrays) != _KEYS:
            raise ValueError(f"it holds {sorted(arrays)}")
        parts = {name: np.array(array) for name, array in arrays.items()}
        ends = np.cumsum(parts["lengths"])
        if len(ends) == 0 or not len(parts["tokens"]) == len(parts["mask"]) == ends[-1]:
            raise ValueError("its lengths do not fit its tokens")
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(
            f"{path} is no token shard ({error}): put it back, or prepare the data anew in another --out"
        ) from None
    cut = zip(np.split(parts["tokens"], ends[:-1]), np.split(parts["mask"], ends[:-1]), strict=True)
    return [
        Conversation(tokens, mask.astype(np.bool_), float(temperature))
        for (tokens, mask), temperature in zip(cut, parts["temperatures"], strict=True)
    ]


def write_arrays(path: Path, arrays: dict[str, mx.array], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, whole or not at all. Raises CheckpointError where it cannot be written (a full disk)."""
    unfinished = path.with_name(f".{path.stem}.unfinished.safetensors")
    try:
        mx.save_safetensors(str(unfinished), arrays, metadata=metadata or {})
        _to_disk(unfinished)
        os.replace(unfinished, path)
    except (RuntimeError, OSError) as error:
        unfinished.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written ({error}): make room; what is done so far is kept") from None


def _to_disk(path: Path) -> None:
    """Until then a power failure could leave the new name with half of the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
