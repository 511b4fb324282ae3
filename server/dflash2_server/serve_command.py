"""`dflash2-mlx serve`: settings, port, model, banner, server. The settings are refused before anything is loaded."""

from __future__ import annotations

import argparse
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Protocol

from dflash2_mlx.settings import ServerSettings, add_setting_arguments, read_settings

if TYPE_CHECKING:
    from dflash2_mlx.pairs import Progress
    from dflash2_server.inference import ModelInfo, Service

    class OwnService(Service, Protocol):
        """A running service; `close` ends its answers with an error, and returns when they have it."""

        def close(self) -> None: ...

    OpenService = Callable[[ServerSettings, Progress | None], OwnService]

# Above the server, so that nothing here imports it; `build(manager)` gives an ASGI application.
PAGES = "dflash2_app.pages"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Every flag is also a variable (DFLASH2_MAX_QUEUE) and a key of the settings file (max_queue): "
        "flag over variable over file. Lists take commas, or the flag several times. Ctrl-C stops the server."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: server.json in the user's config folder)"
    )
    add_setting_arguments(parser)


def run(args: argparse.Namespace, open_service: OpenService | None = None) -> int:
    """Raises RequestError for wrong settings, and what loading the model raises."""
    settings, notes = read_settings(args, os.environ, args.config)
    check(settings)
    for note in notes:
        print(f"note: {note}", flush=True)
    from dflash2_server import listener

    listener.configure_logging(settings.log_level)
    with listener.bind(settings.host, settings.port) as sock:
        url = listener.base_url(settings.host, sock.getsockname()[1])
        if open_service is None:
            _serve_manager(settings, args, sock, url)
        else:
            _serve_alone(open_service(settings, None), settings, sock, url)
    return 0


def _serve_manager(settings: ServerSettings, args: argparse.Namespace, sock: socket, url: str) -> None:
    """The APIs, the model manager and its pages. The port listens already: who connects waits until it answers."""
    from dflash2_mlx.chat.progress import loading
    from dflash2_server import listener
    from dflash2_server.app import create_app
    from dflash2_server.opening import open_manager

    manager = open_manager(settings, args)
    close = _Once(manager.service.close)

    async def opening() -> None:
        with loading() as progress:
            await manager.start(progress)
        models = [model for model in manager.service.models() if model.loaded]
        print(banner(settings, models[0] if models else None, url, memory_in_use()), flush=True)

    try:
        pages = None if settings.no_ui else importlib.import_module(PAGES).build(manager)
        app = create_app(manager.service, settings, manager, pages)
        listener.serve(listener.Server(app, close, opening=opening, closing=manager.stop), sock)
    finally:
        close()


def _serve_alone(service: OwnService, settings: ServerSettings, sock: socket, url: str) -> None:
    """The APIs over a service that somebody else has opened."""
    from dflash2_server import listener
    from dflash2_server.app import create_app

    close = _Once(service.close)
    try:
        print(banner(settings, service.models()[0], url, memory_in_use()), flush=True)
        listener.serve(listener.Server(create_app(service, settings), close), sock)
    finally:
        close()


def check(settings: ServerSettings) -> None:
    """Refuse what can be told to be wrong without a model. Raises RequestError."""
    from dflash2_mlx.drafter.quantization import parse_spec
    from dflash2_server.security import check_exposure

    check_exposure(settings)
    parse_spec(settings.quantize)


def banner(settings: ServerSettings, model: ModelInfo | None, url: str, memory: int) -> str:
    """What is loaded, where it is served and how to use it. `memory` is in bytes."""
    from dflash2_server.snippets import all_snippets

    needs_key = bool(settings.api_key)
    rows = [
        *(_about(settings, model) if model else [("model", "none is loaded: the pages load one, or --model")]),
        ("memory", f"{memory / 1e9:.2f} GB in use"),
        ("prefix cache", f"up to {settings.cache_gb:g} GiB" if settings.cache_gb else "off"),
        ("key", "needed" if needs_key else "not needed"),
        ("base URL", f"{url}/v1 for OpenAI's clients, {url} for Anthropic's"),
        *([] if settings.no_ui else [("pages", url)]),
    ]
    table = "\n".join(f"{name:<13} {value}" for name, value in rows)
    snippets = f"{all_snippets(url, model.id, needs_key)}\n\n" if model else ""
    return f"{table}\n\n{snippets}ready: Ctrl-C stops"


def _about(settings: ServerSettings, model: ModelInfo) -> list[tuple[str, str]]:
    return [
        ("model", model.id),
        ("drafter", _drafter(settings, model)),
        ("engine", f"{model.engine}, {_block(model)}"),
        ("context", "unknown" if model.context_length is None else f"{model.context_length} tokens"),
    ]


def _block(model: ModelInfo) -> str:
    return f"block size automatic, now {model.block_size}" if model.automatic else f"block size {model.block_size}"


def memory_in_use() -> int:
    """Bytes that MLX holds: the weights, before the first request."""
    import mlx.core as mx

    return mx.get_active_memory()


def _drafter(settings: ServerSettings, model: ModelInfo) -> str:
    if model.drafter is None:
        return f"none: {model.fallback_reason}" if model.fallback_reason else "none"
    quant = f"quantised to {settings.quantize}" if settings.quantize else "not quantised"
    return f"{model.drafter}, {quant}"


class _Once:
    """Calls a function the first time that it is called; later calls wait for that one."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            function, self._function = self._function, None
            if function is not None:
                function()
