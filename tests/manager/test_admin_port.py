"""The admin API and the pages over a real port: streams that resume, websockets, and a prompt end with both open."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from dflash2_mlx.settings import ServerSettings
from dflash2_server import listener
from tests.manager.doubles import FakeManager
from tests.manager.guarded import KEY, SOCKET, guarded_app

WAIT = 10


def serve_until(
    check: Callable[[int], None], manager: FakeManager, seen: list[str], stop: Callable[[Any], None]
) -> None:
    """Serve in this thread; `check` is called with the port in another, then `stop` with the server."""
    failures: list[BaseException] = []

    async def closing() -> None:
        manager.events.close()

    with listener.bind("127.0.0.1", 0) as sock:
        server = listener.Server(guarded_app(seen, manager), lambda: None, closing=closing)

        def visit() -> None:
            try:
                while not server.started:
                    time.sleep(0.005)
                check(sock.getsockname()[1])
            except BaseException as error:
                failures.append(error)
            finally:
                stop(server)

        visitor = threading.Thread(target=visit)
        visitor.start()
        listener.serve(server, sock)
        visitor.join(WAIT)
    if failures:
        raise failures[0]


def tell(server: listener.Server) -> None:
    server.should_exit = True


def send_sigterm(server: listener.Server) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Stream:
    """An event stream that is read line by line."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        self.connection.request("GET", "/admin/api/events", headers=headers or {})
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def events(self) -> Iterator[dict[str, str]]:
        """Fields of each event, comments left out, until the stream ends."""
        fields: dict[str, str] = {}
        for line in self.response:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields:
                yield fields
                fields = {}

    def close(self) -> None:
        self.connection.close()


def test_a_reader_that_was_cut_off_goes_on_after_its_last_event() -> None:
    manager = FakeManager()
    read: list[dict[str, str]] = []

    def check(port: int) -> None:
        first = Stream(port)
        for n in range(3):
            manager.events.publish("step", {"n": n})
        events = first.events()
        read.extend(next(events) for _ in range(2))
        first.close()
        manager.events.publish("step", {"n": 3})
        second = Stream(port, {"Last-Event-ID": read[-1]["id"]})
        manager.events.publish("step", {"n": 4})
        events = second.events()
        read.extend(next(events) for _ in range(3))
        second.close()

    serve_until(check, manager, [], tell)
    assert [event["data"] for event in read] == [f'{{"n":{n}}}' for n in range(5)]
    assert [event["id"] for event in read] == ["1", "2", "3", "4", "5"]
    assert {event["event"] for event in read} == {"step"}


def test_a_websocket_of_another_site_gets_a_403_and_one_with_a_key_is_let_in() -> None:
    seen: list[str] = []

    def check(port: int) -> None:
        url = f"ws://127.0.0.1:{port}{SOCKET}"
        key = {"Authorization": f"Bearer {KEY}"}
        for refused in ({}, key | {"Origin": "https://evil.example"}):
            with pytest.raises(InvalidStatus) as error, connect(url, additional_headers=refused):
                pass
            assert error.value.response.status_code == 403
        assert "websocket" not in seen
        with connect(url, additional_headers=key | {"Origin": f"http://127.0.0.1:{port}"}) as socket:
            socket.send("hello")
            assert socket.recv(WAIT) == "heard hello"

    serve_until(check, FakeManager(ServerSettings(api_key=KEY)), seen, tell)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_sigterm_ends_streams_and_websockets_at_once() -> None:
    manager, seen = FakeManager(), list[str]()
    open_ones = contextlib.ExitStack()
    readers: list[Any] = []
    ended: list[str] = []
    told_at: list[float] = []

    def check(port: int) -> None:
        stream = Stream(port)
        manager.events.publish("step", {})
        events = stream.events()
        next(events)
        open_ones.callback(stream.close)
        socket = open_ones.enter_context(connect(f"ws://127.0.0.1:{port}{SOCKET}"))
        socket.send("hello")
        assert socket.recv(WAIT) == "heard hello"
        readers.extend([events, socket])

    def stop(server: listener.Server) -> None:
        told_at.append(time.monotonic())
        send_sigterm(server)
        events, socket = readers
        ended.extend(event["event"] for event in events)  # to its end
        with pytest.raises(ConnectionClosed):
            socket.recv(WAIT)
        open_ones.close()

    serve_until(check, manager, seen, stop)
    assert time.monotonic() - told_at[0] < 5, "far below the grace that running answers get"
    assert ended == []
    assert seen == ["started", "websocket", "websocket left", "stopped"]


def test_events_and_other_requests_go_on_while_a_load_is_awaited() -> None:
    manager, gate = FakeManager(), threading.Event()
    stages: list[str] = []

    async def step() -> None:
        await asyncio.to_thread(gate.wait, WAIT)

    manager.step = step

    def check(port: int) -> None:
        stream = Stream(port)
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        asking.request("POST", "/admin/api/models/demo/load")
        for event in stream.events():
            stages.append(event["event"])
            if event["event"] == "load":
                break
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        other.request("GET", "/admin/api/models/demo")
        body = other.getresponse().read()
        assert b'"state":"loading"' in body
        other.close()
        gate.set()
        assert asking.getresponse().status == 200
        asking.close()
        stream.close()

    serve_until(check, manager, [], tell)
    assert stages[:2] == ["model", "load"]
