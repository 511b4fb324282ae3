"""Where a quantised copy goes: a folder that the library lists, built in a hidden one beside it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError

_HIDDEN = ".quantize-"
_NAME = re.compile(r"[\w][\w.+-]{0,95}", re.ASCII)
_TRIES = 5  # of making a folder that another server takes for abandoned before it is locked


def own_folder() -> Path:
    """For the models that this program makes, where no folder with models is configured."""
    from platformdirs import user_data_path

    return user_data_path("dflash2-mlx", appauthor=False) / "models"


def output_root(configured: Iterable[Path], own: Path) -> Path:
    """The first of the configured folders that may be written to, else our own."""
    return next((folder for folder in configured if os.path.isdir(folder) and os.access(folder, os.W_OK)), own)


def default_name(drafter: str, spec: str) -> str:
    """The drafter's last name with the spec, as a folder may be called."""
    return f"{drafter.rsplit('/', 1)[-1]}-{spec.replace(':', '-')}"


def check_name(name: str) -> None:
    """Raises RequestError (param name) for what is no plain name of a folder."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"name is {name!r:.120}: use letters, digits, '.', '_', '+' and '-', up to 96 of them", param="name"
        )


@dataclass(frozen=True)
class Hidden:
    """A folder to build in, which the library does not list. Its lock goes with this process: see `sweep`."""

    path: Path
    descriptor: int  # open on the folder

    @classmethod
    def made(cls, root: Path, id: str) -> Hidden:
        """A new one, once what others have left is deleted. Raises DFlashError."""
        path = root / f"{_HIDDEN}{id}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            sweep(root)
            for _ in range(_TRIES):
                path.mkdir(exist_ok=True)
                descriptor = _owned(path)
                if descriptor is not None:
                    return cls(path, descriptor)
        except OSError as error:
            raise DFlashError(f"{root} cannot be written to: {error.strerror or error}") from None
        raise DFlashError(f"{path} is taken by another process: try again")

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def sweep(root: Path) -> None:
    """Delete the hidden folders whose owner is gone: a server that was killed. Blocks."""
    try:
        left = [path for path in root.iterdir() if path.name.startswith(_HIDDEN)]
    except OSError:
        return
    for path in left:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # no folder, or gone meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # it is at work, or this file system knows no locks
            pass
        finally:
            os.close(descriptor)


def _owned(path: Path) -> int | None:
    """Open and locked; None where another process was about to delete it. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks, where nobody else can lock it either
        return descriptor
    if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
        return descriptor
    os.close(descriptor)
    return None


def place(built: Path, target: Path) -> None:
    """Move a complete copy to its place, which must be free. Raises DFlashError."""
    if os.path.lexists(target):
        raise DFlashError(f"{target} has come to be there meanwhile: quantise again under another name")
    try:
        built.rename(target)
    except OSError as error:
        raise DFlashError(f"{target} cannot be written: {error.strerror or error}") from None
