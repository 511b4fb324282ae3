"""A real manager over tiny checkpoints in a folder of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.store import ModelSettingsStore
from dflash2_server.downloads.queue import Downloads
from dflash2_server.events import EventBus
from dflash2_server.inference import Done, Inference
from dflash2_server.library.library import Library
from dflash2_server.logs import LogBuffer
from dflash2_server.manager import Manager, SettingsSource
from dflash2_server.pool.pool import Pool
from dflash2_server.service import start_engine
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter

BLOCK = 8


def write_models(folder: Path) -> None:
    """Targets "one", "two" and "three" of one shape, the drafter "drafter" that fits them, and one that fits none."""
    for seed, name in enumerate(("one", "two", "three")):
        target = write_target(folder / name, seed=seed)
    config = tiny_drafter_config(target, block_size=BLOCK)
    write_drafter(folder / "drafter", config)
    write_drafter(folder / "stranger", config | {"vocab_size": config["vocab_size"] + 1})


@contextlib.asynccontextmanager
async def managed(root: Path, models: Path, **settings: Any) -> AsyncIterator[Manager]:
    """Started; stopped and closed in the end. Its files are below `root`."""
    server = ServerSettings(ssd_cache_dir=str(root / "ssd"), **settings)
    events, store = EventBus(), ModelSettingsStore(root / "model_settings.json")
    engine = start_engine(server)
    library = Library([models], None)
    source = SettingsSource(argparse.Namespace(), {}, root / "server.json")
    downloads = Downloads(root / "downloads.json", folder=root / "in", publish=events.publish)
    (root / "server.json").write_text("{}")
    manager = Manager(
        Pool(engine, server, events.publish),
        library,
        store,
        downloads=downloads,
        events=events,
        logs=LogBuffer(),
        source=source,
        own_models=root / "own",
    )
    try:
        await manager.start()
        yield manager
    finally:
        await manager.stop()
        manager.service.close()


def ask(model: str | None = None, tokens: int = 4, **parameters: Any) -> Inference:
    """A prompt of ids; with `ignore_eos` the answer has exactly so many tokens."""
    given = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0, **parameters}
    return Inference(model=model, prompt=[5, 6, 7, 8, 9], parameters=given)


async def answered(manager: Manager, inference: Inference) -> Done:
    """The end of a whole answer."""
    return await end_of(await manager.service.submit(inference))


async def end_of(answer: Any) -> Done:
    last = None
    async for event in answer:
        last = event
    assert isinstance(last, Done)
    return last


async def until(condition: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
