"""Benches on disk: one file each, the latest of them kept over a restart."""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from dflash2_mlx.bench import results
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.settings import files
from dflash2_server.work import BenchJob

log = logging.getLogger(__name__)

KEPT = 50
_VERSION = 1
_NAME = re.compile(r"[0-9a-f]{12}\.json")


class BenchStore:
    """The ended benches in a folder, which is made when there is something to keep. Blocks."""

    def __init__(self, folder: Path, *, kept: int = KEPT) -> None:
        self._folder, self._kept = folder, kept
        self._created: dict[Path, float | None] = {}  # of the files known so far; None: it cannot be read

    def read(self) -> list[BenchJob]:
        """The oldest first. What cannot be read is left where it is, and the log says so."""
        jobs = [job for path in self._files() if (job := _read(path)) is not None]
        return sorted(jobs, key=lambda job: job.created)

    def write(self, job: BenchJob) -> list[str]:
        """Keep one, and forget the oldest beyond so many: their ids. Raises DFlashError."""
        known = {"id", "model", "state", "created", "request", "error", "done", "total"}
        content: dict[str, Any] = {name: value for name, value in job.summary().items() if name in known}
        content["result"] = None if job.result is None else results.as_dict(job.result)
        files.write(self._folder / f"{job.id}.json", {"version": _VERSION, **content})
        self._created[self._folder / f"{job.id}.json"] = job.created
        created = {path: when for path in self._files() if (when := self._when(path)) is not None}
        old = sorted(created, key=lambda path: created[path])[: -self._kept]
        for path in old:
            self._created.pop(path, None)
            with suppress(OSError):
                path.unlink()
        return [path.stem for path in old]

    def _when(self, path: Path) -> float | None:
        """When the bench of a file was begun; None for a file that cannot be read, which is never forgotten."""
        if path not in self._created:
            job = _read(path)
            self._created[path] = None if job is None else job.created
        return self._created[path]

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("the benches in %s cannot be read: %s", self._folder, error.strerror)
            return []


def _read(path: Path) -> BenchJob | None:
    """None for what is no bench that has ended, whatever is wrong with it; the log says what."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != _VERSION:
            raise ValueError("it is of another version")
        result = content.pop("result")
        found = None if result is None else results.from_dict(result)
        job = BenchJob(**content, result=found, samples=tuple(found.samples) if found else ())
        _check(job, path.stem)
        return job
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, DFlashError,
    ) as error:  # fmt: skip
        log.warning("the bench %s is not shown: %s", path, error)
        return None


def _check(job: BenchJob, id: str) -> None:
    """Raises ValueError or TypeError for what the routes and the pages could not show."""
    if job.id != id or job.state not in ("completed", "cancelled", "failed"):
        raise ValueError("it is no bench that has ended")
    kinds = {"model": str, "created": float, "request": dict, "error": str | None, "done": int, "total": int}
    for name, kind in kinds.items():
        if not isinstance(getattr(job, name), kind):
            raise TypeError(f"its {name} is {getattr(job, name)!r:.100}")
    json.dumps(job.summary(), allow_nan=False)
    if job.result is not None:
        json.dumps(results.as_dict(job.result), allow_nan=False)
