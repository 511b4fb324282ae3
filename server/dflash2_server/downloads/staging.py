"""Where a repository is gathered, hidden, until it is complete: beside its place, so that it is moved, not copied.

Complete files are named by their checksum, partial ones have `.part` behind it; both outlive any process. The Hub
cache's own partial files do not serve: huggingface_hub 2 begins them anew in each process.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .faults import failure
from .hub import RemoteFile, Repository

HIDDEN = ".dflash2-incoming"
_COMMIT = re.compile(r"[0-9A-Za-z]{1,64}")
_LOCK_PATIENCE = 10.0  # seconds; a worker whose server was killed ends within one


def cache_folder(cache: Path, repo_id: str) -> Path:
    """A repository's folder in the Hub cache, as huggingface_hub documents its layout."""
    return cache / f"models--{repo_id.replace('/', '--')}"


class Staging:
    """The hidden folder of one repository."""

    def __init__(self, repo_id: str, *, cache: Path, folder: Path | None = None) -> None:
        self.repo_id = repo_id
        self.cache = cache
        self.target = folder / repo_id if folder else None  # None: the Hub cache
        self._blobs = cache_folder(cache, repo_id) / "blobs"
        self.path = folder / HIDDEN / repo_id.replace("/", "--") if folder else self._blobs.parent / HIDDEN

    def part(self, file: RemoteFile) -> Path:
        return self.path / f"{file.checksum}.part"

    def whole(self, file: RemoteFile) -> Path:
        return self.path / file.checksum

    def partial_size(self, file: RemoteFile) -> int:
        return _size(self.part(file)) or 0

    def has(self, file: RemoteFile, commit: str) -> bool:
        """Whether the file is complete here, or at its final place."""
        return self.found(file, commit) is not None

    def found(self, file: RemoteFile, commit: str) -> Path | None:
        return next((path for path in self._places(file, commit) if _size(path) == file.size), None)

    def present(self, repository: Repository) -> int:
        """Bytes that need not be fetched."""
        return sum(
            file.size if self.has(file, repository.commit) else min(self.partial_size(file), file.size)
            for file in repository.files
        )

    def is_complete(self) -> bool:
        """Whether a model stood at the final place before: it stays listed while a newer one comes."""
        folders = [self.target] if self.target else sorted((self._blobs.parent / "snapshots").glob("*"))
        return any((f / "config.json").exists() and any(f.glob("*.safetensors")) for f in folders)

    def room(self) -> int:
        """Free bytes on its disk."""
        existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        return shutil.disk_usage(existing).free

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder for one process alone. Raises Failure where another keeps it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            deadline = time.monotonic() + _LOCK_PATIENCE
            while not _locked(lock.fileno()):
                if time.monotonic() > deadline:
                    raise failure("other", f"another program downloads {self.repo_id}", "wait for it, then retry")
                time.sleep(0.1)
            yield

    def discard(self) -> None:
        """Partial and complete files of an unfinished download, and folders that are empty without them."""
        shutil.rmtree(self.path, ignore_errors=True)
        parents = [self.path.parent]
        if self.target:
            parents.append(self.target.parent)
        for parent in parents:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()

    def fill_cache(self, repository: Repository) -> None:
        """Move everything into the cache as blobs; huggingface_hub itself then writes the links to them."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        for file in repository.files:
            if _size(self._blobs / file.checksum) != file.size:
                os.replace(self.whole(file), self._blobs / file.checksum)

    def assemble(self, repository: Repository) -> Path:
        """Give the files their names in a hidden folder, then that folder its place in one step."""
        assert self.target is not None
        if self._is_at_target(repository):
            return self.target
        if self.target.exists():
            raise failure("other", f"{self.target} is already there, with other files", "delete it first, then retry")
        ready = self._ready(repository.commit)
        for file in repository.files:
            place = ready / file.path
            if _size(place) != file.size:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._name(file, place, repository)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(ready, self.target)
        return self.target

    def _name(self, file: RemoteFile, place: Path, repository: Repository) -> None:
        """Move a file to its place; one of several with the same content is copied from the first."""
        if self.whole(file).exists():
            os.replace(self.whole(file), place)
            return
        ready = self._ready(repository.commit)
        twins = [ready / other.path for other in repository.files if other.checksum == file.checksum]
        shutil.copyfile(next(twin for twin in twins if _size(twin) == file.size), place)

    def _ready(self, commit: str) -> Path:
        if not _COMMIT.fullmatch(commit):  # a mirror may say anything
            raise ValueError(f"the Hub names the commit {commit!r:.80}, which is none")
        return self.path / f"ready-{commit}"

    def _is_at_target(self, repository: Repository) -> bool:
        target = self.target
        return target is not None and all(_size(target / file.path) == file.size for file in repository.files)

    def _places(self, file: RemoteFile, commit: str) -> list[Path]:
        elsewhere = self._ready(commit) / file.path if self.target else self._blobs / file.checksum
        return [self.whole(file), elsewhere]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
