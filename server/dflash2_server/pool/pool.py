"""The pairs that are loaded: load with room made for them, serve, unload in order, unload what nobody uses.

All of it runs on one event loop; models are loaded on the engine's thread, one at a time, while running answers go on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx

from dflash2_mlx.engine.worker import Engine
from dflash2_mlx.errors import EngineBusy, ModelNotFound, RequestError
from dflash2_mlx.pairs import Pair, Progress
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.management import Estimate, Unloaded
from dflash2_server.pool.entry import Entry, LoadCancelled
from dflash2_server.pool.plan import LoadPlan, cache_limits
from dflash2_server.served import ServedPair

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS = 0.02  # between two looks whether the requests of a model have ended
_PROGRESS_SECONDS = 0.1  # between two events of a load

Publish = Callable[[str, Mapping[str, Any]], object]


class Pool:
    """Entries by model id. `publish` is told of every change of state ("model") and of progress ("load")."""

    def __init__(self, engine: Engine, settings: ServerSettings, publish: Publish = lambda kind, data: None) -> None:
        self.engine = engine
        self.settings = settings
        self._publish = publish
        self._entries: dict[str, Entry] = {}
        self.quiet = asyncio.Lock()  # held while a model is loaded: one at a time

    def entry(self, model_id: str) -> Entry:
        return self._entries.setdefault(model_id, Entry(model_id))

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def ready(self) -> list[Entry]:
        """What is loaded, the most recently used first."""
        return sorted(
            (entry for entry in self._entries.values() if entry.state == "ready"), key=lambda entry: -entry.last_used
        )

    def requests(self, entry: Entry) -> int:
        """Running, waiting and coming ones."""
        return entry.coming + (len(self.engine.jobs(entry.pair)) if entry.pair is not None else 0)

    def is_idle(self, entry: Entry) -> bool:
        return entry.state == "ready" and self.requests(entry) + entry.awaited + entry.held == 0

    def not_planned(self, model_id: str, error: Exception) -> None:
        """Keep the reason why a load did not even begin."""
        entry = self.entry(model_id)
        if entry.state in ("unloaded", "failed"):
            entry.fails(error)
            self._tell(entry)

    def adopt(self, served: ServedPair, loaded_with: ModelSettings | None = None) -> Entry:
        """Take a pair that is loaded already."""
        entry = self.entry(served.name)
        entry.is_ready(served, loaded_with)
        return entry

    async def load(self, model_id: str, job: LoadJob) -> Entry:
        """Load, or join the load that is under way; whoever waits may leave. Raises what loading raises."""
        entry = self.entry(model_id)
        while entry.state == "unloading":
            await entry.settled.wait()
        if entry.state == "ready":
            return entry
        if entry.task is None:
            entry.stop.clear()
            entry.begins("waiting")
            self._tell(entry)
            entry.task = asyncio.create_task(self._load(entry, job))
            entry.task.add_done_callback(_noticed)
        await asyncio.shield(entry.task)
        return entry

    async def unload(self, entry: Entry) -> Unloaded:
        """Wait for its requests, new ones being held back, and free it. A load under way is stopped instead."""
        if entry.task is not None:
            return await self._stop(entry)
        if entry.state == "unloading":
            await entry.settled.wait()
            return Unloaded(before=mx.get_active_memory(), after=mx.get_active_memory())
        if entry.state != "ready":
            raise RequestError(f"{entry.id} is not loaded", param="model")
        self._closes(entry)
        try:
            while self.requests(entry) + entry.held:
                await asyncio.sleep(_POLL_SECONDS)
        except asyncio.CancelledError:
            self._stays(entry)
            raise
        return await self._free(entry)

    async def set_limits(self, entry: Entry, settings: ModelSettings) -> None:
        """Bring a change of the cache settings into force."""
        if entry.pair is not None:
            await self._set_limits(entry.pair, settings)

    async def unload_idle(self, idle_limit: Callable[[Entry], float | None]) -> None:
        """Unload what has been idle for longer than its limit, in seconds."""
        now = time.time()
        for entry in self.ready():
            limit = idle_limit(entry)
            if self.requests(entry) + entry.awaited + entry.held:
                entry.last_used = now
            elif limit is not None and now - entry.last_used >= limit:
                log.info("%s is unloaded: it was idle for %.0f s", entry.id, now - entry.last_used)
                await self.unload(entry)

    async def _load(self, entry: Entry, job: LoadJob) -> None:
        try:
            async with self.quiet:
                await self._make_room(entry, job)
                entry.begins("loading")
                self._tell(entry)
                served = await self._loaded(entry, job)
                entry.is_ready(served, job.settings)
        except BaseException as error:
            entry.fails(error)
            await self._collect_after(error)
            if not isinstance(error, LoadCancelled | asyncio.CancelledError):
                log.error("%s is not loaded: %s", entry.id, error)
            raise
        finally:
            entry.task = None
            self._tell(entry)

    async def _loaded(self, entry: Entry, job: LoadJob) -> ServedPair:
        """The pair with its limits. Where something fails after the load, what the engine knows of it is forgotten."""
        pair = await self._call(lambda: job.plan.run(self._progress(entry, job.progress)))
        try:
            served = await asyncio.to_thread(job.serve, pair)
            await self._set_limits(pair, job.settings)
            if entry.stop.is_set():
                raise LoadCancelled(f"the load of {entry.id} was stopped")
        except BaseException:
            await asyncio.wrap_future(self.engine.unload(pair))
            raise
        return served

    async def _collect_after(self, error: BaseException) -> None:
        """What a failed load has read is held by its frames, and would be counted as used by the next one."""
        traceback.clear_frames(error.__traceback__)
        with suppress(EngineBusy, asyncio.CancelledError):
            await self._call(_collected)

    async def _stop(self, entry: Entry) -> Unloaded:
        before = mx.get_active_memory()
        entry.stop.set()
        if entry.task is not None:
            await asyncio.wait([entry.task])
        if entry.state == "ready":  # it came too late to stop the load
            return await self.unload(entry)
        return Unloaded(before=before, after=await self._call(_collected))

    async def _make_room(self, entry: Entry, job: LoadJob) -> None:
        """Unload what was used least recently and is neither pinned nor busy, as far as it is needed."""
        while True:
            if entry.stop.is_set():
                raise LoadCancelled(f"the load of {entry.id} was stopped")
            estimate = job.estimate()
            most = self.settings.max_models
            crowded = most is not None and len(self.ready()) >= most
            if not crowded and (job.force or estimate.verdict != "does not fit"):
                return
            victim = next(iter(self.victims()), None)
            if victim is None or (not crowded and not self._would_help(estimate)):
                raise EngineBusy(_no_room(entry.id, estimate, most if crowded else None, self.ready()))
            log.info("%s is unloaded to make room for %s", victim.id, entry.id)
            self._closes(victim)
            await self._free(victim)

    def victims(self) -> list[Entry]:
        """What may be unloaded to make room, in that order."""
        return [entry for entry in reversed(self.ready()) if self.is_idle(entry) and not self.is_pinned(entry)]

    def gain(self, entry: Entry) -> int:
        """Bytes that unloading it gives back: weights and kept prefixes."""
        kept = self.engine.cache.figures_of(entry.pair).nbytes if entry.pair is not None else 0
        return entry.memory_bytes + kept

    def is_pinned(self, entry: Entry) -> bool:
        return entry.served is not None and entry.served.model_settings.is_pinned

    def _would_help(self, estimate: Estimate) -> bool:
        """Whether unloading all that may go would be enough."""
        gained = sum(map(self.gain, self.victims()))
        return estimate.available is not None and estimate.needed <= estimate.available + gained

    def _closes(self, entry: Entry) -> None:
        entry.begins("unloading")
        entry.settled.clear()
        self._tell(entry)

    async def _free(self, entry: Entry) -> Unloaded:
        """Forget the prefixes, then the weights; measured on the engine's thread, once nobody holds them."""
        pair = entry.pair
        assert pair is not None, "only what is loaded is freed"
        before = mx.get_active_memory()
        try:
            forgotten = self.engine.unload(pair)
        except EngineBusy:  # it stands still or is closing: nothing is freed
            self._stays(entry)
            raise
        entry.served = pair = None
        try:
            # Whoever waits may leave; what is forgotten by half would never be freed.
            await asyncio.shield(asyncio.wrap_future(forgotten))
            del forgotten
            after = await asyncio.shield(self._call(_collected))
        finally:
            entry.is_gone()
            self._tell(entry)
        return Unloaded(before=before, after=after)

    def _stays(self, entry: Entry) -> None:
        """It was to be unloaded, and is not."""
        entry.begins("ready")
        entry.settled.set()
        self._tell(entry)

    def _progress(self, entry: Entry, also: Progress | None) -> Progress:
        """Called on the engine's thread: tells, lets running requests go on, and stops a load that is not wanted."""
        told, other, since = 0.0, 0.0, time.monotonic()

        def progress(stage: str, share: float) -> None:
            nonlocal told, other, since
            if entry.stop.is_set():
                raise LoadCancelled(f"the load of {entry.id} was stopped")
            now = time.monotonic()
            changed = stage != entry.stage
            entry.stage, entry.share = stage, share
            if also is not None:
                also(stage, share)
            if changed or share >= 1 or now - told >= _PROGRESS_SECONDS:
                told = now
                self._publish("load", {"id": entry.id, "stage": stage, "share": share})
            if now - since >= other:  # half of the time for those who run
                self.engine.let_others()
                since = time.monotonic()
                other = since - now

        return progress

    async def _set_limits(self, pair: Pair, settings: ModelSettings) -> None:
        await self._call(lambda: self.engine.cache.set_limits(pair, cache_limits(settings)))

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self.engine.call(function))

    def _tell(self, entry: Entry) -> None:
        self._publish("model", {"id": entry.id, "state": entry.state, "error": entry.error})


@dataclass(frozen=True, kw_only=True)
class LoadJob:
    """What the pool has to know to load a model with its `settings`. `force`: also where the estimate is too much."""

    plan: LoadPlan
    settings: ModelSettings
    estimate: Callable[[], Estimate]
    serve: Callable[[Pair], ServedPair]
    force: bool = False
    progress: Progress | None = None


def _collected() -> int:
    """Bytes that are still held once what nobody refers to is gone."""
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def _noticed(task: asyncio.Task[None]) -> None:
    """An error that nobody waits for any more is in the entry."""
    if not task.cancelled():
        task.exception()


def _no_room(name: str, estimate: Estimate, most: int | None, ready: list[Entry]) -> str:
    holders = ", ".join(entry.id for entry in ready)
    held = f"; loaded and pinned or busy are {holders}: unload one" if holders else ""
    if most is not None:
        return f"{name} is not loaded: {most} models may be loaded at once (max_models){held}"
    available = (estimate.available or 0) / 1e9
    return (
        f"{name} does not fit: it needs {estimate.needed / 1e9:.2f} GB "
        f"(target {estimate.target_bytes / 1e9:.2f}, drafter {estimate.drafter_bytes / 1e9:.2f}, "
        f"caches {estimate.cache_bytes / 1e9:.2f}), and {available:.2f} GB are available{held}"
    )


def not_loaded(name: str) -> ModelNotFound:
    return ModelNotFound(f"{name} is not loaded, and load_on_request is off: load it in the model manager")
