"""Rows on disk know of which data they are, so that those of data that has changed since can be told apart."""

from __future__ import annotations

from pathlib import Path

from ...report.whole import write_whole

_MARK = "data-digest"


def mark(rows: Path, digest: str) -> None:
    """Note in a folder of rows, made where it is missing, of which data they are. Raises DFlashError."""
    path = rows / _MARK
    if not path.exists():
        write_whole(path, digest + "\n")


def outdated(data: Path, digest: str) -> list[tuple[Path, int]]:
    """Folders of rows beside the data that are of another digest, with their bytes; not those without a note."""
    found = []
    for folder in sorted(data.glob("rows-*/")):
        try:
            if (folder / _MARK).read_text(encoding="utf-8").strip() != digest:
                found.append((folder, sum(path.stat().st_size for path in folder.iterdir())))
        except OSError:  # no note, or another training is at it
            continue
    return found
