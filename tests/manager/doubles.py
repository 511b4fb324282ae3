"""A model manager in memory: the whole of `Management`, without MLX, disk and network.

`alive()` moves its figures and downloads each second; tests move them by `tick()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_mlx.errors import CheckpointError, EngineBusy, ModelNotFound, RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import ModelSettings
from dflash2_mlx.settings.server import SettingInForce
from dflash2_server.events import EventBus
from dflash2_server.logs import LogBuffer
from dflash2_server.management import (
    ActiveRequest,
    Estimate,
    LiveFigures,
    ModelView,
    PairFigures,
    Running,
    Saved,
    Unloaded,
)
from tests.manager import fake_catalog as catalog
from tests.manager.fake_downloads import FakeDownloads
from tests.manager.fake_figures import Figures
from tests.manager.fake_globals import FakeGlobals
from tests.manager.fake_service import FakeService
from tests.manager.fake_widths import Widths, exactness
from tests.manager.fake_work import FakeBenches, FakeQuantizations

log = logging.getLogger("dflash2_server.manager")
# What a load goes through: stage and share of it.
STEPS = (("target", 0.0), ("target", 0.4), ("target", 1.0), ("drafter", 0.0), ("drafter", 1.0), ("probe", 1.0))
EMBEDDED_DRAFTERS = {"demo": "demo-drafter"}


class FakeManager:
    """`dflash2_server.management.Management`.

    `step` is awaited between two steps of a load: a test gives one that waits, a demonstration sleeps
    (`step_seconds`). `failures` maps a model's id to what loading it raises. `available` is the memory that is free.
    """

    def __init__(self, settings: ServerSettings | None = None, *, step_seconds: float = 0.0) -> None:
        self.settings = settings or ServerSettings()
        self.events = EventBus(first=1)
        self.logs = LogBuffer(secrets=[key.get_secret_value() for key in self.settings.api_key])
        self.service: Any = FakeService(self)
        self.downloads: Any = FakeDownloads(self.events.publish, self._downloaded)
        self.benches = FakeBenches(self.events.publish, self.model)
        self.quantizations = FakeQuantizations(self.events.publish, self.model, self._downloaded)
        self.live = Figures()
        self.widths: dict[str, Widths] = {}  # by model
        self.globals = FakeGlobals(self.settings)
        self.step: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(step_seconds)
        self.failures: dict[str, Exception] = {catalog.DAMAGED: CheckpointError(catalog.LOAD_ERROR)}
        self.available = 20 * catalog.GIB
        self.refreshes = 0
        self._views = {view.id: view for view in catalog.views()}
        self._loads: dict[str, asyncio.Task[ModelView]] = {}
        self._memory = 0
        self._say_something()

    # what is there

    def models(self) -> list[ModelView]:
        def order(view: ModelView) -> tuple[bool, bool, str]:
            return view.kind == "drafter", not view.settings.is_favorite, view.id.casefold()

        return sorted(self._views.values(), key=order)

    def model(self, name: str) -> ModelView:
        for view in self._views.values():
            if name in (view.id, view.repo_id, view.settings.model_alias):
                return view
        raise ModelNotFound(f"no model {name!r} on disk: there are {', '.join(self._views)}")

    async def refresh(self) -> None:
        self.refreshes += 1

    def estimate(self, name: str, changes: Mapping[str, Any] | None = None) -> Estimate:
        view = self._loadable(name)
        settings = changed(view.settings, changes or {})
        drafter = self._drafter_of(view, settings)
        return catalog.estimate_of(
            replace(view, settings=settings), self._views.get(drafter or ""), self.available - self._memory
        )

    # loading and unloading

    async def load(self, name: str, *, force: bool = False) -> ModelView:
        view = self._loadable(name)
        if view.state == "ready":
            return view
        under_way = self._loads.get(view.id)
        if under_way is None:
            told = self.estimate(view.id)
            if told.verdict == "does not fit" and not force:
                raise EngineBusy(
                    f"{view.id} needs {told.needed} bytes and {told.available} are left: unload another model, "
                    "or load it anyway"
                )
            under_way = asyncio.ensure_future(self._load(view.id))
            self._loads[view.id] = under_way
        return await asyncio.shield(under_way)

    async def unload(self, name: str) -> Unloaded:
        view = self.model(name)
        if view.state != "ready" or view.running is None:
            raise RequestError(f"{view.id} is not loaded", param="model")
        self._put(view.id, state="unloading")
        await self.step()
        before, self._memory = self._memory, self._memory - view.running.memory_bytes
        del self.live.weights[view.id]
        self.live.pairs.pop(view.id, None)
        self.benches.model_gone(view.id)
        self.live.requests = [request for request in self.live.requests if request.model != view.id]
        self._put(view.id, state="unloaded", running=None, requires_reload=())
        log.info("%s unloaded: %.2f GB freed", view.id, (before - self._memory) / 1e9)
        return Unloaded(before=before, after=self._memory)

    # changing

    async def save_settings(self, name: str, changes: Mapping[str, Any]) -> Saved:
        view = self.model(name)
        after = changed(view.settings, changes)
        names = tuple(key for key in changes if getattr(after, key, None) != getattr(view.settings, key, None))
        waits = needs_reload(view.settings, after) if view.state == "ready" else ()
        pending = tuple(dict.fromkeys([*view.requires_reload, *waits]))
        busy = any(request.model == view.id for request in self.live.requests)
        self._put(view.id, settings=after, requires_reload=pending if busy else ())
        self.events.publish("settings", {"id": view.id, "changed": list(names)})
        log.info("settings of %s saved: %s", view.id, ", ".join(names) or "nothing changed")
        if view.running is not None and not waits:
            self._put(view.id, running=self._running(self._views[view.id], view.running.loaded_at))
        if not waits:
            return Saved(settings=after, changed=names, requires_reload=(), reload="none")
        if busy:
            return Saved(settings=after, changed=names, requires_reload=waits, reload="when idle")
        await self._reload(view.id)
        return Saved(settings=after, changed=names, requires_reload=(), reload="done")

    async def delete(self, name: str) -> int:
        view = self.model(name)
        if not view.deletable:
            raise RequestError(f"{view.id} is embedded: it cannot be deleted", param="model")
        if view.state != "unloaded" and view.state != "failed":
            raise RequestError(f"{view.id} is loaded: unload it first", param="model")
        del self._views[view.id]
        self.events.publish("removed", {"id": view.id})
        log.warning("%s deleted from disk", view.id)
        return view.size

    # what happens

    def activity(self) -> Sequence[ActiveRequest]:
        return list(self.live.requests)

    def figures(self) -> LiveFigures:
        return self.live.history[-1]

    def history(self) -> Sequence[LiveFigures]:
        return list(self.live.history)

    def global_settings(self) -> list[SettingInForce]:
        return self.globals.all()

    async def save_global_settings(self, changes: Mapping[str, Any]) -> list[SettingInForce]:
        self.globals.save(changes)
        self.events.publish("settings", {"id": None, "changed": list(changes)})
        return self.global_settings()

    # what tests and demonstrations do

    def busy(self, name: str, *, prompt_tokens: int = 3000, waiting: bool = False) -> ActiveRequest:
        """A request of a loaded model begins."""
        running = self.model(name).running
        return self.live.begin(
            name, running.engine if running else "plain", prompt_tokens=prompt_tokens, waiting=waiting
        )

    async def tick(self) -> None:
        """One second passes: figures, downloads, benches, quantise jobs, reloads that waited."""
        self.live.tick()
        self.downloads.tick()
        self.benches.tick()
        self.quantizations.tick()
        for view in list(self._views.values()):
            if view.running is not None:
                figures = self.live.pairs.get(view.id, PairFigures())
                mine = sum(request.model == view.id for request in self.live.requests)
                if view.id in self.widths:
                    self.widths[view.id].tick()
                running = replace(view.running, figures=figures, requests=mine, widths=self._widths(view.id))
                self._views[view.id] = replace(view, running=running)
                if view.requires_reload and not mine:
                    await self._reload(view.id)
        self.events.publish("figures", asdict(self.figures()))

    async def alive(self, *, seconds: float = 1.0) -> None:
        """Until cancelled: time passes, and now and then a request comes for what is loaded."""
        while True:
            loaded = [view.id for view in self._views.values() if view.state == "ready"]
            if loaded and len(self.live.requests) < 2:
                self.busy(loaded[int(time.time()) % len(loaded)], waiting=len(self.live.requests) == 1)
                log.info("a request of 3000 tokens came")
            await self.tick()
            await asyncio.sleep(seconds)

    # inside

    def _loadable(self, name: str) -> ModelView:
        view = self.model(name)
        if view.kind == "drafter":
            raise RequestError(f"{view.id} is a drafter: set it as Draft model of a model it fits", param="model")
        return view

    async def _load(self, name: str) -> ModelView:
        try:
            self._put(name, state="loading", error=None)
            for stage, share in STEPS:
                self._put(name, stage=stage, share=share)
                self.events.publish("load", {"id": name, "stage": stage, "share": share})
                await self.step()
                if name in self.failures and share > 0:
                    raise self.failures[name]
            running = self._running(self._views[name], time.time())
            self._memory += running.memory_bytes
            self.live.weights[name] = running.memory_bytes
            self._put(name, state="ready", stage=None, share=None, running=running, requires_reload=())
            log.info("%s loaded, engine %s, %.2f GB", name, running.engine, running.memory_bytes / 1e9)
            return self._views[name]
        except Exception as error:
            self._put(name, state="failed", stage=None, share=None, error=str(error))
            log.error("%s could not be loaded: %s", name, error)
            raise
        finally:
            self._loads.pop(name, None)

    async def _reload(self, name: str) -> None:
        await self.unload(name)
        await self.load(name, force=True)

    def _running(self, view: ModelView, loaded_at: float) -> Running:
        settings = view.settings
        drafter = self._drafter_of(view, settings)
        fit = next((fit for fit in view.drafters if fit.id == drafter), None)
        speculating = drafter is not None and fit is not None
        quantised = bool(settings.dflash_draft_quant_enabled)
        size = view.size + (self._views[drafter].size // (4 if quantised else 1) if speculating and drafter else 0)
        self.widths.pop(view.id, None)
        if fit is not None and speculating:
            self.widths[view.id] = Widths(fit.block_size)
        return Running(
            engine=fit.engine if fit is not None and speculating else "plain",
            state="active" if speculating else "off",
            reason=None,
            drafter=drafter if speculating else None,
            block_size=(settings.dflash_block_size or fit.block_size) if fit is not None and speculating else 1,
            verify_mode=settings.dflash_verify_mode or "adaptive" if speculating else "off",
            draft_quant=_spec(settings) if speculating and quantised else "off",
            context_length=view.context_length,
            loaded_at=loaded_at,
            last_used=time.time(),
            requests=0,
            memory_bytes=size,
            idle_seconds_left=float(settings.ttl_seconds) if settings.ttl_seconds else None,
            figures=self.live.pairs.get(view.id, PairFigures()),
            widths=self._widths(view.id),
            exactness=exactness(fit.block_size) if fit is not None and speculating else None,
        )

    def _widths(self, model: str) -> WidthFigures | None:
        return self.widths[model].figures() if model in self.widths else None

    def _drafter_of(self, view: ModelView, settings: ModelSettings) -> str | None:
        """The id of the drafter that is set, where it fits."""
        if not settings.dflash_enabled:
            return None
        wanted = EMBEDDED_DRAFTERS.get(settings.dflash_draft_model or "", settings.dflash_draft_model)
        for fit in view.drafters:
            if fit.fits and wanted in (None, fit.id, fit.repo_id):
                return fit.id
        raise RequestError(
            f"dflash_draft_model is {settings.dflash_draft_model!r}: no such drafter fits {view.id}",
            param="dflash_draft_model",
        )

    def _downloaded(self, repo_id: str, size: int) -> None:
        view = catalog.downloaded(repo_id, size)
        self._views[view.id] = view
        self.events.publish("model", {"id": view.id, "state": view.state})

    def _put(self, name: str, **changes: Any) -> None:
        self._views[name] = replace(self._views[name], **changes)
        if changes.keys() & {"state", "requires_reload"}:
            self.events.publish("model", {"id": name, "state": self._views[name].state})

    def _say_something(self) -> None:
        """A few lines for the page of the logs."""
        lines = ((logging.INFO, "5 models, 3 drafters in 2 folders"), (logging.WARNING, "2.1 GB of disk are left"))
        for level, text in lines:
            self.logs.handle(logging.LogRecord(log.name, level, __file__, 1, text, (), None))


def changed(settings: ModelSettings, changes: Mapping[str, Any]) -> ModelSettings:
    """As the real one does, where it is there."""
    from dflash2_mlx.settings import model

    real = getattr(model, "changed", None)
    if real is not None:
        result: ModelSettings = real(settings, changes)
        return result
    defaults = {name: field.default for name, field in ModelSettings.model_fields.items()}
    return settings.model_copy(update={k: defaults.get(k) if v is None else v for k, v in changes.items()})


def needs_reload(before: ModelSettings, after: ModelSettings) -> tuple[str, ...]:
    from dflash2_mlx.settings import model

    real = getattr(model, "needs_reload", None)
    if real is not None:
        return tuple(real(before, after))
    fields = ModelSettings.model_fields
    extra: Any = {name: field.json_schema_extra for name, field in fields.items()}
    return tuple(name for name in fields if extra[name]["reload"] and getattr(before, name) != getattr(after, name))


def _spec(settings: ModelSettings) -> str:
    bits = settings.dflash_draft_quant_weight_bits or 4
    activation = settings.dflash_draft_quant_activation_bits or 16
    return f"w{bits}a{activation}:gs{settings.dflash_draft_quant_group_size or 64}"


@contextlib.asynccontextmanager
async def living(manager: FakeManager, *, seconds: float = 1.0) -> Any:
    """The manager with time passing."""
    task = asyncio.ensure_future(manager.alive(seconds=seconds))
    try:
        yield manager
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
