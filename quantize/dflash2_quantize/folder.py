"""The output folder: refused where it would overwrite something, built aside, renamed when it is whole."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash2_mlx.drafter.config import is_drafter, read_config
from dflash2_mlx.errors import CheckpointError, RequestError

_SCRATCH = ".partial-"
# Writing takes minutes at most: a scratch folder this old belongs to a process that was killed.
_ABANDONED_AFTER_S = 3600.0
_SPARE = 1 << 20  # bytes for config, index and card


def check_output(out: Path, source: Path, *, force: bool) -> None:
    """Raises RequestError (param out) unless a checkpoint may be written to `out`.

    With `force`, a drafter that stands there may be replaced; a folder with anything else in it never is.
    """
    here, there = out.resolve(), source.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise _refusal(f"{out} is the source, in it or around it: write to another folder")
    if not out.exists():
        return
    if not out.is_dir():
        raise _refusal(f"{out} is a file: give a folder")
    if not any(out.iterdir()):
        return
    if not force:
        raise _refusal(f"{out} is not empty: give another folder, or --force to replace the drafter in it")
    if not _holds_a_drafter(out):
        raise _refusal(f"{out} holds something else than a drafter: --force does not replace that, empty it yourself")


def check_space(out: Path, needed: int) -> None:
    """Raises RequestError (param out) unless the disk of `out` has room for `needed` bytes."""
    place = next(parent for parent in (out, *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed + _SPARE:
        raise _refusal(f"{out}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free: make room there")


@contextmanager
def built_aside(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` that becomes `out` when the block ends well, and vanishes otherwise."""
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        scratch = _beside(out)
        scratch.mkdir()
        try:
            yield scratch
            _replace(out, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error}); nothing was changed there") from None


def _replace(out: Path, scratch: Path) -> None:
    if out.exists() and not any(out.iterdir()):
        # Filled, not replaced: it may be the folder that a shell is in. Without its config it is no model.
        for file in sorted(scratch.iterdir(), key=lambda file: file.name == "config.json"):
            file.rename(out / file.name)
        return
    former = _beside(out)
    if out.exists():
        out.rename(former)
    try:
        scratch.rename(out)
    except OSError:
        if former.exists():
            former.rename(out)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _holds_a_drafter(folder: Path) -> bool:
    if any(path.is_dir() and not path.is_symlink() for path in folder.iterdir()):
        return False
    try:
        return is_drafter(read_config(folder))
    except CheckpointError:
        return False


def _beside(out: Path) -> Path:
    return out.with_name(f".{out.name}{_SCRATCH}{uuid.uuid4().hex}")


def _remove_abandoned(out: Path) -> None:
    for scratch in out.parent.glob(f".{out.name}{_SCRATCH}*"):
        try:
            abandoned = time.time() - scratch.stat().st_mtime > _ABANDONED_AFTER_S
        except OSError:  # another process has just renamed it
            continue
        if abandoned:
            shutil.rmtree(scratch, ignore_errors=True)


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="out")
