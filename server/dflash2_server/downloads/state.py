"""The state file: tasks over a restart. It never holds a token."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from dflash2_mlx.settings import files

from .task import ERROR_KINDS, STATES, Task, TaskError

log = logging.getLogger(__name__)

_VERSION = 1
_TASK_FIELDS = {field.name for field in fields(Task)}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A task and what only the queue needs to know of it."""

    task: Task
    folder: str | None = None  # where it goes; None: the Hub cache
    with_drafter: bool = False  # its drafter is still to be looked up
    listed: bool = False  # an older version was complete before: it is not hidden meanwhile

    def but(self, **changes: Any) -> Record:
        """With another state of the task."""
        return replace(self, task=replace(self.task, **changes))


def read(path: Path) -> list[Record]:
    """The records of a state file, none where there is no file. A damaged one is set aside, and the log says so."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("the list of downloads %s cannot be read: %s", path, error.strerror)
        return []
    try:
        content = json.loads(text.decode("utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"its version is {content['version']!r}, not {_VERSION}")
        return [_record(entry) for entry in content["tasks"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
        os.replace(path, aside)
        log.error("the list of downloads %s is damaged (%s): kept as %s; start them again", path, error, aside)
        return []


def write(path: Path, records: list[Record]) -> None:
    """All of it or nothing. Raises DFlashError."""
    tasks = [
        {**r.task.as_dict(), "folder": r.folder, "with_drafter": r.with_drafter, "listed": r.listed} for r in records
    ]
    files.write(path, {"version": _VERSION, "tasks": tasks})


def own(path: Path) -> IO[str] | None:
    """The right to a state file, until it is closed or the process ends; None where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = path.with_name(f".{path.name}.owner").open("w")
    try:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


def _record(entry: dict[str, Any]) -> Record:
    values = {name: value for name, value in entry.items() if name in _TASK_FIELDS}
    error = values.pop("error", None)
    task = Task(**values, error=TaskError(**error) if error else None)
    if task.state not in STATES or (task.error and task.error.kind not in ERROR_KINDS):
        raise ValueError(f"task {task.id} has the state {task.state!r}")
    return Record(
        task=task, folder=entry["folder"], with_drafter=bool(entry["with_drafter"]), listed=bool(entry["listed"])
    )
