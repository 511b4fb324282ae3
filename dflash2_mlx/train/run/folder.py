"""The folder of one training run: made or gone on with, held by one process at a time, for one recipe and its data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, RequestError
from ...report.whole import write_whole
from ..folder_lock import held
from ..recipe.fields import FIELDS, Part
from ..recipe.file import from_values, shown, write_recipe
from ..recipe.values import Recipe

VERSION = 1

# What another command may give when it goes on with a run: when to stop, how often to look and save, and how the memory
# and the disk of this machine are used. The target, the data and the held-out prompts may have moved: their content is
# compared instead. Everything else decides what is learnt, and must be as it was.
MAY_CHANGE: frozenset[tuple[Part, str]] = frozenset(
    {
        ("", "target"),
        ("", "data"),
        ("", "held_out"),
        ("", "rows_gb"),
        ("loop", "steps"),
        ("loop", "patience"),
        ("loop", "evaluate_every"),
        ("loop", "save_every"),
        ("loop", "micro_batch"),
        ("loop", "checkpointing"),
    }
)
_RUN = "run.json"
# What runs of earlier versions do not tell; they go on all the same.
_TOLD_LATER = frozenset({"held_out"})
_CONTENT = {"held_out": "content of --held-out"}  # elsewhere the name says it


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run lie. `begun` tells that an earlier process made the folder."""

    path: Path
    begun: bool = False

    @property
    def recipe(self) -> Path:
        """The recipe, for reading and for `--recipe`; what counts on resuming stands in run.json."""
        return self.path / "recipe.toml"

    @property
    def history(self) -> Path:
        """The measurements (see `history`)."""
        return self.path / "history.jsonl"

    @property
    def held_out(self) -> Path:
        """The target's answers to the prompts for evaluation."""
        return self.path / "held_out.jsonl"

    @property
    def state(self) -> Path:
        """Folder of the latest state (see `checkpoint`)."""
        return self.path / "state"

    @property
    def best(self) -> Path:
        """Folder of the best evaluation's weights (see `checkpoint`)."""
        return self.path / "best"

    @property
    def drafter(self) -> Path:
        """Folder of the exported drafter."""
        return self.path / "drafter"

    @property
    def report(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"


def is_run(folder: Path) -> bool:
    """Whether the folder holds a training run."""
    return (folder / _RUN).is_file()


def check_folder(folder: Path) -> None:
    """Raises RequestError for a place where a run can be neither begun nor gone on with. Nothing is made."""
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file: give --out a folder of its own", param="out")
    if is_run(folder):
        return
    try:
        others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(folder, error) from None
    if others:
        named = ", ".join(others[:3]) + (", …" if others[3:] else "")
        raise RequestError(
            f"{folder} holds something else ({named}) and no training run: give --out an empty or a new folder",
            param="out",
        )


@contextlib.contextmanager
def open_run(folder: Path, recipe: Recipe, identity: Mapping[str, str]) -> Iterator[RunFolder]:
    """Hold the folder, made where it is missing, until the end of the block or of the process.

    `identity` says by name what the content is: {"target": fingerprint, "data": digest, "held_out": digest}.
    Raises RequestError (param out) for a folder that holds something else, that another process trains in, or whose run
    had another recipe or another identity; CheckpointError for one that cannot be written.
    """
    check_folder(folder)
    with held(folder, "another training"):
        check_folder(folder)  # again: another process may have been quicker
        begun = is_run(folder)
        if begun:
            check_same(folder, recipe, identity)
        run = RunFolder(folder, begun)
        _write_run(run, recipe, identity)
        yield run


def check_same(folder: Path, recipe: Recipe, identity: Mapping[str, str]) -> None:
    """Raises RequestError that names each field in which the folder's run differs, unless it is one of MAY_CHANGE."""
    stored, stored_identity = _read_run(folder)
    differing = [
        f"{field.key} is {shown(field, field.of(stored))} there and {shown(field, field.of(recipe))} here"
        for field in FIELDS
        if field.of(stored) != field.of(recipe) and (field.part, field.name) not in MAY_CHANGE
    ]
    if differing:
        raise RequestError(
            f"{folder} holds a run of another recipe: {'; '.join(differing)}. Go on with the same values "
            f"(--recipe {folder / 'recipe.toml'}), or give another --out",
            param="out",
        )
    changed = [
        f"the {_CONTENT.get(name, name)} was {stored_identity.get(name, 'not told')} and is {value}"
        for name, value in identity.items()
        if stored_identity.get(name) != value and (name in stored_identity or name not in _TOLD_LATER)
    ]
    if changed:
        raise RequestError(
            f"{folder} holds a run that began with other content: {'; '.join(changed)}. "
            "Give what it began with, or another --out",
            param="out",
        )


def _write_run(run: RunFolder, recipe: Recipe, identity: Mapping[str, str]) -> None:
    """run.json first: from then on the folder is a run. It is written whole or not at all; the recipe's file is a copy.

    What may change is kept as the latest command gives it.
    """
    values: dict[str, dict[str, Any]] = {}
    for field in FIELDS:
        values.setdefault(field.part, {})[field.name] = field.of(recipe)
    content = {"version": VERSION, "recipe": values, "identity": dict(identity)}
    write_whole(run.path / _RUN, json.dumps(content, indent=2) + "\n")
    write_recipe(run.recipe, recipe)


def _read_run(folder: Path) -> tuple[Recipe, dict[str, str]]:
    """The recipe and the identity in run.json; a field that it lacks is at its default. Raises CheckpointError."""
    path = folder / _RUN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise CheckpointError(
                f"{path} was written in layout {found['version']}, this version of dflash2-mlx reads {VERSION}: "
                "go on with the version that wrote it, or give another --out"
            )
        given = found["recipe"]
        values = {f: given[f.part][f.name] for f in FIELDS if f.name in given.get(f.part, {})}
        return from_values(Recipe(), values), {str(name): str(value) for name, value in found["identity"].items()}
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}): give another --out, or remove {folder}") from None


def _unusable(folder: Path, error: OSError) -> CheckpointError:
    words = error.strerror or str(error)
    return CheckpointError(f"{folder} cannot be used ({words}): give --out a folder that can be written")
