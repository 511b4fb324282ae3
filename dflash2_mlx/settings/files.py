"""Settings files on disk: read with a mark of what was read, written whole or not at all, locked, set aside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DFlashError


class Mark(NamedTuple):
    """What tells one version of a file from another without reading it."""

    modified: int  # nanoseconds
    size: int
    inode: int


def mark(path: Path) -> Mark | None:
    """The mark of the file that is there now; None where none is. Raises OSError."""
    try:
        return _mark(path.stat())
    except FileNotFoundError:
        return None


def read(path: Path) -> tuple[bytes, Mark] | None:
    """The content and its mark, of one moment; None where there is no file. Raises OSError."""
    try:
        with path.open("rb") as file:
            return file.read(), _mark(os.fstat(file.fileno()))
    except FileNotFoundError:
        return None


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError that says what is wrong."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file, readable by its owner only. A process that is killed leaves the old or the new one.

    Call it with the lock held. A link stays one: what it points to is replaced. Raises DFlashError.
    """
    target = Path(os.path.realpath(path))
    text = json.dumps(content, indent=2) + "\n"
    with _told(f"{path} cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        descriptor, name = tempfile.mkstemp(prefix=_temporary(target), dir=target.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        _sync_folder(target.parent)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing the file meanwhile; they wait. Raises DFlashError where it cannot be locked.

    The lock is a file of its own beside it, since the file itself is replaced. It ends with its process.
    """
    target = Path(os.path.realpath(path))
    with _told(f"{path} cannot be locked"):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with _told(f"{path} cannot be locked"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that nothing overwrites it; its new path. Raises OSError.

    Call it with the lock held.
    """
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    aside = path.with_name(f"{path.name}.damaged-{now}")
    path.rename(aside)
    return aside


def _mark(status: os.stat_result) -> Mark:
    return Mark(status.st_mtime_ns, status.st_size, status.st_ino)


def _temporary(target: Path) -> str:
    return f".{target.name}.new-"


def _sweep(target: Path) -> None:
    """Remove what a killed process left of its writing; under the lock, no other is at it."""
    for left in target.parent.iterdir():
        if left.name.startswith(_temporary(target)):
            left.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DFlashError(f"{what}: {error.strerror or error}") from None
