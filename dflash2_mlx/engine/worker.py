"""The one thread that owns MLX: it loads, and it serves requests that take turns.

A turn is one chunk of a prompt or one cycle. Up to `max_active` requests are served at once, and the next turn is that
of the one that was served least; the others wait in order of arrival. A watchdog ends everything when one turn does
not come back.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx

from ..decode.generate import TokenStep
from ..errors import EngineBusy, QueueFull
from ..pairs import Pair
from .job import Job
from .memory import Memory
from .prefix_cache import PrefixCache
from .totals import Totals

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSING = "the server is shutting down"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Most requests served at once and waiting, bytes of prefix cache, tokens between snapshots, seconds of a turn.

    `watchdog_seconds` 0 turns the watchdog off; `memory_limit` None is the device's; `ssd_folder` is where pairs whose
    limits allow it keep prefixes on disk.
    """

    max_active: int = 4
    max_queue: int = 64
    cache_bytes: int = 8 << 30
    memory_limit: int | None = None
    ssd_folder: Path | None = None
    snapshot_every: int = 4096
    watchdog_seconds: float = 300.0


class Engine:
    """Start it, submit jobs from any thread, close it."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.memory = Memory(self.options.memory_limit)
        self.cache = PrefixCache(self.options.cache_bytes, self.options.ssd_folder, memory_limit=self.memory.limit)
        self.totals = Totals()
        self._by_pair: dict[int, tuple[Pair, Totals]] = {}  # by id; the pair is kept, so that its id is no other's
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        self._closing = False
        self._turn_since: float | None = None
        self._stalled = False
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self.options.watchdog_seconds:
            self._watchdog.start()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the thread, before the next turn: loading and unloading."""
        future: Future[T] = Future()
        with self._changed:
            self._refuse_when_busy()
            self._calls.append((future, function))
            self._changed.notify_all()
        return future

    def submit(self, job: Job) -> None:
        """Queue a job. Raises QueueFull, or EngineBusy when the engine is closing or stands still."""
        with self._changed:
            self._refuse_when_full(0)
            self._waiting.append(job)
            for totals in (self.totals, self._totals_of(job.pair)):
                totals.requests += 1
            self._changed.notify_all()

    def check_room(self, coming: int) -> None:
        """Raise as `submit` would, where `coming` jobs are on their way to it."""
        with self._changed:
            self._refuse_when_full(coming)

    def cancel(self, job: Job, *, enough: bool = False) -> None:
        """End a job: a waiting one at once, a running one after its chunk or cycle. What it has computed is kept.

        With `enough` it counts as one that has stopped by itself.
        """
        job.enough = enough
        job.cancelled.set()
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
            self._count(job)
        job.listener.step(TokenStep([], 0, "cancelled", None, job.stats))
        job.end()

    def close(self, timeout: float = 30.0) -> None:
        """Take nothing more, end what is there with an error, and wait for the turn that runs."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            jobs = self._give_up()
            self._changed.notify_all()
        for job in jobs:
            job.end(EngineBusy(CLOSING))
        self._closed.set()
        for thread in (self._thread, self._watchdog):
            if thread.is_alive():
                thread.join(timeout)

    @property
    def load(self) -> tuple[int, int]:
        """How many requests are being served and how many wait."""
        with self._changed:
            return len(self._active), len(self._waiting)

    def jobs(self, pair: Pair | None = None) -> list[Job]:
        """The requests that are served, then those that wait; of one pair, or all."""
        with self._changed:
            jobs = [*self._active, *self._waiting]
        return [job for job in jobs if pair is None or job.pair is pair]

    def totals_of(self, pair: Pair) -> Totals:
        """Counts over the ended requests of one pair."""
        with self._changed:
            return self._totals_of(pair)

    def sums(self, pair: Pair | None = None) -> Totals:
        """Counts over ended and running requests together, each once; of one pair, or all."""
        with self._changed:
            total = copy.copy(self.totals if pair is None else self._totals_of(pair))  # sums make new lists
            for job in self._active:
                if pair is None or job.pair is pair:
                    total.add(job.stats)
        return total

    def let_others(self) -> None:
        """Within a call that takes long, on the engine's thread: the calls that wait, and a turn of whoever runs.

        Raises EngineBusy when the engine is closing.
        """
        with self._changed:
            if self._closing:
                raise EngineBusy(CLOSING)
            work = [partial(_fulfil, *call) for call in self._calls]
            self._calls.clear()
            self._admit()
            job = self._next_job()
        if job is not None:
            work.append(partial(self._turn, job))
        for one in work:
            self._do(one)

    def readiness(self) -> tuple[bool, str]:
        """Whether requests are served, and the state in a word or the reason."""
        try:
            self._refuse_when_busy()
        except EngineBusy as reason:
            return False, str(reason)
        return True, "ready"

    def unload(self, pair: Pair) -> Future[None]:
        """Forget what is cached of a pair and give its memory back, once nobody else holds it."""

        def forget() -> None:
            self.cache.drop(pair)
            self.memory.drop(pair)
            with self._changed:
                self._by_pair.pop(id(pair), None)
            mx.clear_cache()

        return self.call(forget)

    def _totals_of(self, pair: Pair) -> Totals:
        return self._by_pair.setdefault(id(pair), (pair, Totals()))[1]

    def _count(self, job: Job) -> None:
        """Under the lock."""
        self.totals.count(job)
        self._totals_of(job.pair).count(job)

    def _refuse_when_busy(self) -> None:
        if self._closing:
            raise EngineBusy(CLOSING)
        if self._stalled:
            raise EngineBusy(self._standstill())
        if not self._thread.is_alive():
            raise EngineBusy("the engine does not run")

    def _refuse_when_full(self, coming: int) -> None:
        self._refuse_when_busy()
        waiting = len(self._waiting) + coming
        if waiting >= self.options.max_queue:
            self.totals.refused += 1
            raise QueueFull(
                f"{waiting} requests wait already, as many as may (--max-queue)",
                retry_after=self.totals.retry_after(),
            )

    def _standstill(self) -> str:
        return f"the engine stands still: one turn has not come back for {self.options.watchdog_seconds:g} s"

    def _give_up(self) -> list[Job]:
        """All jobs, for an error to each; those that wait are out. Under the lock."""
        waiting, active = list(self._waiting), list(self._active)
        self._waiting.clear()
        for job in (*waiting, *active):
            job.reason = "error"
        for job in waiting:
            self._count(job)
        return [*waiting, *active]

    def _run(self) -> None:
        while (work := self._next()) is not None:
            self._do(work)
            del work  # it holds the last job
        for job in list(self._active):
            self._finish(job)
        for future, _ in self._calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineBusy(CLOSING))
        self.cache.close()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("the engine goes on after a failure of its own")

    def _next(self) -> Callable[[], None] | None:
        """The next piece of work; waits for one. None: the engine is closed."""
        with self._changed:
            while True:
                if self._closing:
                    return None
                if self._calls:
                    return partial(_fulfil, *self._calls.popleft())
                self._admit()
                job = self._next_job()
                if job is not None:
                    return partial(self._turn, job)
                self._changed.wait()

    def _next_job(self) -> Job | None:
        return min(self._active, key=lambda job: job.served, default=None)

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self.options.max_active:
            job = self._waiting.popleft()
            # Neither ahead of those that run nor behind them.
            job.served = min((other.served for other in self._active), default=0.0)
            self._active.append(job)

    def _turn(self, job: Job) -> None:
        begin = time.monotonic()
        with self._changed:
            self._turn_since = begin
        try:
            goes_on = not job.ended and job.turn(self.cache, self.memory, self.options.snapshot_every)
        finally:
            took = time.monotonic() - begin
            with self._changed:
                self._turn_since = None
                if self._stalled:
                    log.warning("the engine goes on: a turn came back after %.0f s", took)
                self._stalled = False
        job.cost += took
        job.served += took
        if not goes_on:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        try:
            with self._changed:
                self._active.remove(job)
                self._count(job)
            job.close()
            mx.clear_cache()
        finally:
            job.end(job.error)

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self.options.watchdog_seconds / 4)):
            with self._changed:
                since = self._turn_since
                late = since is not None and time.monotonic() - since > self.options.watchdog_seconds
                if not late or self._stalled:
                    continue
                self._stalled = True
                jobs = self._give_up()
            log.error("%s", self._standstill())
            for job in jobs:
                job.end(EngineBusy(self._standstill()))


def _fulfil(future: Future[Any], function: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
