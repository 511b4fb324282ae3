"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from dflash2_mlx.errors import DFlashError


def write_whole(path: Path, text: str) -> None:
    """Replace the file by `text` in UTF-8, its folder made where it is missing; one that is killed leaves the old.

    Raises DFlashError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.new-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
            os.chmod(name, _mode(path))  # a temporary file is its owner's alone
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise DFlashError(f"{path} cannot be written: {error.strerror or error}") from None


def _mode(path: Path) -> int:
    """As the file that is there has it, else as a new file of this folder is usually read."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    return 0o644
