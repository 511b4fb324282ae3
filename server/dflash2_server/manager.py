"""The model manager: library, settings, downloads and pool behind `management.Management`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash2_mlx.engine import ssd_cache
from dflash2_mlx.errors import DFlashError, ModelNotFound, RequestError
from dflash2_mlx.pairs import Progress
from dflash2_mlx.settings import ServerSettings, read_settings
from dflash2_mlx.settings.model import changed, needs_reload
from dflash2_mlx.settings.server import (
    SettingInForce,
    default_file,
    server_settings_in_force,
    settings_with,
    write_server_settings,
)
from dflash2_mlx.settings.store import ModelSettingsStore
from dflash2_server.bench.jobs import Benches
from dflash2_server.bench.store import BenchStore
from dflash2_server.bench.watch import DOWNLOADED, LOADED
from dflash2_server.catalog import Catalog
from dflash2_server.downloads.queue import Downloads
from dflash2_server.events import EventBus
from dflash2_server.library.library import Library
from dflash2_server.logs import LogBuffer
from dflash2_server.management import ActiveRequest, Estimate, LiveFigures, ModelView, Saved, Unloaded
from dflash2_server.pairing_check import check_pairing
from dflash2_server.pool.entry import Entry
from dflash2_server.pool.figures import Sampler, active_request
from dflash2_server.pool.pool import Pool
from dflash2_server.quantize.jobs import QuantizeJobs
from dflash2_server.quantize.output import own_folder
from dflash2_server.service import EngineService, ssd_folder
from dflash2_server.views import idle_limit, pending, view_of

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_MOVING = ("loading", "waiting", "unloading")
_REFUSED_WHILE = ("ready", *_MOVING)


@dataclass(frozen=True)
class SettingsSource:
    """Where the server's settings came from: its flags, its environment, its file (None: the default one)."""

    args: Any
    environment: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None


class Manager:
    """`management.Management`. Start it on the event loop that serves, stop it there, then close its service."""

    def __init__(
        self,
        pool: Pool,
        library: Library,
        store: ModelSettingsStore,
        *,
        downloads: Downloads,
        events: EventBus,
        logs: LogBuffer,
        source: SettingsSource,
        own_models: Path | None = None,
    ) -> None:
        """`own_models` is where models go that are made here and for which no folder is configured."""
        self.catalog = Catalog(library, store, pool)
        self._service = EngineService(pool.engine, pool, self.catalog)
        self._downloads, self._events, self._logs = downloads, events, logs
        self._pool, self._library, self._store, self._source = pool, library, store, source
        self._benches = Benches(
            self.catalog,
            self._service,
            BenchStore(store.path.with_name("benches")),
            events,
            at_work=self._at_work,
            beside=lambda: self._quantizations.refuse_beside(),
        )
        self._quantizations = QuantizeJobs(
            library,
            self.catalog.any,
            self._model_folders,
            events.publish,
            own=own_models or own_folder(),
            beside=self._benches.refuse_beside,
        )
        self._sampler = Sampler(pool.engine)
        self._housekeeping: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def service(self) -> EngineService:
        return self._service

    @property
    def settings(self) -> ServerSettings:
        return self._pool.settings

    @property
    def downloads(self) -> Downloads:
        return self._downloads

    @property
    def benches(self) -> Benches:
        return self._benches

    @property
    def quantizations(self) -> QuantizeJobs:
        return self._quantizations

    @property
    def events(self) -> EventBus:
        return self._events

    @property
    def logs(self) -> LogBuffer:
        return self._logs

    # what there is

    def models(self) -> list[ModelView]:
        """See `management.Management`, as for the rest."""
        views = [view_of(local, self.catalog) for local in self._library.models()]
        return sorted(views, key=lambda view: (view.kind == "drafter", not view.settings.is_favorite))

    def model(self, name: str) -> ModelView:
        return view_of(self.catalog.any(name), self.catalog)

    async def refresh(self) -> None:
        await asyncio.to_thread(self._library.refresh)
        self.events.publish("library", {})

    def estimate(self, name: str, changes: Mapping[str, Any] | None = None) -> Estimate:
        local = self.catalog.find(name)
        told = self.catalog.estimate(local, changes)
        if told.verdict != "does not fit" or told.available is None:
            return told
        missing, evicted = told.needed - told.available, []
        for entry in self._pool.victims():
            if missing <= 0:
                break
            evicted.append(entry.id)
            missing -= self._pool.gain(entry)
        return replace(told, evicts=tuple(evicted) if missing <= 0 else ())

    # loading

    async def load(self, name: str, *, force: bool = False) -> ModelView:
        local = self.catalog.find(name)
        try:
            job = self.catalog.job(local, force=force)
        except DFlashError as error:
            self._pool.not_planned(local.id, error)
            raise
        await self._pool.load(local.id, job)
        return self.model(local.id)

    async def unload(self, name: str) -> Unloaded:
        freed = await self._pool.unload(self._pool.entry(self.catalog.find(name).id))
        log.info("%s unloaded: %.2f GB freed", name, freed.freed / 1e9)
        return freed

    # changing

    async def save_settings(self, name: str, changes: Mapping[str, Any]) -> Saved:
        local = self.catalog.any(name)
        before = self._store.get(local.id)
        wanted = changed(before, changes)
        if changes.get("model_alias"):
            self.catalog.check_alias(local.id, changes["model_alias"])
        if local.kind == "model":
            check_pairing(local, wanted, changes, self.catalog)
        after = await asyncio.to_thread(self._store.put, local.id, changes)
        names = tuple(key for key in changes if getattr(after, key, None) != getattr(before, key, None))
        self.events.publish("settings", {"id": local.id, "changed": list(names)})
        entry = self._pool.entry(local.id)
        if entry.task is not None:  # a load with the earlier ones is under way
            waiting = needs_reload(before, after)
            return Saved(
                settings=after, changed=names, requires_reload=waiting, reload="when idle" if waiting else "none"
            )
        if entry.served is None:
            return Saved(settings=after, changed=names, requires_reload=(), reload="none")
        await self._bring_into_force(entry)
        waiting = pending(entry, after)
        if not waiting:
            return Saved(settings=after, changed=names, requires_reload=(), reload="none")
        if not self._pool.is_idle(entry):
            return Saved(settings=after, changed=names, requires_reload=waiting, reload="when idle")
        await self._reload(entry)
        return Saved(settings=after, changed=names, requires_reload=(), reload="done")

    async def delete(self, name: str) -> int:
        local = self.catalog.any(name)
        entry = self._pool.entry(local.id)
        async with self._pool.quiet:  # nothing is loaded meanwhile
            if entry.state in _REFUSED_WHILE:
                raise RequestError(f"{local.id} is {entry.state}: unload it first", param="model")
            names = (str(local.path), local.load_name, local.repo_id)
            users = [other.id for other in self._pool.ready() if other.served and other.served.uses(*names)]
            if users:
                raise RequestError(f"{local.id} is the drafter of {', '.join(users)}: unload that first", param="model")
            freed = await asyncio.to_thread(self._library.delete, local)
        await asyncio.to_thread(ssd_cache.remove_files, ssd_folder(self.settings), local.load_name)
        log.warning("%s was deleted from disk: %.2f GB freed", local.id, freed / 1e9)
        self.events.publish("removed", {"id": local.id})
        return freed

    # what happens

    def activity(self) -> Sequence[ActiveRequest]:
        names = {id(entry.pair): entry.id for entry in self._pool.entries() if entry.pair is not None}
        jobs = self._pool.engine.jobs()
        return [active_request(job, names.get(id(job.pair), job.pair.model_name)) for job in jobs]

    def figures(self) -> LiveFigures:
        return self._sampler.history[-1] if self._sampler.history else self._sampler.sample(self._pool.ready())

    def history(self) -> Sequence[LiveFigures]:
        return list(self._sampler.history)

    # the server's own settings

    def global_settings(self) -> list[SettingInForce]:
        source = self._source
        return server_settings_in_force(source.args, source.environment, source.file, running=self.settings)

    async def save_global_settings(self, changes: Mapping[str, Any]) -> list[SettingInForce]:
        await asyncio.to_thread(self._write_globals, changes)
        self.events.publish("settings", {"id": None, "changed": list(changes)})
        return self.global_settings()

    def _write_globals(self, changes: Mapping[str, Any]) -> None:
        """Into the file, unless the server could not start with it; what needs no restart is in force then."""
        from dflash2_server.serve_command import check

        source = self._source
        path = source.file or default_file()

        def check_start(content: Mapping[str, Any]) -> None:
            check(settings_with(source.args, source.environment, content, path))

        write_server_settings(path, changes, check_start)
        fresh, _ = read_settings(source.args, source.environment, source.file)
        secrets = [*fresh.api_key, *([fresh.hf_token] if fresh.hf_token is not None else [])]
        self.logs.redact.add(*(secret.get_secret_value() for secret in secrets))
        live = {
            name: getattr(fresh, name)
            for name, schema in ServerSettings.model_fields.items()
            if isinstance(schema.json_schema_extra, dict) and schema.json_schema_extra.get("restart") is False
        }
        self._pool.settings = self.settings.model_copy(update=live)
        token = fresh.hf_token.get_secret_value() if fresh.hf_token is not None else None
        self.downloads.configure(fresh.hf_endpoint, token)

    # life

    async def start(self, progress: Progress | None = None) -> None:
        """Load what `--model` names (raises what that raises); the default and the pinned ones follow by themselves."""
        await asyncio.to_thread(self._quantizations.sweep)
        started = self.catalog.started
        if started is not None:
            local = self.catalog.find(started)
            entry = await self._pool.load(local.id, self.catalog.job(local, force=True, progress=progress))
            self._save_pairing(entry)
            self.catalog.has_started = True
        mine = self._store.all()
        wanted = [key for key, one in mine.items() if (one.is_default and started is None) or one.is_pinned]
        self._spawn(self._tick())
        for name in wanted:
            if name != started:
                self._spawn(self._load_quietly(name))

    async def stop(self) -> None:
        await self._benches.close()
        await asyncio.to_thread(self._quantizations.close)
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.events.close()
        self.logs.detach()
        await asyncio.to_thread(self.downloads.close)

    async def _tick(self) -> None:
        """Each second: a sample; and, which may take long, what is to be reloaded or unloaded."""
        was_busy = True
        while True:
            try:
                figures = self._sampler.sample(self._pool.ready())
                busy = bool(figures.running or figures.waiting or figures.generation_tps or figures.prompt_tps)
                if busy or was_busy:
                    self.events.publish("figures", asdict(figures))
                was_busy = busy
            except Exception:
                log.exception("the model manager goes on after a failure of its own")
            if self._housekeeping is None or self._housekeeping.done():
                self._housekeeping = self._spawn(self._keep_house())
            await asyncio.sleep(_TICK_SECONDS)

    async def _keep_house(self) -> None:
        """Reloads that waited for their model to be idle, and models that nobody uses."""
        try:
            await self._reload_idle()
            await self._pool.unload_idle(lambda entry: idle_limit(entry, self.catalog))
        except DFlashError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("the model manager goes on after a failure of its own")

    async def _reload_idle(self) -> None:
        for entry in self._pool.ready():
            mine = self._store.get(entry.id)
            if entry.served is not None and entry.served.model_settings != mine:
                await self._bring_into_force(entry)  # changed by another process
            if pending(entry, mine) and entry.refused != mine and self._pool.is_idle(entry):
                entry.refused = mine
                await self._reload(entry)
                entry.refused = None

    async def _reload(self, entry: Entry) -> None:
        """Raises before anything is unloaded where the new load cannot even be planned."""
        local = self.catalog.find(entry.id)
        job = self.catalog.job(local)
        entry.reloading = True
        try:
            await self._pool.unload(entry)
            await self._pool.load(entry.id, job)
        finally:
            entry.reloading = False

    async def _bring_into_force(self, entry: Entry) -> None:
        """What a loaded pair takes up as it runs."""
        mine = self._store.get(entry.id)
        if entry.served is None:
            return
        before, entry.served.model_settings = entry.served.model_settings, mine
        if _cache_part(before) != _cache_part(mine):
            await self._pool.set_limits(entry, mine)

    def _save_pairing(self, entry: Entry) -> None:
        """The model of the start is paired without having been asked to: from then on its settings say so."""
        served = entry.served
        if served is None or served.pair.drafter is None or self.settings.draft or entry.id in self._store.all():
            return
        served.model_settings = entry.loaded_with = self._store.put(entry.id, {"dflash_enabled": True})

    async def _load_quietly(self, name: str) -> None:
        """The entry has the reason where it fails."""
        try:
            await self.load(name)
        except ModelNotFound as error:
            log.warning("%s", error)
        except DFlashError:
            pass

    def _at_work(self) -> list[str]:
        """What takes the machine's time beside requests. From any thread."""
        found = [LOADED] if any(entry.state in _MOVING for entry in self._pool.entries()) else []
        return found + ([DOWNLOADED] if any(task.state == "downloading" for task in self.downloads.tasks()) else [])

    def _model_folders(self) -> list[Path]:
        """Those that the user has named."""
        download = self.settings.download_folder
        return [*self.settings.model_folders, *([download] if download is not None else [])]

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _cache_part(settings: Any) -> list[Any]:
    return [value for name, value in settings if "cache" in name]
