"""Which checkpoint a folder holds, told without reading its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Files that decide what a checkpoint computes; of the small ones the content counts.
_WEIGHTS, _CONFIGS = "*.safetensors", "*.json"
_SMALL = 1 << 20  # bytes: a config, not a vocabulary


def checkpoint_identity(folder: Path, *how: object) -> str:
    """A digest of a checkpoint's configs and of its weight files' names, sizes and times, and of `how` it is loaded.

    Another digest is no proof of another checkpoint (a copy has other times); an equal one stands for the same.
    """
    digest = hashlib.sha256(repr(how).encode())
    for path in sorted([*folder.glob(_WEIGHTS), *folder.glob(_CONFIGS)]):
        facts = path.stat()
        digest.update(f"{path.name} {facts.st_size}".encode())
        if path.suffix == ".json":
            digest.update(path.read_bytes() if facts.st_size <= _SMALL else b"")
        else:
            digest.update(str(facts.st_mtime_ns).encode())
    return digest.hexdigest()
