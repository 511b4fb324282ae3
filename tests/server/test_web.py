"""Errors in their envelopes, the models and the status."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import ModelInfo
from starlette.testclient import TestClient

from dflash2_mlx.errors import CheckpointError, DecodeError, EngineBusy, ModelNotFound, QueueFull, RequestError
from dflash2_server import body as bodies
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
    failure = ZeroDivisionError("the secret is not a divisor")
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
        (b"", "required"),
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
        "dflash": {
            "engine": "dflash2", "block_size": 5, "automatic": False, "drafter": "demo", "fallback_reason": None,
        },
    }  # fmt: skip


def test_the_models_for_anthropics_clients(client: TestClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    shown = client.get("/v1/models?limit=1000", headers=headers).json()
    (model,) = shown.pop("data")
    assert shown == {"has_more": False, "first_id": "demo", "last_id": "demo"}
    assert model == client.get("/v1/models/demo", headers=headers).json()
    assert (model["type"], model["id"], model["created_at"]) == ("model", "demo", "2025-10-09T08:53:20Z")
    read = ModelInfo.model_validate(model)
    assert (read.lifecycle, read.max_input_tokens) == ("active", 2048)
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
        assert client.get("/health").json() == {"status": "ok", "server": "dflash2-mlx"}
        assert (client.head("/health").status_code, client.head("/ready").status_code) == (200, 503)
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
