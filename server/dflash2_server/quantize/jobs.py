"""The quantise jobs of the model manager: one at a time, each in a process of its own.

Every method may be called from any thread and returns at once; what happens later is told by `publish`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash2_mlx.drafter.quantization import parse_spec
from dflash2_mlx.errors import DFlashError, EngineBusy, RequestError
from dflash2_server.child import Child
from dflash2_server.library.library import Library
from dflash2_server.library.models import LocalModel
from dflash2_server.quantize.output import Hidden, check_name, default_name, output_root, place, sweep
from dflash2_server.work import QuantizeJob, WorkRuns

log = logging.getLogger(__name__)

Publish = Callable[[str, Mapping[str, Any]], object]

WORKER = "dflash2_server.quantize.worker"
_PREFIX = "dflash2-mlx: error: "


@dataclass
class _Running:
    """A job's process, the folder it builds in, and the place of what is complete."""

    id: str
    child: Child
    hidden: Hidden
    target: Path
    thread: threading.Thread | None = None
    done: Mapping[str, Any] | None = None  # the message of its end


class QuantizeJobs:
    """`work.Quantizations`. Copies go to the first of `folders()` that may be written to, else to `own`.

    `find` gives a model or drafter by any of its names. `worker` is the module that is run, for tests. `beside` raises
    for what no job may run beside.
    """

    def __init__(
        self,
        library: Library,
        find: Callable[[str], LocalModel],
        folders: Callable[[], Sequence[Path]],
        publish: Publish,
        *,
        own: Path,
        worker: str = WORKER,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        self._library, self._find, self._folders, self._publish = library, find, folders, publish
        self._own, self._worker, self._beside = own, worker, beside
        self._lock = threading.RLock()
        self._jobs: dict[str, QuantizeJob] = {}
        self._running: _Running | None = None
        self._closed = False

    def start(self, drafter: str, spec: str, name: str | None = None) -> QuantizeJob:
        """See `work.Quantizations`."""
        local = self._find(drafter)
        if local.kind != "drafter":
            raise RequestError(f"{local.id} is a chat model: only drafters are quantised here", param="model")
        if local.problem is not None:
            raise RequestError(f"{local.id} cannot be quantised: {local.problem}", param="model")
        if local.quantization is not None:
            source = local.quantized_from or "the drafter that it was made from"
            raise RequestError(
                f"{local.id} is quantised already ({local.quantization}): quantise {source}", param="model"
            )
        checked = _checked_spec(spec)
        folder = default_name(local.id, checked) if name is None else name
        check_name(folder)
        with self._lock:
            self._refuse_another()
            root = output_root(self._folders(), self._own)
            self._refuse_known(folder, root)
            job = QuantizeJob(
                id=uuid.uuid4().hex[:12],
                drafter=local.id,
                spec=checked,
                name=folder,
                state="running",
                created=time.time(),
            )
            self._begin(job, local, root)
            return self._put(job)

    def get(self, id: str) -> QuantizeJob:
        """See `work.Quantizations`."""
        with self._lock:
            if id not in self._jobs:
                raise RequestError(f"there is no quantise job {id!r:.100}", param="job")
            return self._jobs[id]

    def cancel(self, id: str) -> QuantizeJob:
        """See `work.Quantizations`."""
        with self._lock:
            job = self.get(id)
            if job.ended or self._running is None:
                raise RequestError(f"the quantise job {id} is {job.state} already", param="job")
            job = self._put(replace(job, state="cancelled", stage=None, share=None))
            self._running.child.kill()
            return job

    def list(self) -> Sequence[QuantizeJob]:
        """See `work.Quantizations`."""
        with self._lock:
            return [*reversed(self._jobs.values())]

    def close(self) -> None:
        """End the one that runs, and wait until nothing is left of it."""
        with self._lock:
            self._closed = True
            running = self._running
            if running is not None and not self._jobs[running.id].ended:
                self.cancel(running.id)
        if running is not None and running.thread is not None:
            running.thread.join()

    # with the lock held

    def _refuse_another(self) -> None:
        if self._closed:
            raise EngineBusy("the server is shutting down")
        self.refuse_beside()
        self._beside()

    def refuse_beside(self) -> None:
        """Raises WorkRuns while a job runs, or its process has not come to its end."""
        with self._lock:
            if self._running is None:
                return
            job = self._jobs[self._running.id]
            words = f"the quantise job {job.id} of {job.drafter} runs: wait for it, or cancel it"
            raise WorkRuns(words, kind="quantize")

    def sweep(self) -> None:
        """Delete what a server that was killed has left of its jobs. Blocks."""
        for root in {*self._folders(), self._own}:
            sweep(root)

    def _refuse_known(self, name: str, root: Path) -> None:
        """A copy must be told apart from all that is listed, wherever that lies."""
        known = any(name == model.id for model in self._library.models())
        if known or os.path.lexists(root / name):
            raise RequestError(f"{name} is there already: choose another name, or delete it first", param="name")

    def _begin(self, job: QuantizeJob, local: LocalModel, root: Path) -> None:
        hidden = Hidden.made(root, job.id)
        arguments = [str(local.path), "--out", str(hidden.path / job.name), "--spec", job.spec]
        try:
            child = Child(self._worker, arguments)
        except OSError as error:
            hidden.remove()
            raise DFlashError(f"no process could be started: {error}") from None
        running = self._running = _Running(job.id, child, hidden, root / job.name)
        running.thread = threading.Thread(
            target=self._follow, args=(running,), name=f"quantize-{job.drafter}", daemon=True
        )
        running.thread.start()  # it waits for the lock

    def _put(self, job: QuantizeJob) -> QuantizeJob:
        self._jobs[job.id] = job
        self._publish("quantize", job.as_dict())
        return job

    # in the job's thread

    def _follow(self, running: _Running) -> None:
        for message in running.child.messages():
            with self._lock:
                self._hear(running, message)
        try:
            path = self._placed(running)
            self._end(running, path, None)
        except DFlashError as error:
            self._end(running, None, str(error))
        except Exception as unexpected:
            log.exception("after a quantise job")
            self._end(running, None, f"{type(unexpected).__name__}: {unexpected}")

    def _hear(self, running: _Running, message: Mapping[str, Any]) -> None:
        job = self._jobs[running.id]
        if message["event"] == "done":
            running.done = message
        elif message["event"] == "progress" and not job.ended:
            self._put(replace(job, stage=str(message["stage"]), share=float(message["share"])))

    def _placed(self, running: _Running) -> Path | None:
        """Move what is complete to its place and list it; None where the job was cancelled. Raises DFlashError."""
        try:
            with self._lock:
                if self._jobs[running.id].ended:
                    return None
                if running.done is None or running.child.returncode != 0:
                    raise DFlashError(_last_words(running.child))
                place(running.hidden.path / running.target.name, running.target)
        finally:
            running.hidden.remove()
        self._library.add_folder(running.target.parent)
        self._library.refresh()
        self._publish("library", {"path": str(running.target)})
        return running.target

    def _end(self, running: _Running, path: Path | None, error: str | None) -> None:
        with self._lock:
            self._running = None
            job = self._jobs[running.id]
            if job.ended:
                return
            job = replace(job, stage=None, share=None)
            if path is None or running.done is None:
                log.warning("quantising %s failed: %s", job.drafter, error)
                self._put(replace(job, state="failed", error=error))
                return
            done = running.done
            log.info("%s is quantised: %s", job.drafter, done["summary"])
            self._put(
                replace(job, state="completed", path=str(path), bytes=int(done["bytes"]), summary=str(done["summary"]))
            )


def _checked_spec(spec: str) -> str:
    """The spec in full. Raises RequestError (param spec)."""
    try:
        found = parse_spec(spec)
    except RequestError as error:
        raise RequestError(str(error), param="spec") from None
    if found is None:
        raise RequestError(f"spec is {spec!r}: name a quantisation, such as w4a16:gs64", param="spec")
    return str(found)


def _last_words(child: Child) -> str:
    """Why a process ended without a result: its error where it told one."""
    said = child.said
    told = [line.removeprefix(_PREFIX) for line in said if line.startswith(_PREFIX)]
    if told:
        return told[-1]
    return f"its process ended with {child.returncode}" + (f": {' '.join(said)[-500:]}" if said else "")
