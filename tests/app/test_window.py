"""`dflash2-mlx app`: one instance, its server, window or browser, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash2_app import app_command, own_server, single
from dflash2_app.app_command import Outside
from dflash2_app.own_server import ServerFailed
from dflash2_app.single import Calls, Holder, Lock, call
from dflash2_mlx.cli import command_parser
from dflash2_mlx.errors import RequestError

SERVER = Path(__file__).with_name("health_server.py")


class FakeWindow:
    """What pywebview's window is asked for. `until_closed` runs while it is open."""

    def __init__(self, title: str, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
        self.asked: list[str] = []
        self.html = ""
        self.closed = threading.Event()

    def restore(self) -> None:
        self.asked.append("restore")

    def show(self) -> None:
        self.asked.append("show")

    def destroy(self) -> None:
        self.closed.set()

    def load_html(self, html: str) -> None:
        self.html = html


class FakeWebview:
    """The module `webview`."""

    class WebViewException(Exception):
        pass

    def __init__(self, until_closed: Callable[[FakeWindow], None]) -> None:
        self._until_closed = until_closed
        self.windows: list[FakeWindow] = []
        self.started: dict[str, Any] = {}

    def create_window(self, title: str, url: str, **options: Any) -> FakeWindow:
        self.windows.append(FakeWindow(title, url, options))
        return self.windows[-1]

    def start(self, **options: Any) -> None:
        self.started = options
        self._until_closed(self.windows[-1])


class Desk:
    """Everything outside of the process, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[str] = []
        self.said: list[str] = []
        self.notes = folder / "notes.json"

    def outside(self, webview: Any = None, **changes: Any) -> Outside:
        return Outside(
            **{
                "lock": self.folder / "state" / "app.lock",
                "log": self.folder / "logs" / "app-server.log",
                "storage": self.folder / "window",
                "find_webview": lambda: webview,
                "open_browser": self.opened.append,
                "say": self.said.append,
                "patience": 2.0,
                "command": (sys.executable, str(SERVER)),
                **changes,
            }
        )

    @property
    def noted(self) -> Any:
        return json.loads(self.notes.read_text())

    @property
    def server_ended(self) -> bool:
        return self.notes.with_suffix(".ended").exists()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for name in list(os.environ):
        if name.startswith("DFLASH2_"):
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    found = Desk(tmp_path)
    monkeypatch.setenv("NOTES", str(found.notes))
    return found


def given(*words: str) -> argparse.Namespace:
    return command_parser("app", app_command).parse_args(list(words))


def closes_itself(window: FakeWindow) -> None:
    """The user closes it at once."""


@pytest.fixture
def running(desk: Desk) -> Iterator[str]:
    """A server that ran before, and its address."""
    port = own_server.free_port("127.0.0.1")
    with subprocess.Popen([sys.executable, str(SERVER), f"--port={port}"]) as child:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 10
        while not own_server.is_ours(url) and time.monotonic() < until:
            time.sleep(0.02)
        yield url
        child.terminate()


def test_the_server_is_started_with_the_same_settings_and_ends_with_the_window(desk: Desk) -> None:
    webview = FakeWebview(closes_itself)
    assert app_command.run(given("--port", "0", "--model", "demo", "--no-hub-cache"), desk.outside(webview)) == 0
    words = desk.noted["words"]
    assert {"--model=demo", "--no-hub-cache"} <= set(words)
    port = words[-1].partition("=")[2]
    assert webview.windows[0].url == f"http://127.0.0.1:{port}/"
    assert webview.started["private_mode"] is False
    assert desk.server_ended
    assert own_server.is_ours(f"http://127.0.0.1:{port}") is None
    assert any(str(desk.folder / "logs") in line for line in desk.said)


def test_a_server_that_ran_before_is_used_and_left_running(desk: Desk, running: str) -> None:
    webview = FakeWebview(closes_itself)
    assert app_command.run(given("--port", running.rpartition(":")[2]), desk.outside(webview)) == 0
    assert webview.windows[0].url == f"{running}/"
    assert own_server.is_ours(running)


def test_a_browser_with_a_server_that_ran_before_returns_at_once(desk: Desk, running: str) -> None:
    assert app_command.run(given("--browser", "--port", running.rpartition(":")[2]), desk.outside()) == 0
    assert desk.opened == [f"{running}/"]
    assert own_server.is_ours(running)


def test_without_a_window_the_browser_is_opened_until_a_signal(desk: Desk) -> None:
    def opened(url: str) -> None:
        desk.opened.append(url)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    assert app_command.run(given("--port", "0"), desk.outside(None, open_browser=opened)) == 0
    assert len(desk.opened) == 1
    assert desk.server_ended
    assert any("extra window" in line for line in desk.said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_closes_the_window_and_stops_the_server(desk: Desk, number: signal.Signals) -> None:
    def until_closed(window: FakeWindow) -> None:
        os.kill(os.getpid(), number)
        assert window.closed.wait(5)

    before = signal.getsignal(number)
    assert app_command.run(given("--port", "0"), desk.outside(FakeWebview(until_closed))) == 0
    assert desk.server_ended
    assert signal.getsignal(number) is before


def test_no_display_falls_back_to_the_browser(desk: Desk, running: str) -> None:
    def fails(window: FakeWindow) -> None:
        raise FakeWebview.WebViewException("no toolkit")

    port = running.rpartition(":")[2]
    assert app_command.run(given("--port", port), desk.outside(FakeWebview(fails))) == 0
    assert desk.opened == [f"{running}/"]
    assert "no window: no toolkit" in desk.said


def test_with_a_key_the_login_is_opened_and_the_key_is_in_no_address_and_no_command(desk: Desk) -> None:
    webview = FakeWebview(closes_itself)
    assert app_command.run(given("--port", "0", "--api-key", "very-secret"), desk.outside(webview)) == 0
    assert webview.windows[0].url.endswith("/login")
    assert "very-secret" not in webview.windows[0].url + " ".join(desk.noted["words"])
    assert desk.noted["key"] == "very-secret"


def test_a_second_one_brings_the_window_to_the_front(desk: Desk) -> None:
    codes: list[int] = []

    def meanwhile(window: FakeWindow) -> None:
        codes.append(app_command.run(given(), desk.outside(FakeWebview(lambda window: pytest.fail("a second window")))))

    webview = FakeWebview(meanwhile)
    assert app_command.run(given("--port", "0"), desk.outside(webview)) == 0
    assert codes == [0]
    assert webview.windows[0].asked == ["restore", "show"]
    assert desk.opened == []


def test_a_second_one_opens_the_page_where_there_is_no_window(desk: Desk) -> None:
    with Lock(desk.folder / "state" / "app.lock") as lock:
        lock.tell(Holder(os.getpid(), "http://127.0.0.1:1/"))
        assert app_command.run(given(), desk.outside()) == 0
    assert desk.opened == ["http://127.0.0.1:1/"]


def test_one_that_is_still_starting_is_named(desk: Desk) -> None:
    with Lock(desk.folder / "state" / "app.lock"):
        assert app_command.run(given(), desk.outside(patience=0.2)) == 0
    assert f"process {os.getpid()}" in desk.said[-1]


def test_a_lock_that_a_killed_process_left_is_free(tmp_path: Path) -> None:
    path = tmp_path / "app.lock"
    code = f"""
import os, signal
from pathlib import Path
from dflash2_app.single import Holder, Lock
lock = Lock(Path({str(path)!r})).__enter__()
lock.tell(Holder(os.getpid(), "http://127.0.0.1:1/", 1, "key"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_text() != ""
    with Lock(path) as lock:
        assert lock.held
        assert lock.holder() == Holder(os.getpid())
    assert path.read_text() == ""
    assert path.stat().st_mode & 0o077 == 0


def test_a_call_needs_the_key_and_somebody_who_listens() -> None:
    shown: list[str] = []
    with Calls(lambda: shown.append("shown")) as calls:
        assert not call(Holder(1, "url", calls.port, "another key"))
        assert call(Holder(1, "url", calls.port, calls.key))
    assert shown == ["shown"]
    assert not call(Holder(1, "url", calls.port, calls.key))
    assert not call(Holder(1, "url"))


def test_a_server_that_does_not_start_says_why(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEALTH_FAILS", "1")
    with pytest.raises(ServerFailed, match=r"code 3: no such model: 'nothing'"):
        app_command.run(given("--port", "0"), desk.outside())
    assert desk.opened == []


def test_another_program_on_the_port_is_refused(desk: Desk, running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_server, "_opener", _Answering({"status": "ok"}))
    with pytest.raises(RequestError, match="--port"):
        app_command.run(given("--port", running.rpartition(":")[2]), desk.outside())


class _Answering:
    """An opener whose answers are always that JSON."""

    def __init__(self, told: object) -> None:
        self._told = told

    def open(self, url: str, timeout: float) -> Any:
        import contextlib
        import io

        return contextlib.closing(io.BytesIO(json.dumps(self._told).encode()))


def test_a_server_that_dies_is_told_in_the_window_and_by_the_exit_code(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(window: FakeWindow) -> None:
        os.kill(desk.noted["pid"], signal.SIGKILL)
        until = time.monotonic() + 5
        while not window.html and time.monotonic() < until:
            time.sleep(0.02)

    webview = FakeWebview(killed)
    assert app_command.run(given("--port", "0"), desk.outside(webview)) == 1
    assert "The server has ended" in webview.windows[0].html
    assert "code -9" in capsys.readouterr().err


def test_without_pages_there_is_nothing_to_open(desk: Desk) -> None:
    with pytest.raises(RequestError, match="no_ui"):
        app_command.run(given("--no-ui"), desk.outside())


def test_the_defaults_lie_in_the_users_folders(desk: Desk) -> None:
    for path in (single.default_path(), own_server.default_log(), Outside().storage):
        assert desk.folder in path.parents
