"""The pages in a window of their own (pywebview), or in the browser; and what ends either."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

TITLE = "dflash2-mlx"
WIDTH, HEIGHT = 1280, 860
LEAST = (720, 520)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NoWindow(Exception):
    """pywebview cannot open one here."""


def default_storage() -> Path:
    """Where the window keeps its cookies, so that a login lasts."""
    from platformdirs import user_data_path

    return user_data_path("dflash2-mlx", appauthor=False) / "window"


def find_webview() -> Any | None:
    """The module `webview`; None where the extra `window` is not installed."""
    try:
        import webview
    except ImportError:
        return None
    return webview


class Window:
    """One window. `run` blocks in the main thread until it is closed; the rest may be called from any thread."""

    def __init__(self, webview: Any, url: str, storage: Path) -> None:
        self._webview, self._storage = webview, storage
        self._window = webview.create_window(
            TITLE, url, width=WIDTH, height=HEIGHT, min_size=LEAST, text_select=True, zoomable=True
        )

    def run(self) -> None:
        """Raises NoWindow where there is no display or no toolkit for it."""
        try:
            self._webview.start(private_mode=False, storage_path=str(self._storage))
        except self._webview.WebViewException as error:
            raise NoWindow(str(error)) from None

    def show(self) -> None:
        """To the front, if it is there by now."""
        with suppress(self._webview.WebViewException):
            self._window.restore()
            self._window.show()

    def close(self) -> None:
        self._window.destroy()

    def say(self, title: str, text: str) -> None:
        """In place of the page, which is no longer served."""
        self._window.load_html(
            '<meta charset="utf-8"><body style="font: 15px system-ui; margin: 3em; color-scheme: light dark">'
            f'<h1 style="font-size: 1.3em">{escape(title)}</h1><pre style="white-space: pre-wrap">{escape(text)}</pre>'
        )


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Within the block every signal to end is what Ctrl-C is: what was started is stopped on the way out."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def at_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` once a signal says to end, from another thread.

    A window's loop runs no Python code for long, and Python's own handlers with it; the wake-up descriptor is written
    to at once.
    """
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=_await_signal, args=(reading, stop), name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)
            writing.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _await_signal(reading: socket.socket, stop: Callable[[], None]) -> None:
    while received := reading.recv(16):
        if any(number in _SIGNALS for number in received):
            stop()
            return
