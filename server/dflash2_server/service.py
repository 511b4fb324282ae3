"""The service behind the routes: one engine, the pair it serves, and one thread for templates and tokenizers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from dflash2_mlx.engine.worker import CLOSING, Engine, EngineOptions
from dflash2_mlx.errors import EngineBusy, ModelNotFound
from dflash2_mlx.pairs import Pair, Progress, load
from dflash2_mlx.settings import ServerSettings
from dflash2_server.answer import RunningAnswer
from dflash2_server.inference import Inference, ModelInfo
from dflash2_server.metrics import metrics_text
from dflash2_server.served import ServedPair

T = TypeVar("T")

ANY_NAME = "*"


class EngineService:
    """`inference.Service` on a running engine. Close it once."""

    def __init__(self, engine: Engine, pair: Pair, settings: ServerSettings) -> None:
        self.engine = engine
        self.served = ServedPair(pair, settings)
        self._aliases = settings.alias
        # Tokenizers encode with settings of their own object: one thread at a time, and never the event loop's.
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._coming = 0  # requests on their way through that thread

    async def submit(self, inference: Inference) -> RunningAnswer:
        """See `inference.Service`."""
        self.model(inference.model)
        self.engine.check_room(self._coming)
        loop = asyncio.get_running_loop()
        self._coming += 1
        try:
            prepared = await self._aside(lambda: self.served.prepare(inference, loop, self._later))
        finally:
            self._coming -= 1
        prepared.answer.cancel = lambda enough: self.engine.cancel(prepared.job, enough=enough)
        self.engine.submit(prepared.job)
        return prepared.answer

    async def count(self, inference: Inference) -> int:
        """See `inference.Service`."""
        self.model(inference.model)
        return len((await self._aside(lambda: self.served.prompt(inference))).ids)

    def models(self) -> list[ModelInfo]:
        return [self.served.info]

    def model(self, name: str | None) -> ModelInfo:
        """See `inference.Service`."""
        info = self.served.info
        names = (None, info.id, self.served.pair.model_name, *self._aliases)
        if name in names or ANY_NAME in self._aliases:
            return info
        raise ModelNotFound(f"no model {name!r} is served: use {info.id!r}, or start the server with --alias {name}")

    def token_text(self, token: int) -> str:
        return self.served.token_text(token)

    def readiness(self) -> tuple[bool, str]:
        return self.engine.readiness()

    def metrics(self) -> str:
        return metrics_text(self.engine, self.served.name)

    def close(self) -> None:
        """End what runs with an error event, and the threads."""
        self.engine.close()
        self._text_thread.shutdown(wait=False, cancel_futures=True)

    async def _aside(self, function: Callable[[], T]) -> T:
        try:
            waiting = self._text_thread.submit(function)
        except RuntimeError:  # the thread has been shut down
            raise EngineBusy(CLOSING) from None
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


def open_service(settings: ServerSettings, progress: Progress | None = None) -> EngineService:
    """Start an engine and load the settings' pair on its thread. Raises what `load` raises."""
    engine = Engine(
        EngineOptions(
            max_active=settings.max_active,
            max_queue=settings.max_queue,
            cache_bytes=settings.cache_bytes,
            memory_limit=settings.memory_limit,
            snapshot_every=settings.snapshot_every,
            watchdog_seconds=settings.watchdog_seconds,
        )
    )
    engine.start()
    try:
        pair = engine.call(lambda: _load(settings, progress)).result()
        return EngineService(engine, pair, settings)
    except BaseException:
        engine.close()
        raise


def _load(settings: ServerSettings, progress: Progress | None) -> Pair:
    return load(
        settings.model,
        settings.drafter,
        quantize=settings.quantize,
        dtype=settings.dtype,
        allow_fallback=settings.allow_fallback,
        progress=progress,
    )
