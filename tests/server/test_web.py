"""Errors in their envelopes, the models, the status; streams that stay alive and end with their reader."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from dflash2_mlx.errors import CheckpointError, DecodeError, EngineBusy, ModelNotFound, QueueFull, RequestError
from dflash2_server import body as bodies
from dflash2_server import sse
from dflash2_server.disconnect import ClientLeft, collect
from dflash2_server.inference import Text
from tests.server import doubles

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = CHAT | {"max_tokens": 5}
# A path of each protocol, with a request that it takes.
FAMILIES = [("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGE)]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with doubles.test_client(doubles.ScriptedService()) as made:
        yield made


def error_of(path: str, answer: Any) -> dict[str, Any]:
    """The error, once the envelope is seen to be the protocol's."""
    body = answer.json()
    if path.split("?")[0] == "/v1/messages" or path.startswith("/v1/messages/"):
        assert set(body) == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        assert body["request_id"] == answer.headers["request-id"]
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert error["message"]
    return error


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
@pytest.mark.parametrize(
    ("raised", "status", "kind", "code", "param", "retry_after"),
    [
        (RequestError("top_p is 3: at most 1", param="top_p"), 400, "invalid_request_error", None, "top_p", None),
        (ModelNotFound("no model 'x'"), 404, "not_found_error", "model_not_found", "model", None),
        (QueueFull("64 wait", retry_after=7), 429, "rate_limit_error", "queue_full", None, "7"),
        (EngineBusy("it is stopping"), 503, "overloaded_error", "engine_busy", None, "5"),
        (DecodeError("row 3 is not finite"), 500, "api_error", None, None, None),
        (CheckpointError("no config"), 500, "api_error", None, None, None),
    ],
)
def test_what_the_service_raises(
    path: str,
    request_body: Any,
    raised: Exception,
    status: int,
    kind: str,
    code: str | None,
    param: str | None,
    retry_after: str | None,
) -> None:
    with doubles.test_client(doubles.ScriptedService(submit_error=raised)) as client:
        answer = client.post(path, json=request_body)
    error = error_of(path, answer)
    assert answer.status_code == status
    assert (error["type"], error["message"]) == (kind, str(raised))
    assert answer.headers.get("retry-after") == retry_after
    if "code" in error:
        assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
@pytest.mark.parametrize("where", ["submit", "middle"])
def test_an_unknown_failure_is_logged_not_shown(
    path: str, request_body: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    failure = ZeroDivisionError("/home/user/secret is not a divisor")
    steps: list[doubles.Step] = [Text("content", "a"), failure]
    service = doubles.ScriptedService(steps, submit_error=failure if where == "submit" else None)
    with doubles.test_client(service) as client:
        answer = client.post(path, json=request_body)
    assert answer.status_code == 500
    assert error_of(path, answer)["type"] == "api_error"
    assert "secret" not in answer.text
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[1] for record in errors if record.exc_info] == [failure], "logged once, with its trace"
    assert service.closed


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
def test_a_failure_outside_of_the_routes_has_an_envelope_too(
    path: str, request_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: bytes) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(bodies, "sound", fail)
    with doubles.test_client(doubles.ScriptedService()) as client:
        answer = client.post(path, json=request_body)
    assert answer.status_code == 500
    assert error_of(path, answer)["type"] == "api_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/messagesx", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/unknown", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("GET", "/v1/messages", 405),
        ("GET", "/v1/messages/count_tokens", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_unknown_paths_and_methods(method: str, path: str, status: int, client: TestClient) -> None:
    answer = client.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == status
    error = error_of(path, answer)
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"{'a': 1}", "no JSON"),
        (b'{"a": 1} x', "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"null", "object"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\xed\xa0\xbd"}', "UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deeper"),
        (b'{"a": ' + b"[" * 128 + b"]" * 128 + b"}", "deeper"),
    ],
    ids=range(15),
)
def test_bodies_that_are_no_request(path: str, content: bytes, told: str, client: TestClient) -> None:
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code == 400
    error = error_of(path, answer)
    assert error["type"] == "invalid_request_error"
    assert told in error["message"]


def test_what_nests_as_deep_as_it_may_goes_through() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"name": "deep", "input_schema": schema}
    service = doubles.ScriptedService()
    with doubles.test_client(service) as client:
        assert client.post("/v1/messages", json=MESSAGE | {"tools": [tool]}).status_code == 200
    assert service.inference.tools[0]["function"]["parameters"] == schema


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
def test_half_a_surrogate_pair_becomes_a_replacement_character(path: str, request_body: Any) -> None:
    service = doubles.ScriptedService()
    text = json.dumps(request_body | {"messages": [{"role": "user", "content": "cut \ud83d, whole \U0001f600"}]})
    with doubles.test_client(service) as client:
        assert client.post(path, content=text.encode("ascii"), headers=JSON).status_code == 200
    assert service.inference.messages is not None
    assert service.inference.messages[0]["content"] == "cut \ufffd, whole \U0001f600"


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
@pytest.mark.parametrize(
    ("change", "named", "value"),
    [
        ({"messages": []}, "messages", None),
        ({"messages": "hello"}, "messages", "'hello'"),
        ({"messages": None}, "messages", "None"),
        ({"max_tokens": "7"}, "max_tokens", "'7'"),
        ({"max_tokens": True}, "max_tokens", "True"),
        ({"max_tokens": 1.5}, "max_tokens", "1.5"),
        ({"temperature": "hot"}, "temperature", "'hot'"),
        ({"temperature": False}, "temperature", "False"),
        ({"top_p": [0.5]}, "top_p", None),
        ({"stream": "yes"}, "stream", "'yes'"),
        ({"model": 7}, "model", "7"),
        ({"dflash": {"block_size": "5"}}, "dflash.block_size", "'5'"),
        ({"dflash": {"enabled": 1}}, "dflash.enabled", "1"),
    ],
)
def test_a_wrong_type_is_named_with_its_value(
    path: str, request_body: Any, change: dict[str, Any], named: str, value: str | None, client: TestClient
) -> None:
    answer = client.post(path, json=request_body | change)
    assert answer.status_code == 400, "never 422"
    error = error_of(path, answer)
    assert named in error["message"]
    assert value is None or value in error["message"]
    if "param" in error:
        assert error["param"].startswith(named)


@pytest.mark.parametrize(("path", "request_body"), FAMILIES)
def test_an_unknown_model_is_a_404_and_an_alias_none(path: str, request_body: Any, client: TestClient) -> None:
    answer = client.post(path, json=request_body | {"model": "nope"})
    assert answer.status_code == 404
    assert "'nope'" in error_of(path, answer)["message"]
    assert client.post(path, json=request_body | {"model": "gpt-4o"}).status_code == 200


def test_the_models(client: TestClient) -> None:
    shown = client.get("/v1/models").json()
    assert shown["object"] == "list"
    (model,) = shown["data"]
    assert model == client.get("/v1/models/demo").json() == client.get("/v1/models/org/aliased").json()
    assert model == {
        "id": "demo",
        "object": "model",
        "created": 1_760_000_000,
        "owned_by": "dflash2-mlx",
        "context_length": 2048,
        "max_model_len": 2048,
        "dflash": {"engine": "dflash2", "block_size": 5, "drafter": "demo", "fallback_reason": None},
    }


def test_the_models_for_anthropics_clients(client: TestClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    shown = client.get("/v1/models?limit=1000", headers=headers).json()
    (model,) = shown.pop("data")
    assert shown == {"has_more": False, "first_id": "demo", "last_id": "demo"}
    assert model == client.get("/v1/models/demo", headers=headers).json()
    assert (model["type"], model["id"], model["created_at"]) == ("model", "demo", "2025-10-09T08:53:20Z")
    missing = client.get("/v1/models/nope", headers=headers)
    assert missing.status_code == 404
    assert missing.json()["type"] == "error"


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%252f..%252fetc%252fpasswd",
        "..%5c..%5cwindows",
        "%00",
        "demo%00",
        "demo/",
        "/demo",
        "//demo",
        "file:///etc/passwd",
        "%c0%ae%c0%ae/",
        "%ff",
        "a" * 5000,
    ],
)
def test_no_path_leads_out_of_the_models(name: str, client: TestClient) -> None:
    answer = client.get(f"/v1/models/{name}")
    assert answer.status_code == 404
    assert error_of("/v1/models", answer)["type"] == "not_found_error"
    assert "root:" not in answer.text


def test_liveness_readiness_and_figures() -> None:
    service = doubles.ScriptedService(ready=(False, "the engine stands still"))
    with doubles.test_client(service) as client:
        assert client.get("/health").json() == {"status": "ok"}
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()["state"]) == (503, "the engine stands still")
        service.ready = (True, "ready")
        assert client.get("/ready").status_code == 200
        figures = client.get("/metrics")
    assert figures.text == service.metrics()
    assert figures.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_the_schema_tells_the_errors_as_they_are(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert "422" not in json.dumps(schema["paths"])
    shown = schema["paths"]["/v1/messages"]["post"]["responses"]
    assert set(shown) == {"200", "4XX", "5XX"}
    assert set(shown["200"]["content"]) == {"application/json", "text/event-stream"}


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
