"""The one thread that owns MLX: it loads, and it serves requests that take turns.

A turn is one chunk of a prompt or one cycle. Up to `max_active` requests are served at once, and the next turn is that
of the one that was served least; the others wait in order of arrival. A watchdog ends everything when one turn does
not come back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from ..decode.generate import TokenStep
from ..errors import EngineBusy, QueueFull
from ..pairs import Pair
from .job import Job
from .prefix_cache import PrefixCache
from .totals import Totals

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Most requests served at once and waiting, bytes of prefix cache, tokens between snapshots, seconds of a turn.

    `watchdog_seconds` 0 turns the watchdog off.
    """

    max_active: int = 4
    max_queue: int = 64
    cache_bytes: int = 8 << 30
    snapshot_every: int = 4096
    watchdog_seconds: float = 300.0


class Engine:
    """Start it, submit jobs from any thread, close it."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.cache = PrefixCache(self.options.cache_bytes)
        self.totals = Totals()
        self._calls: deque[Callable[[], None]] = deque()
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        self._closing = False
        self._turn_since: float | None = None
        self._stalled = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self.options.watchdog_seconds:
            self._watchdog.start()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the thread, before the next turn: loading and unloading."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        with self._changed:
            self._refuse_when_busy()
            self._calls.append(run)
            self._changed.notify_all()
        return future

    def submit(self, job: Job) -> None:
        """Queue a job. Raises QueueFull, or EngineBusy when the engine is closing or stands still."""
        with self._changed:
            self._refuse_when_busy()
            if len(self._waiting) >= self.options.max_queue:
                self.totals.refused += 1
                raise QueueFull(
                    f"{len(self._waiting)} requests wait already, as many as may (--max-queue)",
                    retry_after=self.totals.retry_after(),
                )
            self._waiting.append(job)
            self.totals.requests += 1
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """End a job: a waiting one at once, a running one after its chunk or cycle. What it has computed is kept."""
        job.cancelled.set()
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
            self.totals.count(job)
        job.listener.step(TokenStep([], 0, "cancelled", None, job.stats))
        job.end()

    def close(self, timeout: float = 30.0) -> None:
        """Take nothing more, end what is there with an error, and wait for the turn that runs."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            jobs = [*self._waiting, *self._active]
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            job.end(EngineBusy("the server is shutting down"))
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def load(self) -> tuple[int, int]:
        """How many requests are being served and how many wait."""
        with self._changed:
            return len(self._active), len(self._waiting)

    def readiness(self) -> tuple[bool, str]:
        """Whether requests are served, and the state in a word or the reason."""
        if self._closing:
            return False, "the server is shutting down"
        if self._stalled:
            return False, self._standstill()
        if not self._thread.is_alive():
            return False, "the engine's thread has ended"
        return True, "ready"

    def unload(self, pair: Pair) -> Future[None]:
        """Forget what is cached of a pair and give its memory back, once nobody else holds it."""

        def forget() -> None:
            self.cache.drop(pair)
            mx.clear_cache()

        return self.call(forget)

    def _refuse_when_busy(self) -> None:
        if self._closing:
            raise EngineBusy("the server is shutting down")
        if self._stalled:
            raise EngineBusy(self._standstill())

    def _standstill(self) -> str:
        return f"the engine stands still: one turn has not come back for {self.options.watchdog_seconds:g} s"

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
        for job in self._active:
            job.close()

    def _next(self) -> Callable[[], None] | None:
        """The next piece of work; waits for one. None: the engine is closed."""
        with self._changed:
            while True:
                if self._closing:
                    return None
                if self._calls:
                    return self._calls.popleft()
                self._admit()
                if self._active:
                    job = min(self._active, key=lambda job: job.served)
                    return lambda: self._turn(job)
                self._changed.wait()

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self.options.max_active:
            job = self._waiting.popleft()
            # Neither ahead of those that run nor behind them.
            job.served = min((other.served for other in self._active), default=0.0)
            self._active.append(job)

    def _turn(self, job: Job) -> None:
        begin = time.monotonic()
        self._turn_since = begin
        goes_on = not job.ended and job.turn(self.cache, self.options.snapshot_every)
        self._turn_since = None
        if self._stalled:
            log.warning("the engine goes on: a turn came back after %.0f s", time.monotonic() - begin)
            self._stalled = False
        job.served += time.monotonic() - begin
        if not goes_on:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        job.close()
        with self._changed:
            self._active.remove(job)
            self.totals.count(job)
        mx.clear_cache()
        job.end(job.error)

    def _watch(self) -> None:
        while not self._closing:
            time.sleep(min(1.0, self.options.watchdog_seconds / 4))
            since = self._turn_since
            if since is not None and not self._stalled and time.monotonic() - since > self.options.watchdog_seconds:
                self._stalled = True
                log.error("%s", self._standstill())
                with self._changed:
                    jobs = [*self._waiting, *self._active]
                    self._waiting.clear()
                for job in jobs:
                    job.end(EngineBusy(self._standstill()))
