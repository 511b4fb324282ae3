"""`dflash2-mlx app`: the model manager in a window of its own, with the server behind it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash2_app import own_server, single, window
from dflash2_app.own_server import Served
from dflash2_app.single import Holder, Lock
from dflash2_app.window import NoWindow, Window, at_signals, interrupted_by_signals
from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings import ServerSettings, read_settings
from dflash2_server import serve_command
from dflash2_server.listener import base_url
from dflash2_server.serve_flags import flags_of, secrets_of

# As long as another one may take until it says where its pages are.
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What the command touches outside of the process; tests give others."""

    lock: Path = field(default_factory=single.default_path)
    log: Path = field(default_factory=own_server.default_log)
    storage: Path = field(default_factory=window.default_storage)
    find_webview: Callable[[], Any | None] = window.find_webview
    open_browser: Callable[[str], object] = webbrowser.open
    say: Callable[[str], None] = lambda text: print(text, flush=True)
    patience: float = _PATIENCE_SECONDS
    command: Sequence[str] = own_server.COMMAND  # of the server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--browser", action="store_true", help="in the default browser, not in a window")
    serve_command.add_arguments(parser)
    parser.epilog = (
        "The server is started with these settings if none runs at that address, and stopped when the window is "
        "closed. The window needs the extra window: pip install 'dflash2-mlx[window]'."
    )


def run(args: argparse.Namespace, outside: Outside | None = None) -> int:
    """Raises RequestError for wrong settings, ServerFailed where the server does not start."""
    outside = outside or Outside()
    settings, notes = read_settings(args, os.environ, args.config)
    serve_command.check(settings)
    if settings.no_ui:
        raise RequestError("no_ui is set, and without pages there is nothing to show", param="no_ui")
    for note in notes:
        outside.say(f"note: {note}")
    with interrupted_by_signals(), Lock(outside.lock) as lock:
        if not lock.held:
            return _show_other(lock, outside)
        port = settings.port or own_server.free_port(settings.host)
        command = [*outside.command, *flags_of(args), *([] if settings.port else [f"--port={port}"])]
        url = base_url(settings.host, port)
        with own_server.serving(url, command, secrets_of(args), outside.log, outside.say) as served:
            return _open(served, first_page(url, settings), lock, outside, browser=args.browser)


def first_page(url: str, settings: ServerSettings) -> str:
    """Where a key is needed, the page that asks for it: no key is ever part of an address."""
    return f"{url}/login" if settings.api_key else f"{url}/"


def _show_other(lock: Lock, outside: Outside) -> int:
    """Another one is open: bring it to the front, or open its page."""
    until = time.monotonic() + outside.patience
    while (holder := lock.holder()) is None or holder.url is None:
        if time.monotonic() > until:
            pid = "?" if holder is None else holder.pid
            outside.say(f"dflash2-mlx app is starting already (process {pid})")
            return 0
        time.sleep(0.1)
    if single.call(holder):
        outside.say("dflash2-mlx app is open already: its window is in front now")
    else:
        outside.say(f"dflash2-mlx app is open already, at {holder.url}")
        outside.open_browser(holder.url)
    return 0


def _open(served: Served, page: str, lock: Lock, outside: Outside, *, browser: bool) -> int:
    webview = None if browser else outside.find_webview()
    if webview is None and not browser:
        outside.say("no window: the extra window is not installed (pip install 'dflash2-mlx[window]')")
    if webview is not None:
        try:
            return _in_window(served, page, lock, outside, webview)
        except NoWindow as error:
            outside.say(f"no window: {error}")
    return _in_browser(served, page, lock, outside)


def _in_window(served: Served, page: str, lock: Lock, outside: Outside, webview: Any) -> int:
    shown = Window(webview, page, outside.storage)
    with single.Calls(shown.show) as calls, at_signals(shown.close):
        lock.tell(Holder(os.getpid(), page, calls.port, calls.key))
        ended = _Ended(served, lambda text: shown.say("The server has ended", text))
        shown.run()
        return ended.code()


def _in_browser(served: Served, page: str, lock: Lock, outside: Outside) -> int:
    lock.tell(Holder(os.getpid(), page))
    outside.open_browser(page)
    if served.child is None:
        outside.say(f"opened {page}")
        return 0
    outside.say(f"opened {page}; Ctrl-C stops the server")
    stop = threading.Event()
    with at_signals(stop.set):
        ended = _Ended(served, lambda text: stop.set())
        stop.wait()
    return ended.code()


class _Ended:
    """Tells when our server ends by itself, with the end of its log."""

    def __init__(self, served: Served, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._served = served
        self._over = False
        if served.child is not None:
            threading.Thread(target=self._wait, args=(served.child,), name="server", daemon=True).start()

    def code(self) -> int:
        """0; or 1 with the cause on stderr, where the server has ended by itself. To be called last."""
        self._over = True  # from here on it is us who stop it
        child = self._served.child
        if child is None or child.poll() is None:
            return 0
        print(self._words(), file=sys.stderr, flush=True)
        return 1

    def _wait(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        if not self._over:
            self._tell(self._words())

    def _words(self) -> str:
        child, log = self._served.child, self._served.log
        assert child is not None
        assert log is not None
        return f"the server ended with code {child.returncode}; its log is {log}\n{own_server.last_lines(log)}"
