"""Deleting a model from disk: only what lies in a configured folder or Hub cache, and never through a link."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError

from .places import Place

log = logging.getLogger(__name__)

_GIVEN = "it was given by itself (--model, --draft): start the server without it first, or delete it by hand"


def refusal(place: Place, roots: Sequence[Path], given: Sequence[Path]) -> str | None:
    """Why a model may not be deleted; None where it may.

    `roots` are all folders that the library looks into, `given` those of single models.
    """
    if place.root is None:
        return _GIVEN
    folder = _whole(place)
    if folder == place.root:
        return f"{folder} is one of the folders with models itself: delete it by hand"
    expected = Path(os.path.realpath(place.root)) / folder.relative_to(place.root)
    if os.path.realpath(folder) != str(expected):
        return f"{folder} is a link, or lies behind one: remove the link by hand, what it leads to stays"
    if _any_in(given, expected):
        return _GIVEN
    if _any_in(roots, expected):
        return f"another folder with models lies in {folder}: delete it by hand"
    return None


def remove(place: Place, roots: Sequence[Path], given: Sequence[Path]) -> int:
    """Delete a model; bytes freed, measured.

    Raises RequestError where it may not be deleted, DFlashError where some of it is left.
    """
    reason = refusal(place, roots, given)
    if reason is not None:
        raise RequestError(f"{place.name} is not deleted: {reason}", param="model")
    folder = _whole(place)
    before = _files(folder)
    if place.source == "hub":
        _forget_revisions(folder)
    shutil.rmtree(folder, ignore_errors=True)  # removes links, not what they lead to
    if os.path.lexists(folder):
        left = sorted(_files(folder).values()) or [(str(folder), 0)]
        names = ", ".join(name for name, _ in left[:3])
        raise DFlashError(
            f"{place.name} is deleted only in part: {len(left)} files are left, such as {names}; "
            "look at their permissions and delete them by hand"
        )
    if folder.parent != place.root:
        _remove_empty(folder.parent)
    return sum(size for path, (_, size) in before.items() if not os.path.exists(path))


def _any_in(folders: Sequence[Path], place: Path) -> bool:
    return any(Path(os.path.realpath(folder)).is_relative_to(place) for folder in folders)


def _whole(place: Place) -> Path:
    """What goes: the folder, or the whole repository in a Hub cache."""
    return place.repository or place.folder


def _files(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below, links followed and each once: where it really is, to its name here and the bytes it takes.

    What has other names elsewhere takes none: its bytes outlive this one.
    """
    found: dict[str, tuple[str, int]] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                facts = os.stat(path)
                found.setdefault(os.path.realpath(path), (path, facts.st_size if facts.st_nlink == 1 else 0))
            except OSError:
                found[path] = (path, 0)
    return found


def _forget_revisions(repository: Path) -> None:
    """Let huggingface_hub delete all revisions: it knows which blobs other repositories share."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        scanned = scan_cache_dir(repository.parent)
    except (CacheNotFound, OSError, ValueError) as error:
        log.warning("%s: %s", repository, error)
        return
    real = os.path.realpath(repository)
    # Alone: commits are told by hash, and copies of a repository have the same ones.
    own = frozenset(repo for repo in scanned.repos if os.path.realpath(repo.repo_path) == real)
    revisions = [revision.commit_hash for repo in own for revision in repo.revisions]
    try:
        replace(scanned, repos=own).delete_revisions(*revisions).execute()
    except OSError as error:  # what is left is told after the last try
        log.warning("%s: %s", repository, error)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # other models are in it
        folder.rmdir()
