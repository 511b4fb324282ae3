"""Which models there are, by which names, and how each is loaded: library, saved settings and pool together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import mlx.core as mx

from dflash2_mlx.errors import DFlashError, ModelNotFound, RequestError
from dflash2_mlx.pairs import Pair, Progress
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import changed
from dflash2_mlx.settings.store import ModelSettingsStore
from dflash2_server.inference import ModelInfo
from dflash2_server.library.estimate import estimate
from dflash2_server.library.library import Library
from dflash2_server.library.models import DEMO, DEMO_DRAFTER, LocalModel
from dflash2_server.management import Estimate
from dflash2_server.pool.entry import Entry
from dflash2_server.pool.plan import automatic, drafter_name, plan_of, started_with
from dflash2_server.pool.pool import LoadJob, Pool, not_loaded
from dflash2_server.served import ServedPair, model_id

ANY_NAME = "*"
_FREE_MEMORY_SECONDS = 1.0


class Catalog:
    """`service.Models` over what is on disk. `started` is the id of the model that `serve --model` names."""

    def __init__(self, library: Library, store: ModelSettingsStore, pool: Pool) -> None:
        self.library, self.store, self.pool = library, store, pool
        self.started: str | None = None
        self.has_started = False  # from then on what is saved decides, nothing saved included
        self._created = int(time.time())
        self._asked: tuple[float, int | None] | None = None  # when, and the machine's free memory then

    @property
    def server(self) -> ServerSettings:
        return self.pool.settings

    def find(self, name: str | None) -> LocalModel:
        """By id, repository id or alias; None is the default model. Raises ModelNotFound, for a drafter too."""
        found = self.default() if name is None else self._named(name)
        if found.kind == "drafter":
            raise ModelNotFound(f"{found.id} is a drafter, no chat model: it is set as the Draft model of its target")
        return found

    def any(self, name: str) -> LocalModel:
        """As `find`, drafters too. An alias never stands for what is on disk under that very name."""
        try:
            return self.library.get(name)
        except ModelNotFound:
            aliased = [key for key, mine in self.store.all().items() if mine.model_alias == name]
            if not aliased:
                raise
            return self.library.get(aliased[0])

    def check_alias(self, model_id: str, alias: str) -> None:
        """Raises RequestError where an alias is the name of another model."""
        for local in self.library.models():
            if alias in (local.id, local.repo_id) and local.id != model_id:
                raise RequestError(
                    f"model_alias {alias!r} is the name of {local.id}: choose another", param="model_alias"
                )

    def default(self) -> LocalModel:
        """The one that is set as default, else the one of the start, else what was used last."""
        chosen = self.default_id()
        if chosen is None:
            raise ModelNotFound(
                "no model is loaded and none is the default: name one, or load one in the model manager"
            )
        return self.library.get(chosen)

    def default_id(self) -> str | None:
        names = [key for key, mine in self.store.all().items() if mine.is_default]
        known = {local.id for local in self.library.models() if local.kind == "model"}
        ready = [entry.id for entry in self.pool.ready()]
        return next((name for name in [*names, self.started, *ready] if name in known), None)

    @asynccontextmanager
    async def serving(self, name: str | None) -> AsyncIterator[ServedPair]:
        """See `service.Models`."""
        local = self.find(name)
        entry = self.pool.entry(local.id)
        expected = entry.reloading or entry.state in ("ready", "loading", "waiting")
        if not expected and not self.server.load_on_request:
            raise not_loaded(local.id)
        with ExitStack() as held:
            with entry.waited_for():
                while entry.state != "ready":
                    await self.pool.load(local.id, self.job(local))
                served = held.enter_context(entry.claimed())
            yield served

    def infos(self) -> list[ModelInfo]:
        """Loaded ones first; those that are hidden are left out."""
        ready = [entry for entry in self.pool.ready() if entry.served and not entry.served.model_settings.is_hidden]
        loaded = {entry.id for entry in ready}
        others = [self._unloaded(local) for local in self.library.models() if self._is_offered(local, loaded)]
        return [self._loaded(entry) for entry in ready if entry.served] + others

    def info(self, name: str | None) -> ModelInfo:
        """See `service.Models`."""
        local = self.find(name)
        entry = self.pool.entry(local.id)
        return self._loaded(entry) if entry.served is not None else self._unloaded(local)

    def automatic_drafter(self, local: LocalModel) -> str | None:
        """The drafter that a model gets where none is named; None where that is not to be told."""
        try:
            return automatic(local, self.library)
        except DFlashError:
            return None

    def estimate(self, local: LocalModel, changes: Mapping[str, Any] | None = None) -> Estimate:
        """What a load would take now. Raises RequestError for wrong `changes`."""
        mine = changed(self.store.get(local.id), changes or {})
        try:
            name = drafter_name(local, mine, self.library)
            drafter = self.library.get(DEMO_DRAFTER if name == DEMO else name) if name else None
        except DFlashError:  # the load will tell
            drafter = None
        return estimate(
            local,
            drafter,
            spec=mine.draft_quant if drafter else None,
            context=mine.max_context_window,
            cache_limit=min(mine.dflash_in_memory_cache_max_bytes, self.server.cache_bytes)
            if mine.dflash_in_memory_cache
            else 0,
            available=self.available(),
            dtype=self.server.dtype,
        )

    def available(self) -> int:
        """Bytes that are left for a load: of MLX's limit, and of the machine's memory."""
        left = self.pool.engine.memory.limit - mx.get_active_memory()
        free = self._free_memory()
        return max(0, left if free is None else min(left, free + mx.get_cache_memory()))

    def _free_memory(self) -> int | None:
        """Of the machine, at most a second old: on some it takes a process to ask, and pages ask for every model."""
        from dflash2_mlx.machine import memory

        now = time.monotonic()
        if self._asked is None or now - self._asked[0] > _FREE_MEMORY_SECONDS:
            self._asked = now, memory().available
        return self._asked[1]

    def job(self, local: LocalModel, *, force: bool = False, progress: Progress | None = None) -> LoadJob:
        """How the pool loads a model: by what is saved, and by the flags for the model of the start."""
        mine = self.store.get(local.id)
        is_started = local.id == self.started
        saved = local.id in self.store.all()

        def serve(pair: Pair) -> ServedPair:
            names = [local.repo_id] if local.repo_id else []
            drafters = [one.id for one in self.library.models() if one.kind == "drafter" and _is_its(one, pair)]
            drafter = drafters[0] if drafters else None
            return ServedPair(pair, self.server, name=local.id, model_settings=mine, names=names, drafter=drafter)

        def fresh_estimate() -> Estimate:
            self._asked = None  # another model may just have been unloaded
            return self.estimate(local)

        plan = plan_of(local, mine, self.server, self.library)
        if is_started:
            plan = started_with(plan, self.server, saved=saved or self.has_started)
        return LoadJob(plan=plan, settings=mine, estimate=fresh_estimate, serve=serve, force=force, progress=progress)

    def _named(self, name: str) -> LocalModel:
        try:
            return self.any(name)
        except ModelNotFound:
            if name in self.server.alias or ANY_NAME in self.server.alias:
                return self.default()
            raise

    def _is_offered(self, local: LocalModel, loaded: set[str]) -> bool:
        usable = local.kind == "model" and local.problem is None and local.id not in loaded
        return usable and self.server.load_on_request and not self.store.get(local.id).is_hidden

    def _loaded(self, entry: Entry) -> ModelInfo:
        assert entry.served is not None, "it is loaded"
        return entry.served.info

    def _unloaded(self, local: LocalModel) -> ModelInfo:
        mine = self.store.get(local.id)
        drafter = mine.dflash_draft_model if mine.dflash_enabled else None
        return ModelInfo(
            id=local.id,
            created=self._created,
            context_length=mine.max_context_window or self.server.context_length or local.context_length,
            engine="not loaded",
            block_size=1,
            drafter=model_id(drafter) if drafter else None,
            fallback_reason=None,
            aliases=(mine.model_alias,) if mine.model_alias else (),
            loaded=False,
        )


def _is_its(drafter: LocalModel, pair: Pair) -> bool:
    """Whether a pair was loaded with that drafter, named by folder or repository."""
    return pair.drafter_name is not None and pair.drafter_name in (drafter.load_name, drafter.repo_id)
