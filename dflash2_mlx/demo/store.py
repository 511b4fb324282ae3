"""A cache of folders that are whole or absent: built aside, sealed with check sums, renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "DFLASH2_CACHE"

_SEAL = "seal.json"
_SCRATCH = ".partial-"
# A conversion takes seconds: a scratch folder this old belongs to a process that was killed.
_ABANDONED_AFTER_S = 3600.0


def cache_folder() -> Path:
    """This package's folder in the user's cache; the environment variable DFLASH2_CACHE overrides it."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("dflash2-mlx"))


def is_complete(folder: Path) -> bool:
    """Whether every file that was sealed in `folder` is there with the bytes it was sealed with.

    Reads all of it (0.1 s for the demo target's 98 MB): a damaged weight file would only show as odd text.
    """
    try:
        sealed = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
        return bool(sealed) and all(_digest(folder / name) == digest for name, digest in sealed.items())
    except (OSError, ValueError, AttributeError):  # absent, cut short, or not a seal
        return False


def build(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make `folder` by calling `fill` with an empty scratch folder beside it, then rename.

    What stands at `folder` and is not complete is replaced. Several processes may do this at once:
    the first one to finish wins, and the others drop their own copy.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    scratch = _scratch_folder(folder)
    scratch.mkdir()  # not tempfile.mkdtemp, whose folders no other user can read
    try:
        fill(scratch)
        _seal(scratch)
        _move_into_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _move_into_place(scratch: Path, folder: Path) -> None:
    """Rename `scratch` to `folder`, unless another process has put a complete one there by now."""
    if is_complete(folder):
        return
    damaged = _scratch_folder(folder)
    try:
        if folder.exists():
            folder.rename(damaged)
        scratch.rename(folder)
    except OSError:
        if not is_complete(folder):  # not the other process's rename, then: a fault of the disk
            raise
    finally:
        shutil.rmtree(damaged, ignore_errors=True)


def _scratch_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_SCRATCH}{uuid.uuid4().hex}")


def _seal(folder: Path) -> None:
    digests = {file.name: _digest(file) for file in sorted(folder.iterdir())}
    (folder / _SEAL).write_text(json.dumps(digests, indent=2), encoding="utf-8")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_abandoned(folder: Path) -> None:
    for scratch in folder.parent.glob(f"{folder.name}{_SCRATCH}*"):
        try:
            abandoned = time.time() - scratch.stat().st_mtime > _ABANDONED_AFTER_S
        except OSError:  # its owner has just renamed it
            continue
        if abandoned:
            shutil.rmtree(scratch, ignore_errors=True)
