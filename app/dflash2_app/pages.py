"""The pages of the model manager as one ASGI application: NiceGUI over the same objects as the admin API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import ui

from dflash2_app import (
    bench_page,
    chat_page,
    downloads_page,
    live_page,
    login_page,
    logs_page,
    models_page,
    settings_form,
    settings_page,
    theme,
)
from dflash2_app.frame import PRODUCT, frame
from dflash2_server.management import Management

# Longer than a laptop's nap in the network; a page that comes back later is loaded afresh.
RECONNECT_SECONDS = 30.0
# Socket messages kept for a page that is away: what it missed is sent again.
KEPT_MESSAGES = 200


def build(manager: Management) -> FastAPI:
    """An application that serves every page at its own path. One a process, since NiceGUI keeps its state globally.

    It needs the lifespan protocol: its startup and shutdown are NiceGUI's. It sets no signal handlers, asks for no
    storage secret, and writes no files. It checks neither keys nor origins: what it is mounted in does, for
    websockets too.
    """
    host = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    theme.install()
    _register(manager)
    login_page.register(host)
    # One transport: a long poll would be asked for again and again.
    nicegui_app.config.socket_io_js_transports = ["websocket"]
    ui.run_with(
        host,
        title=PRODUCT,
        favicon=theme.FAVICON,
        dark=None,
        language="en-US",
        reconnect_timeout=RECONNECT_SECONDS,
        message_history_length=KEPT_MESSAGES,
        tailwind=False,
        show_welcome_message=False,
        # Nothing here is bound to a value that changes by itself: the pages follow the manager's events.
        binding_refresh_interval=None,
    )
    return host


def _register(manager: Management) -> None:
    """Name the pages. Each content function builds inside the frame of its page."""
    for path in ("/", "/models"):
        _page(path, "Models", manager, models_page.content)
    _page("/downloads", "Downloads", manager, downloads_page.content)
    _page("/settings", "Settings", manager, settings_page.content)
    _page("/chat", "Chat", manager, chat_page.content)
    _page("/live", "Live", manager, live_page.content)
    _page("/bench", "Bench", manager, bench_page.content)
    _page("/logs", "Logs", manager, logs_page.content)

    @ui.page("/models/{model_id:path}")
    def model(model_id: str) -> None:
        with frame(f"Settings of {model_id}", manager, here="/models"):
            settings_form.content(manager, model_id)


def _page(path: str, title: str, manager: Management, content: Callable[[Management], Any]) -> None:
    @ui.page(path)
    def page() -> None:
        with frame(title, manager, here="/models" if path == "/" else path):
            content(manager)
