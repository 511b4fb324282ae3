"""Frames, signs of life by timer, and answers that end with their reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from dflash2_mlx.errors import DecodeError
from dflash2_server import sse
from dflash2_server.disconnect import ClientLeft, collect
from dflash2_server.inference import Text
from tests.server import doubles

MESSAGE = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("data", "event", "text"),
    [
        ({"a": "é\n"}, None, 'data: {"a":"é\\n"}\n\n'),
        ("[DONE]", None, "data: [DONE]\n\n"),
        ({}, "ping", "event: ping\ndata: {}\n\n"),
        ("two\nlines\r\nand\rmore", None, "data: two\ndata: lines\ndata: and\ndata: more\n\n"),
    ],
)
def test_frames(data: Any, event: str | None, text: str) -> None:
    assert sse.frame(data, event=event) == text


def test_a_frame_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        sse.frame({"a": float("nan")})


def stream_body(**changes: Any) -> bytes:
    return json.dumps(MESSAGE | {"stream": True} | changes).encode()


def test_signs_of_life_come_by_timer_while_the_engine_stalls() -> None:
    async def run() -> doubles.Connection:
        more = asyncio.Event()
        service = doubles.ScriptedService([Text("content", "a"), more, Text("content", "b"), doubles.done()])
        app = doubles.app(service, keep_alive_seconds=0.02)
        connection = doubles.Connection(app, "/v1/messages", stream_body())
        running = asyncio.create_task(connection.run())
        await connection.until('"text":"a"')
        await asyncio.sleep(0.15)
        more.set()
        await running
        return connection

    connection = asyncio.run(run())
    between = connection.text.split('"text":"a"')[1].split('"text":"b"')[0]
    assert 3 <= between.count("event: ping\n") <= 8
    assert connection.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert connection.headers["cache-control"] == "no-cache"
    assert connection.headers["x-accel-buffering"] == "no"
    assert connection.headers["content-type"].startswith("text/event-stream")


def test_no_sign_of_life_while_events_come() -> None:
    async def run() -> str:
        steps: list[doubles.Step] = [step for _ in range(8) for step in (0.02, Text("content", "a"))]
        app = doubles.app(doubles.ScriptedService([*steps, doubles.done()]), keep_alive_seconds=0.1)
        connection = doubles.Connection(app, "/v1/messages", stream_body())
        await connection.run()
        return connection.text

    assert asyncio.run(run()).count("event: ping\n") == 1, "the one that opens a stream"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("streamed", [True, False])
def test_the_answer_is_closed_when_the_client_leaves_a_silent_engine(path: str, streamed: bool) -> None:
    async def run() -> tuple[doubles.ScriptedService, doubles.Connection]:
        service = doubles.ScriptedService([Text("content", "a"), asyncio.Event()])
        connection = doubles.Connection(doubles.app(service), path, stream_body(stream=streamed))
        running = asyncio.create_task(connection.run())
        if streamed:
            await connection.until('"a"')
        async with asyncio.timeout(5):
            while not service.answers:
                await asyncio.sleep(0.001)
        connection.leave()
        async with asyncio.timeout(0.2):
            await running
        return service, connection

    service, connection = asyncio.run(run())
    assert service.closed
    assert not service.answers[0].finished
    if not streamed:
        assert connection.status == 499


def test_a_stream_whose_connection_breaks_closes_the_answer() -> None:
    async def run() -> doubles.ScriptedService:
        service = doubles.ScriptedService()
        connection = doubles.Connection(doubles.app(service), "/v1/messages", stream_body())

        async def broken(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise OSError("broken pipe")

        connection._send = broken  # type: ignore[method-assign]
        await connection.run()
        return service

    service = asyncio.run(run())
    assert service.answers[0].closed


def test_a_cancelled_stream_closes_the_answer_and_its_frames() -> None:
    ended = []

    async def frames(answer: doubles.ScriptedAnswer) -> AsyncIterator[str]:
        try:
            async for _ in answer:
                yield "data: x\n\n"
        finally:
            ended.append(True)

    async def run() -> doubles.ScriptedAnswer:
        answer = doubles.ScriptedAnswer([Text("content", "a"), asyncio.Event()], 1)
        response = sse.stream(frames(answer), answer=answer, keep_alive=sse.comment, every=0)
        connection = doubles.Connection(response, "/", b"")
        running = asyncio.create_task(connection.run())
        await connection.until("data: x")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return answer

    assert asyncio.run(run()).closed
    assert ended == [True]


def test_collect_gives_every_event_and_closes() -> None:
    async def run() -> tuple[list[Any], doubles.ScriptedAnswer]:
        answer = doubles.ScriptedAnswer(doubles.hello(), 7)
        connection = doubles.Connection(None, "/", b"")
        connection._incoming = []
        return await collect(Request(connection._scope, connection._receive), answer), answer

    events, answer = asyncio.run(run())
    assert events == doubles.hello()
    assert answer.closed


def test_collect_raises_what_the_answer_raises_and_that_the_client_left() -> None:
    async def run(steps: list[doubles.Step], leave: bool) -> doubles.ScriptedAnswer:
        answer = doubles.ScriptedAnswer(steps, 7)
        connection = doubles.Connection(None, "/", b"")
        connection._incoming = []
        if leave:
            connection.leave()
        with pytest.raises(ClientLeft if leave else DecodeError):
            await collect(Request(connection._scope, connection._receive), answer)
        return answer

    assert asyncio.run(run([DecodeError("bad row")], False)).closed
    assert asyncio.run(run([asyncio.Event()], True)).closed


def test_a_client_that_leaves_while_it_sends_its_body_is_no_request() -> None:
    async def run() -> tuple[doubles.ScriptedService, doubles.Connection]:
        service = doubles.ScriptedService()
        connection = doubles.Connection(doubles.app(service), "/v1/messages", b"{")

        async def receive() -> dict[str, Any]:
            connection.leave()
            if connection._incoming:
                return {"type": "http.request", "body": connection._incoming.pop(), "more_body": True}
            return {"type": "http.disconnect"}

        connection._receive = receive  # type: ignore[method-assign]
        await connection.run()
        return service, connection

    service, connection = asyncio.run(run())
    assert (service.inferences, connection.status) == ([], 0)
