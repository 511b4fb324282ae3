"""One process at a time in a folder. The system lets go of a lock when its process ends: none is ever stale."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import CheckpointError, RequestError

_LOCK = ".lock"
_PAUSE = 0.5  # seconds between two looks


@contextlib.contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Make the folder where it is missing and hold it until the end of the block or of the process.

    Raises RequestError (param out) where another `what` ("another training") holds it; CheckpointError where the
    folder cannot be written.
    """
    descriptor = _opened(folder)
    try:
        if not _taken(descriptor, folder):
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise RequestError(
                f"{what} (process {holder}) writes to {folder}: wait for its end, or give another --out", param="out"
            )
        with contextlib.suppress(OSError):  # only told to others; a full disk shows where it matters
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def waited_for(
    folder: Path, cancelled: Callable[[], bool], waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """As `held`, but wait while another process holds it, until `cancelled`: then the block runs without the lock.

    `waiting` is called once, when the wait begins.
    """
    descriptor = _opened(folder)
    try:
        told = False
        while not _taken(descriptor, folder) and not cancelled():
            if not told:
                waiting()
                told = True
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unusable(folder, error) from None


def _taken(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(folder, error) from None
    return True


def _unusable(folder: Path, error: OSError) -> CheckpointError:
    words = error.strerror or str(error)
    return CheckpointError(f"{folder} cannot be used ({words}): give a folder that can be written")
