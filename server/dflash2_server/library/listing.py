"""The files of a place, looked at on every scan: what tells whether a model has changed, and what is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .places import Place

_PARTIAL = ".incomplete"  # what huggingface_hub writes into until a file is whole


class Listing(NamedTuple):
    """Name, size and time of the files of a folder, links followed; equal listings stand for an unchanged model."""

    files: tuple[tuple[str, int, int], ...]
    missing: tuple[str, ...]  # links to nowhere
    partial: tuple[str, ...]  # files that are being downloaded, or whose download was broken off

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _, _ in self.files)


def list_files(place: Place) -> Listing:
    """Raises OSError where the folder cannot be read."""
    files, missing = [], []
    with os.scandir(place.folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            try:
                facts = entry.stat()
                is_file = entry.is_file()
            except OSError:
                missing.append(entry.name)
                continue
            if is_file:
                files.append((entry.name, facts.st_size, facts.st_mtime_ns))
    return Listing(tuple(files), tuple(missing), tuple(_partial_files(place)))


def bytes_on_disk(folder: Path) -> int:
    """Bytes of all files of a model, links to files followed and each file once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                facts = os.stat(os.path.join(parent, name))
            except OSError:
                continue
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values())


def _partial_files(place: Place) -> list[str]:
    """Those of a repository in a Hub cache, or of a folder that huggingface_hub downloads to."""
    repository = place.repository
    where = place.folder / ".cache" / "huggingface" if repository is None else repository / "blobs"
    return sorted(name for _, _, names in os.walk(where) for name in names if name.endswith(_PARTIAL))
