"""The queue of downloads: one process per running repository, its state in a file that outlives everything.

Every method may be called from any thread and returns at once; what happens later is told by `publish`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash2_mlx.drafter.config import is_drafter
from dflash2_mlx.errors import DFlashError, RequestError

from . import drafters, links, state
from .job import Job, Policy
from .process import WorkerProcess
from .rate import Rate
from .staging import Staging
from .state import Record
from .task import Task, TaskError

__all__ = ["Downloads", "Policy", "Task", "TaskError"]

log = logging.getLogger(__name__)

_PUBLISH_INTERVAL = 0.25  # seconds between two events of one task's progress

Publish = Callable[[str, dict[str, Any]], object]


@dataclass
class _Running:
    """A record's process; `told` is when its progress was last published."""

    process: WorkerProcess
    rate: Rate = field(default_factory=Rate)
    told: float = 0.0
    config: dict[str, Any] | None = None  # of the model, once it has come


class Downloads:
    """Repositories that are fetched in order, `parallel` at a time.

    `state_file` keeps the tasks; those that had not ended when the last process did are resumed at once. Only one
    process at a time has it, another one can add nothing. `folder` is where models go, as owner/name; None: the Hub
    cache at `cache`, or where huggingface_hub has it. `endpoint` and `token` None are huggingface_hub's own. `publish`
    is called with "download" and a task as a dict, at most four times a second for each (a removed task has the state
    "removed"), `finished` with the repository id of a complete one; both from a thread of the queue, and `publish` must
    not wait.
    """

    def __init__(
        self,
        state_file: Path,
        *,
        folder: Path | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        publish: Publish = lambda kind, data: None,
        finished: Callable[[str], object] = lambda repo_id: None,
        cache: Path | None = None,
        parallel: int = 1,
        policy: Policy | None = None,
    ) -> None:
        self._state_file = state_file
        self._folder = folder
        self._endpoint = _address(endpoint)
        self._token = token or None
        self._publish = publish
        self._finished = finished
        self._cache = cache or _hub_cache()
        self._parallel = parallel
        self._policy = policy or Policy()
        self._lock = threading.RLock()
        self._running: dict[str, _Running] = {}
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._owned = state.own(state_file)
        kept = state.read(state_file) if self._owned is not None else []
        self._records = {r.task.id: r for r in map(_interrupted, kept)}
        with self._lock:
            self._start_next()

    def add(self, repo_or_link: str, *, with_drafter: bool = False) -> list[Task]:
        """Queue a repository; one that is queued or running already is not queued twice.

        With its drafter, the task of the drafter follows as soon as the model's config has come. Raises RequestError
        for what is no repository id and no link to one.
        """
        repo_id = links.repository(repo_or_link, self._endpoint)
        if self._owned is None:
            raise RequestError("another server of this user has the downloads: start this one there", param="repo_id")
        with self._lock:
            record = self._add(repo_id, with_drafter=with_drafter)
            self._save()
            self._start_next()
            return [self._records[record.task.id].task]

    def tasks(self) -> list[Task]:
        """All that are not removed, in the order of the queue."""
        with self._lock:
            return [record.task for record in self._records.values()]

    def task(self, id: str) -> Task:
        """Raises RequestError for an unknown one, as all that take an id do."""
        with self._lock:
            return self._find(id).task

    def cancel(self, id: str) -> Task:
        """Stop a task at once; what has come is kept for a retry. Raises RequestError for one that has ended."""
        with self._lock:
            record = self._find(id)
            if record.task.ended:
                raise RequestError(f"the download {record.task.repo_id} is {record.task.state} already", param="task")
            record = self._put(record.but(state="cancelled", rate=0.0, seconds_left=None, error=None))
            self._save()
            if id in self._running:
                self._running[id].process.kill()
            return record.task

    def retry(self, id: str) -> Task:
        """Queue a failed or cancelled task again; it resumes from what has come. Raises RequestError for others."""
        with self._lock:
            record = self._find(id)
            if record.task.state not in ("failed", "cancelled"):
                raise RequestError(
                    f"the download {record.task.repo_id} is {record.task.state}: nothing to retry", param="task"
                )
            del self._records[id]  # it goes to the end
            record = self._put(record.but(state="queued", error=None, note=None))
            self._save()
            self._start_next()
            return self._records[id].task

    def remove(self, id: str) -> None:
        """Forget a task that has ended, and what has come of an incomplete one. Raises RequestError for others."""
        with self._lock:
            record = self._find(id)
            if not record.task.ended:
                raise RequestError(f"the download {record.task.repo_id} is under way: cancel it first", param="task")
            self._forget(record)
            self._save()
            if record.task.state != "completed":
                self._staging(record).discard()

    def incoming(self) -> frozenset[str]:
        """Repositories that are not complete: not to be listed as models. An older complete version stays listed."""
        with self._lock:
            # Those of another server are read as it has them.
            records = list(self._records.values()) if self._owned is not None else state.read(self._state_file)
            return frozenset(r.task.repo_id for r in records if r.task.state != "completed" and not r.listed)

    def configure(self, endpoint: str | None, token: str | None) -> None:
        """Another endpoint or token, for what starts from now on."""
        with self._lock:
            self._endpoint, self._token = _address(endpoint), token or None

    def close(self) -> None:
        """Stop all processes and threads; what was under way is resumed by the next `Downloads` of the file."""
        with self._lock:
            self._closed = True
            self._save()
            running, threads = list(self._running.values()), list(self._threads)
        for each in running:
            each.process.kill()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._owned is not None:
            self._owned.close()

    # The queue, with the lock held.

    def _add(self, repo_id: str, *, with_drafter: bool = False) -> Record:
        known = self._active(repo_id)
        if known is not None:
            return self._also_drafter(known) if with_drafter else known
        for ended in [r for r in self._records.values() if r.task.repo_id == repo_id]:
            self._forget(ended)
        task = Task(id=uuid.uuid4().hex[:12], repo_id=repo_id, created=time.time())
        record = Record(task=task, folder=str(self._folder) if self._folder else None, with_drafter=with_drafter)
        return self._put(replace(record, listed=self._staging(record).is_complete()))

    def _also_drafter(self, record: Record) -> Record:
        record = self._put(replace(record, with_drafter=True))
        running = self._running.get(record.task.id)
        if running is not None and running.config is not None:
            self._pair(record, running.config)
        return self._records[record.task.id]

    def _active(self, repo_id: str) -> Record | None:
        """The record of a repository that is queued or running."""
        return next((r for r in self._records.values() if r.task.repo_id == repo_id and not r.task.ended), None)

    def _find(self, id: str) -> Record:
        if id not in self._records:
            raise RequestError(f"no download {id!r}: it may have been removed", param="task")
        return self._records[id]

    def _put(self, record: Record) -> Record:
        self._records[record.task.id] = record
        self._publish("download", record.task.as_dict())
        return record

    def _forget(self, record: Record) -> None:
        del self._records[record.task.id]
        self._publish("download", {**record.task.as_dict(), "state": "removed"})

    def _save(self) -> None:
        if self._owned is None:
            return
        try:
            state.write(self._state_file, list(self._records.values()))
        except DFlashError as error:  # the disk may be full of what is downloaded: the queue goes on in memory
            log.error("the list of downloads is not kept: %s", error)

    def _staging(self, record: Record) -> Staging:
        folder = Path(record.folder) if record.folder else None
        return Staging(record.task.repo_id, cache=self._cache, folder=folder)

    def _start_next(self) -> None:
        for record in list(self._records.values()):
            if self._closed or len(self._running) >= self._parallel:
                return
            # A cancelled process may take a moment to end, and a retry must not meet it.
            if record.task.state == "queued" and record.task.id not in self._running:
                self._start(record)

    def _start(self, record: Record) -> None:
        job = Job(
            repo_id=record.task.repo_id,
            cache=str(self._cache),
            folder=record.folder,
            endpoint=self._endpoint,
            token=self._token,
            policy=self._policy,
        )
        try:
            running = _Running(WorkerProcess(job))
        except OSError as error:  # no memory, no more processes
            self._fail(record, TaskError(kind="other", message=f"no process could be started: {error}", remedy="retry"))
            return
        self._running[record.task.id] = running
        self._put(record.but(state="downloading"))
        self._save()
        thread = threading.Thread(
            target=self._follow, args=(record.task.id, running), name=f"download-{record.task.repo_id}", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _fail(self, record: Record, error: TaskError) -> None:
        log.warning("download of %s failed: %s", record.task.repo_id, error)
        self._put(record.but(state="failed", error=error, rate=0.0, seconds_left=None))
        self._save()

    # A running task, in its own thread.

    def _follow(self, id: str, running: _Running) -> None:
        try:
            for message in running.process.messages():
                with self._lock:
                    self._hear(id, running, message)
        finally:
            completed = self._ended(id, running)
        if completed is not None:
            try:
                self._finished(completed)
            except Exception:
                log.exception("after the download of %s", completed)

    def _ended(self, id: str, running: _Running) -> str | None:
        """The process is gone. Returns the repository where it is complete."""
        with self._lock:
            del self._running[id]
            self._threads.discard(threading.current_thread())
            record = self._records.get(id)
            if record and record.task.state == "downloading" and not self._closed:
                error = TaskError(kind="other", message=running.process.last_words(), remedy="retry")
                self._fail(record, error)
            self._start_next()
            return record.task.repo_id if record and record.task.state == "completed" else None

    def _hear(self, id: str, running: _Running, message: dict[str, Any]) -> None:
        record = self._records.get(id)
        if record is None or record.task.state != "downloading":  # cancelled meanwhile
            return
        match message["event"]:
            case "progress":
                self._progress(record, running, message)
            case "plan":
                running.rate.start(message["done"])
                self._put(record.but(total_bytes=message["total"], done_bytes=message["done"], error=None))
                self._save()
            case "note":
                log.warning("download of %s: %s", record.task.repo_id, message["note"])
                self._put(record.but(note=message["note"]))
            case "config":
                running.config = message["config"]
                self._pair(record, message["config"])
            case "error":
                self._fail(record, TaskError(**message["error"]))
            case "done":
                done = record.task.total_bytes or record.task.done_bytes
                changes = {"done_bytes": done, "rate": 0.0, "seconds_left": 0.0, "error": None}
                self._put(record.but(state="completed", path=message["path"], **changes))
                self._save()

    def _progress(self, record: Record, running: _Running, message: dict[str, Any]) -> None:
        done, rate = message["done"], running.rate.tell(message["done"])
        left = (record.task.total_bytes - done) / rate if record.task.total_bytes is not None and rate > 0 else None
        error = TaskError(**message["waiting"]) if message["waiting"] else None
        changed = record.but(done_bytes=done, rate=rate, seconds_left=left, error=error)
        if changed == record:
            return
        now = time.monotonic()
        if now - running.told < _PUBLISH_INTERVAL * 0.9:  # the worker keeps the interval, but pipes bunch
            self._records[record.task.id] = changed
            return
        running.told = now
        self._put(changed)

    def _pair(self, record: Record, config: dict[str, Any]) -> None:
        """The drafter of a model whose config has come goes next into the queue."""
        if not record.with_drafter:
            return
        record = replace(record, with_drafter=False)
        if is_drafter(config):
            self._put(record)
            return self._save()
        drafter = drafters.of_config(config, record.task.repo_id)
        if drafter is None:
            note = f"no drafter is published for {record.task.repo_id} that is known here: it was downloaded alone"
            self._put(record.but(note=note))
        else:
            self._put(record)
            self._move_behind(self._add(drafter), record)
        self._save()

    def _move_behind(self, record: Record, other: Record) -> None:
        """The order of the queue is that of the records."""
        if record.task.state == "queued":
            order = [r for r in self._records.values() if r.task.id != record.task.id]
            place = next(i for i, r in enumerate(order) if r.task.id == other.task.id) + 1
            self._records = {r.task.id: r for r in [*order[:place], record, *order[place:]]}


def _interrupted(record: Record) -> Record:
    """A record as it is after a restart: what had not ended is queued again."""
    if record.task.ended:
        return record
    if record.task.state == "queued":
        return record.but(error=None)
    return record.but(state="queued", error=None, rate=0.0, seconds_left=None, note="interrupted: it is resumed")


def _address(endpoint: str | None) -> str | None:
    return endpoint.rstrip("/") or None if endpoint else None


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()
