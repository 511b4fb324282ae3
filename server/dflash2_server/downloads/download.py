"""One repository from the Hub to its place: list, check the disk, fetch, check, place. Failures are waited out or told.

It runs in a process of its own (worker.py), or in a test's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from dflash2_mlx.hub import FILES

from . import hub
from .faults import Damaged, Failure, classify, failure, refuses_token
from .hub import Access, RemoteFile, Repository
from .job import Job, Policy
from .staging import Staging
from .task import TaskError
from .transfer import Stopped, transfer

_LEAVE = 1.0  # seconds for the other files' threads to see that one has failed; a silent connection takes longer

T = TypeVar("T")
Report = Callable[[dict[str, Any]], None]


class Meter:
    """What is done so far, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._waiting: TaskError | None = None

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._waiting = None

    def wait(self, error: TaskError | None) -> None:
        with self._lock:
            self._waiting = error

    def reading(self) -> dict[str, Any]:
        with self._lock:
            return {"done": self._done, "waiting": asdict(self._waiting) if self._waiting else None}


class Patience:
    """Failures in a row, of one file or one question; each is waited out longer, until there were too many."""

    def __init__(self, policy: Policy, meter: Meter, stop: threading.Event) -> None:
        self._policy = policy
        self._meter = meter
        self._stop = stop
        self._failures = 0

    def forget(self) -> None:
        """Something came since."""
        self._failures = 0

    def bear(self, error: Failure) -> None:
        """Wait as long as it takes. Raises the failure where no further try is to be made."""
        self._failures += 1
        seconds = self._policy.backoff * 2 ** (self._failures - 1) if error.wait is None else error.wait
        if not error.transient or self._failures > self._policy.retries or seconds > self._policy.longest_wait:
            raise error
        self._meter.wait(error.error)
        if self._stop.wait(seconds):
            raise Stopped


class Download:
    """A job while it runs. `report` gets messages: note, plan, config. `room` tells the free bytes, for tests."""

    def __init__(self, job: Job, report: Report, *, room: Callable[[], int] | None = None) -> None:
        self._job = job
        self._report = report
        self._access = Access(endpoint=job.endpoint, token=job.token)
        self._refused = False  # the token, by the Hub
        self._staging = Staging(job.repo_id, cache=Path(job.cache), folder=Path(job.folder) if job.folder else None)
        self._room = room or self._staging.room
        self._stop = threading.Event()
        self.meter = Meter()

    def run(self) -> Path:
        """The folder of the complete model. Raises Failure; what has come by then stays for the next run."""
        try:
            with self._staging.held():
                repository = self._persist(self._list)
                self._plan(repository)
                self._fetch_all(repository)
                path = self._persist(lambda: self._place(repository))
                self._staging.discard()
                return path
        except Failure:
            raise
        except OSError as error:
            raise self._classified(error) from error

    def _list(self) -> Repository:
        try:
            return hub.repository(self._access, self._job.repo_id)
        except HfHubHTTPError as error:
            if not (refuses_token(error) and self._access.sends_token):
                raise
        # A stale token is refused for public repositories too, which need none.
        self._access, self._refused = replace(self._access, token=False), True
        repository = hub.repository(self._access, self._job.repo_id)
        self._report({"event": "note", "note": "the Hub refused the token: downloaded without one; set a new token"})
        return repository

    def _plan(self, repository: Repository) -> None:
        present = self._staging.present(repository)
        self.meter.advance(present)
        files = len(repository.files)
        self._report({"event": "plan", "total": repository.size, "done": present, "files": files})
        needed, free = repository.size - present, self._room()
        if needed > free:
            raise failure(
                "disk full",
                f"{repository.id} needs {_gigabytes(needed)} more, and {_gigabytes(free)} are free",
                f"free at least {_gigabytes(needed - free)}, then retry",
            )

    def _fetch_all(self, repository: Repository) -> None:
        """The config first and alone, as it tells the drafter, then the rest on a few connections."""
        missing = [file for file in repository.files if not self._staging.has(file, repository.commit)]
        if missing and missing[0].path == "config.json":
            self._fetch(repository, missing.pop(0))
        self._tell_config(repository)
        pool = ThreadPoolExecutor(self._job.policy.connections)
        fetches: list[Future[None]] = []
        try:
            fetches = [pool.submit(self._fetch, repository, file) for file in _once(missing)]
            ended, _ = wait(fetches, return_when=FIRST_EXCEPTION)
            for fetch in ended:
                fetch.result()
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            wait(fetches, _LEAVE)
        self._stop.clear()

    def _fetch(self, repository: Repository, file: RemoteFile) -> None:
        patience = Patience(self._job.policy, self.meter, self._stop)
        part, again = self._staging.part(file), True
        while True:
            before = self._staging.partial_size(file)
            try:
                transfer(
                    self._access.url(repository.id, file.path, repository.commit),
                    self._access.headers(),
                    file,
                    part,
                    policy=self._job.policy,
                    advance=self.meter.advance,
                    stop=self._stop,
                )
                part.replace(self._staging.whole(file))
                return
            except Stopped:
                raise
            except Damaged as error:
                if not again:
                    raise self._classified(error, file) from error
                again = False
            except Exception as error:
                if self._staging.partial_size(file) > before:
                    patience.forget()
                patience.bear(self._classified(error, file))

    def _tell_config(self, repository: Repository) -> None:
        file = next(file for file in repository.files if file.path == "config.json")
        path = self._staging.found(file, repository.commit) or self._staging.whole(file)
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self._classified(Damaged(f"it is not valid JSON ({error})"), file) from error
        if not isinstance(config, dict):
            raise self._classified(Damaged(f"it holds {type(config).__name__}, not an object"), file)
        self._report({"event": "config", "config": config})

    def _place(self, repository: Repository) -> Path:
        if self._staging.target:
            return self._staging.assemble(repository)
        self._staging.fill_cache(repository)
        path = snapshot_download(
            repository.id,
            cache_dir=self._staging.cache,
            endpoint=self._access.endpoint,
            token=self._access.token,
            allow_patterns=FILES,
        )
        lacking = [file.path for file in repository.files if not (Path(path) / file.path).exists()]
        if lacking:  # it falls back to an older commit where it does not reach the Hub
            raise failure("offline", f"{repository.id}: the Hub did not answer at the end", "retry", transient=True)
        return Path(path)

    def _persist(self, action: Callable[[], T]) -> T:
        patience = Patience(self._job.policy, self.meter, self._stop)
        while True:
            try:
                return action()
            except Exception as error:
                patience.bear(self._classified(error))

    def _classified(self, error: Exception, file: RemoteFile | None = None) -> Failure:
        what = self._job.repo_id
        if file is not None and not isinstance(error, HfHubHTTPError):
            what = f"{file.path} of {what}, at byte {self._staging.partial_size(file)}"
        page = self._access.page(self._job.repo_id)
        return classify(error, what, page=page, token=self._access.sends_token, refused=self._refused)


def _once(files: list[RemoteFile]) -> list[RemoteFile]:
    """One of those with the same content: they have one name while they are gathered."""
    return list({file.checksum: file for file in files}.values())


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
