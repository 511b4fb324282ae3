"""Where a quantised copy goes: a folder that the library lists, built in a hidden one beside it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError

_HIDDEN = ".quantize-"
_NAME = re.compile(r"[\w][\w.+-]{0,95}", re.ASCII)
_ABANDONED_SECONDS = 24 * 3600.0  # a hidden folder that old is of a server that was killed


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


def hidden_folder(root: Path, id: str) -> Path:
    """A new folder to build in, which the library does not list. Raises DFlashError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{_HIDDEN}*"):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        folder = root / f"{_HIDDEN}{id}"
        folder.mkdir()
    except OSError as error:
        raise DFlashError(f"{root} cannot be written to: {error.strerror or error}") from None
    return folder


def place(built: Path, target: Path) -> None:
    """Move a complete copy to its place, which must be free. Raises DFlashError."""
    if os.path.lexists(target):
        raise DFlashError(f"{target} has come to be there meanwhile: quantise again under another name")
    try:
        built.rename(target)
    except OSError as error:
        raise DFlashError(f"{target} cannot be written: {error.strerror or error}") from None
