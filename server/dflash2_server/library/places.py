"""Where models lie: folder/model, folder/org/model and the Hub cache's own layout. Reads names, no files.

Never raises: what cannot be looked at is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .models import Source

_HUB_PREFIX = "models--"
_DEEPEST = 2  # folder/org/model


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that may hold a model. `root` is the configured folder (None: the model was given by itself)."""

    folder: Path
    source: Source
    repo_id: str | None
    root: Path | None

    @property
    def name(self) -> str:
        """The leaf name that the model goes by."""
        return self.repo_id.rpartition("/")[2] if self.repo_id else self.folder.name

    @property
    def repository(self) -> Path | None:
        """The repository's folder in a Hub cache."""
        return self.folder.parent.parent if self.source == "hub" else None


def find(roots: Sequence[Path], hub_cache: Path | None, extra: Sequence[Path], problems: list[str]) -> list[Place]:
    """Every place, in a stable order, each folder once whatever links lead to it; what is wrong goes to `problems`."""
    found: list[Place] = []
    for root in roots:
        if not os.path.isdir(root):
            problems.append(f"{root}: no such folder; mend the setting model_dir")
        else:
            found += _in_root(root, problems)
    if hub_cache is not None and os.path.isdir(hub_cache):  # without a download there is none
        found += [place for place in _below(hub_cache, hub_cache, 1, problems) if place.source == "hub"]
    found += [_given(folder) for folder in extra]
    once: dict[str, Place] = {}
    for place in found:
        once.setdefault(os.path.realpath(place.folder), place)
    return list(once.values())


def _in_root(root: Path, problems: list[str]) -> Iterator[Place]:
    if is_model_folder(root):
        yield Place(folder=root, source="folder", repo_id=None, root=root)
    else:
        yield from _below(root, root, 1, problems)


def _below(folder: Path, root: Path, depth: int, problems: list[str]) -> Iterator[Place]:
    """Places in `folder`, own folders before links, by name; hidden ones are no models."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted((entry.is_symlink(), entry.name) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror or error}")
        return
    for _, name in inside:
        path = folder / name
        if not os.path.isdir(path):  # also a link to nowhere, or in a loop
            continue
        if name.startswith(_HUB_PREFIX):
            yield from _snapshot(path, root, problems)
        elif is_model_folder(path):
            repo_id = None if depth == 1 else f"{folder.name}/{name}"
            yield Place(folder=path, source="folder", repo_id=repo_id, root=root)
        elif depth < _DEEPEST:
            yield from _below(path, root, depth + 1, problems)


def is_model_folder(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")


def _snapshot(repository: Path, root: Path, problems: list[str]) -> Iterator[Place]:
    """The snapshot that a repository's refs/main names; without one the newest."""
    try:
        snapshots = {path.name: path for path in (repository / "snapshots").iterdir() if path.is_dir()}
        main = repository / "refs" / "main"
        if main.is_file():
            wanted = main.read_text(encoding="utf-8").strip()
        else:
            wanted = max(snapshots, key=lambda name: snapshots[name].stat().st_mtime, default="")
    except FileNotFoundError:  # nothing has come yet
        return
    except (OSError, ValueError) as error:
        problems.append(f"{repository} cannot be read: {error}")
        return
    if wanted in snapshots:
        yield Place(folder=snapshots[wanted], source="hub", repo_id=_repo_id(repository), root=root)


def _given(folder: Path) -> Place:
    repository = folder.parent.parent
    if folder.parent.name == "snapshots" and repository.name.startswith(_HUB_PREFIX):
        return Place(folder=folder, source="hub", repo_id=_repo_id(repository), root=None)
    return Place(folder=folder, source="folder", repo_id=None, root=None)


def _repo_id(repository: Path) -> str:
    return repository.name.removeprefix(_HUB_PREFIX).replace("--", "/")
