"""Puts the model manager together from the server's settings: engine, library, settings file, downloads, pool."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dflash2_mlx import hub
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.store import ModelSettingsStore
from dflash2_server.downloads.queue import Downloads
from dflash2_server.events import EventBus
from dflash2_server.library.library import Library
from dflash2_server.library.models import DEMO, LocalModel
from dflash2_server.logs import LogBuffer
from dflash2_server.manager import Manager, SettingsSource
from dflash2_server.pool.pool import Pool
from dflash2_server.quantize.output import own_folder
from dflash2_server.service import start_engine


def open_manager(settings: ServerSettings, args: argparse.Namespace | None = None) -> Manager:
    """A manager whose engine runs; nothing is loaded before `start`. Close its service.

    Raises ModelNotFound where the models that the settings name are not to be had.
    """
    model, draft = settings.model, settings.draft
    extra = [_folder(name) for name in (model, draft) if name is not None and name not in (DEMO, "auto", "none")]
    secrets = [
        key.get_secret_value() for key in (*settings.api_key, *([settings.hf_token] if settings.hf_token else []))
    ]
    events, logs = EventBus(), LogBuffer(secrets=secrets)
    logs.attach()
    store = ModelSettingsStore()
    folders = [*settings.model_folders, *([settings.download_folder] if settings.download_folder else [])]
    if own_folder().is_dir():
        folders.append(own_folder())
    library = Library(folders, _hub_cache(settings), incoming=lambda: downloads.incoming(), extra=extra)
    downloads = Downloads(
        store.path.with_name("downloads.json"),
        folder=settings.download_folder,
        endpoint=settings.hf_endpoint,
        token=settings.hf_token.get_secret_value() if settings.hf_token else None,
        publish=events.publish,
        finished=lambda repo_id: _finished(library, events, repo_id),
    )
    engine = start_engine(settings)
    try:
        library.refresh()
        pool = Pool(engine, settings, events.publish)
        source = SettingsSource(args or argparse.Namespace(), dict(os.environ), getattr(args, "config", None))
        manager = Manager(pool, library, store, downloads=downloads, events=events, logs=logs, source=source)
        manager.catalog.started = _started(library, model, extra)
        return manager
    except BaseException:
        engine.close()
        raise


def _folder(name: str) -> Path:
    """Of a model that is named by path or Hub id; fetched where the cache lacks it."""
    return hub.resolve(name)


def _hub_cache(settings: ServerSettings) -> Path | None:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) if settings.hub_cache else None


def _started(library: Library, model: str | None, extra: list[Path]) -> str | None:
    """The id of the model of the start."""
    if model is None:
        return None
    found: LocalModel = library.get(model) if model == DEMO else _by_folder(library, extra[0])
    return found.id


def _by_folder(library: Library, folder: Path) -> LocalModel:
    wanted = folder.expanduser().resolve()
    for local in library.models():
        if local.path.resolve() == wanted:
            return local
    return library.get(str(folder))  # raises, with the reason where it is hidden


def _finished(library: Library, events: EventBus, repo_id: str) -> None:
    library.refresh()
    events.publish("library", {"repo_id": repo_id})
