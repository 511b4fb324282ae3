"""The service behind the routes: the engine, the loaded models, and one thread for templates and tokenizers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from dflash2_mlx.engine.worker import CLOSING, Engine, EngineOptions
from dflash2_mlx.errors import EngineBusy, ModelNotFound
from dflash2_mlx.pairs import Pair
from dflash2_mlx.settings import ServerSettings
from dflash2_server.answer import RunningAnswer
from dflash2_server.inference import Inference, ModelInfo
from dflash2_server.metrics import metrics_text
from dflash2_server.pool.entry import Entry
from dflash2_server.pool.pool import Pool
from dflash2_server.served import ServedPair

T = TypeVar("T")

ANY_NAME = "*"


class Models(Protocol):
    """Who knows the models: which there are, and how a name leads to a loaded one."""

    def serving(self, name: str | None) -> AbstractAsyncContextManager[ServedPair]:
        """A loaded model, loaded now where that is wanted; inside it is not unloaded.

        Raises ModelNotFound, and as loading does.
        """
        ...

    def infos(self) -> list[ModelInfo]: ...

    def info(self, name: str | None) -> ModelInfo:
        """By id, alias or other name; None is the default. Raises ModelNotFound."""
        ...


class EngineService:
    """`inference.Service` on a running engine. Close it once."""

    def __init__(self, engine: Engine, pool: Pool, models: Models) -> None:
        self.engine, self.pool = engine, pool
        self._models = models
        # Tokenizers encode with settings of their own object: one thread at a time, and never the event loop's.
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._coming = 0  # requests on their way to the engine

    async def submit(self, inference: Inference) -> RunningAnswer:
        """See `inference.Service`."""
        self._models.info(inference.model)
        self.engine.check_room(self._coming)
        self._coming += 1  # also while its model is loaded
        try:
            return await self._submit(inference)
        finally:
            self._coming -= 1

    async def _submit(self, inference: Inference) -> RunningAnswer:
        loop = asyncio.get_running_loop()
        async with self._models.serving(inference.model) as served:
            prepared = await self._aside(lambda: served.prepare(inference, loop, self._later))
            prepared.answer.cancel = lambda enough: self.engine.cancel(prepared.job, enough=enough)
            self.engine.submit(prepared.job)
        return prepared.answer

    async def count(self, inference: Inference) -> int:
        """See `inference.Service`."""
        async with self._models.serving(inference.model) as served:
            return len((await self._aside(lambda: served.prompt(inference))).ids)

    def models(self) -> list[ModelInfo]:
        return self._models.infos()

    def model(self, name: str | None) -> ModelInfo:
        """See `inference.Service`."""
        return self._models.info(name)

    def readiness(self) -> tuple[bool, str]:
        return self.engine.readiness()

    def metrics(self) -> str:
        return metrics_text(self.engine, [entry.served for entry in self.pool.ready() if entry.served is not None])

    def close(self) -> None:
        """End what runs with an error event, and the threads."""
        for entry in self.pool.entries():
            entry.stop.set()
        self.engine.close()
        self._text_thread.shutdown(wait=False, cancel_futures=True)

    def with_texts(self, function: Callable[[], T]) -> Future[T]:
        """Run what uses a loaded model's tokenizer on the thread for that. Raises EngineBusy once it is closed."""
        try:
            return self._text_thread.submit(function)
        except RuntimeError:  # the thread has been shut down
            raise EngineBusy(CLOSING) from None

    async def _aside(self, function: Callable[[], T]) -> T:
        waiting = self.with_texts(function)
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if waiting.cancelled() and not (task and task.cancelling()):
                raise EngineBusy(CLOSING) from None
            raise

    def _later(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the thread has been shut down
            self._text_thread.submit(function)


class OneModel:
    """`Models` with a single pair that stays loaded."""

    def __init__(self, entry: Entry, settings: ServerSettings) -> None:
        self._entry, self._settings = entry, settings

    @asynccontextmanager
    async def serving(self, name: str | None) -> AsyncIterator[ServedPair]:
        self.info(name)
        with self._entry.claimed() as served:
            yield served

    def infos(self) -> list[ModelInfo]:
        assert self._entry.served is not None, "it stays loaded"
        return [self._entry.served.info]

    def info(self, name: str | None) -> ModelInfo:
        assert self._entry.served is not None, "it stays loaded"
        aliases = self._settings.alias
        if name is None or name in (*self._entry.served.names, *aliases) or ANY_NAME in aliases:
            return self._entry.served.info
        raise ModelNotFound(
            f"no model {name!r} is served: use {self._entry.id!r}, or start the server with --alias {name}"
        )


def serve_pair(engine: Engine, pair: Pair, settings: ServerSettings) -> EngineService:
    """A service with one pair that is loaded already, and no model manager."""
    pool = Pool(engine, settings)
    return EngineService(engine, pool, OneModel(pool.adopt(ServedPair(pair, settings)), settings))


def start_engine(settings: ServerSettings) -> Engine:
    """An engine with the settings' limits, running. Close it."""
    engine = Engine(
        EngineOptions(
            max_active=settings.max_active,
            max_queue=settings.max_queue,
            cache_bytes=settings.cache_bytes,
            memory_limit=settings.memory_limit,
            ssd_folder=ssd_folder(settings),
            snapshot_every=settings.snapshot_every,
            watchdog_seconds=settings.watchdog_seconds,
        )
    )
    engine.start()
    return engine


def ssd_folder(settings: ServerSettings) -> Path:
    """Where models that have an SSD cache keep their prefixes."""
    from platformdirs import user_cache_path

    return settings.ssd_cache_folder or user_cache_path("dflash2-mlx", appauthor=False) / "prefixes"
