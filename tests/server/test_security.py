"""Who may ask: hosts, origins, keys, and what bodies are taken."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_server import keys, security
from tests.server import doubles

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = CHAT | {"max_tokens": 5}
KEYS = ["first-key", "second-key"]
EVERY_PATH = [
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/demo"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("OPTIONS", "/v1/messages"),
    ("DELETE", "/v1/models/demo"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with doubles.test_client(doubles.ScriptedService()) as made:
        yield made


@pytest.fixture(scope="module")
def locked() -> Iterator[TestClient]:
    with doubles.test_client(doubles.ScriptedService(), api_key=",".join(KEYS)) as made:
        yield made


def test_every_route_is_in_the_table(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {path.replace("{name}", "demo") for path in paths} <= {path for _, path in EVERY_PATH}


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("192.168.1.7:1", True),
        ("[::1]", True),
        ("[::1]:8000", True),
        ("[fe80::1]:65535", True),
        ("localhost", True),
        ("LocalHost:8000", True),
        ("localhost.:8000", True),
        ("box.lan", True),
        ("Box.LAN:80", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("evil.example/127.0.0.1", False),
        ("evil.example#localhost", False),
        ("127.1", False),
        ("0x7f000001", False),
        ("2130706433", False),
        ("[localhost]", False),
        ("[127.0.0.1]", False),
        ("::1", False),
        ("localhost:", False),
        ("localhost:80:80", False),
        ("localhost:notaport", False),
        ("localhost,evil.example", False),
        (" ", False),
        (":8000", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    assert security.is_host_allowed(host, {"localhost", "box.lan"}) is allowed


@pytest.mark.parametrize(("method", "path"), EVERY_PATH)
def test_a_foreign_host_is_refused_before_routing(method: str, path: str, client: TestClient) -> None:
    answer = client.request(method, path, headers={"host": "evil.example"}, content=b"not even JSON")
    assert answer.status_code == 421
    error = answer.json()["error"]
    assert error["type"] == "permission_error"
    assert "--allowed-host" in error["message"]
    assert "evil.example" in error["message"]


def test_a_request_without_host_is_refused() -> None:
    connection = doubles.Connection(doubles.app(doubles.ScriptedService()), "/v1/messages", b"{}")
    connection._scope["headers"] = []
    asyncio.run(connection.run())
    assert connection.status == 400
    assert "Host" in connection.text


def test_the_configured_names_are_allowed() -> None:
    names = security.host_names(ServerSettings(host="box.lan", allowed_host="Other.Lan,third.lan"))
    assert names == {"localhost", "box.lan", "other.lan", "third.lan"}


@pytest.mark.parametrize(
    ("origin", "listed", "status"),
    [
        (None, [], 200),
        ("http://127.0.0.1:8000", [], 200),
        ("https://127.0.0.1:8000", [], 200),
        ("http://127.0.0.1", [], 403),
        ("http://localhost:8000", [], 403),
        ("https://evil.example", [], 403),
        ("null", [], 403),
        ("", [], 403),
        ("https://app.example", ["https://app.example"], 200),
        ("HTTPS://App.Example", ["https://app.example/"], 200),
        ("https://app.example:444", ["https://app.example"], 403),
        ("https://app.example.evil", ["https://app.example"], 403),
        ("app://obsidian.md", ["app://obsidian.md"], 200),
        ("https://evil.example", ["*"], 200),
    ],
)
def test_origins(origin: str | None, listed: list[str], status: int) -> None:
    service = doubles.ScriptedService()
    headers = {} if origin is None else {"origin": origin}
    with doubles.test_client(service, cors_origin=listed) as client:
        answer = client.post("/v1/messages", json=MESSAGE, headers=headers)
        assert answer.status_code == status
        assert len(service.inferences) == (status == 200)
        if status == 403:
            assert "--cors-origin" in answer.json()["error"]["message"]
            assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_needs_no_key_and_a_listed_origin() -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-custom"}
    with doubles.test_client(doubles.ScriptedService(), cors_origin="https://app.example", api_key="k") as client:
        good = client.options("/v1/messages", headers=asked | {"origin": "https://app.example"})
        bad = client.options("/v1/messages", headers=asked | {"origin": "https://evil.example"})
        refused = client.post("/v1/messages", json=MESSAGE, headers={"origin": "https://app.example"})
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in good.headers
    assert bad.status_code == 403
    assert bad.json()["type"] == "error"
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example", "the page may read why"
    assert "x-dflash2-skipped-tools" in refused.headers["access-control-expose-headers"]


def test_a_page_cannot_read_without_a_listed_origin(client: TestClient) -> None:
    answer = client.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("method", "path"), EVERY_PATH)
@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        ({"authorization": "Bearer wrong"}, ""),
        ({"authorization": "first-key"}, ""),
        ({"authorization": "Basic first-key"}, ""),
        ({"authorization": "Bearer first-key extra"}, ""),
        ({"x-api-key": "first-key,second-key"}, ""),
        ({"x-api-key": ""}, ""),
        ({"cookie": "api_key=first-key"}, ""),
        ({}, "?api_key=first-key&key=first-key&token=first-key&access_token=first-key"),
    ],
)
def test_without_a_right_key(method: str, path: str, headers: dict[str, str], query: str, locked: TestClient) -> None:
    answer = locked.request(method, path + query, headers=headers)
    if path == "/health":
        assert answer.status_code == 200
        return
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    body = answer.json()
    assert body["error"]["type"] == "authentication_error"
    assert ("type" in body) is path.startswith("/v1/messages")
    assert "first-key" not in answer.text


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "header", ["Authorization: Bearer ", "authorization: bearer ", "AUTHORIZATION: BEARER  ", "X-Api-Key: "]
)
def test_with_a_right_key(header: str, key: str, locked: TestClient) -> None:
    name, _, scheme = header.partition(": ")
    assert locked.get("/v1/models", headers={name: scheme + key}).status_code == 200


def test_one_right_key_of_two_is_enough(locked: TestClient) -> None:
    headers = {"authorization": "Bearer placeholder", "x-api-key": "second-key"}
    assert locked.get("/v1/models", headers=headers).status_code == 200


def test_keys_that_are_no_ascii_are_wrong_not_an_error(locked: TestClient) -> None:
    assert locked.get("/v1/models", headers={"x-api-key": "sch\xfcssel".encode("latin-1")}).status_code == 401


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", watched)
    assert keys.is_known([b"b"], [b"a", b"b", b"c"])
    assert compared == [(b"b", b"a"), (b"b", b"b"), (b"b", b"c")]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.2", False),
        ("box.lan", False),
        ("localhost.evil.example", False),
    ],
)
def test_another_address_than_loopback_needs_a_key(host: str, loopback: bool) -> None:
    security.check_exposure(ServerSettings(host=host, api_key="k"))
    if loopback:
        security.check_exposure(ServerSettings(host=host))
    else:
        with pytest.raises(RequestError, match=f"{host}.*DFLASH2_API_KEY") as raised:
            security.check_exposure(ServerSettings(host=host))
        assert raised.value.param == "host"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens", "/v1/responses"])
@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", "a/json"],
)
def test_other_bodies_than_json_are_refused(path: str, kind: str | None, client: TestClient) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post(path, content=json.dumps(MESSAGE).encode(), headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"])
def test_json_under_its_names_is_taken(kind: str, client: TestClient) -> None:
    answer = client.post("/v1/messages", content=json.dumps(MESSAGE).encode(), headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br, gzip", "deflate"])
def test_encoded_bodies_are_refused_by_the_name_of_the_encoding(encoding: str, client: TestClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = client.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert answer.status_code == 415
    assert repr(encoding) in answer.json()["error"]["message"]
    plain = headers | {"content-encoding": "Identity"}
    assert client.post("/v1/messages", content=json.dumps(MESSAGE).encode(), headers=plain).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_too_large_a_body_is_refused_by_its_length(path: str) -> None:
    service = doubles.ScriptedService()
    with doubles.test_client(service, max_body_mb=0.001) as client:
        answer = client.post(path, content=b" " * 1049, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"
        assert answer.json()["error"]["type"] == "request_too_large"
        assert "1048" in answer.json()["error"]["message"]
    assert service.inferences == []


def test_a_chunked_body_is_cut_at_the_limit() -> None:
    read = []

    async def run() -> doubles.Connection:
        connection = doubles.Connection(
            doubles.app(doubles.ScriptedService(), max_body_mb=0.001), "/v1/chat/completions", b""
        )
        connection._incoming = [b"x" * 500 for _ in range(1000)]
        await connection.run()
        read.append(1000 - len(connection._incoming))
        return connection

    connection = asyncio.run(run())
    assert connection.status == 413
    assert read == [3], "no more is read than shows that it is too much"


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    body = json.dumps(MESSAGE).encode()
    with doubles.test_client(doubles.ScriptedService(), max_body_mb=(len(body) + 0.5) / 2**20) as client:
        headers = {"content-type": "application/json"}
        assert client.post("/v1/messages", content=body, headers=headers).status_code == 200
        assert client.post("/v1/messages", content=body + b" ", headers=headers).status_code == 413


@pytest.mark.parametrize(("method", "path"), EVERY_PATH)
def test_the_headers_of_every_response(method: str, path: str, client: TestClient) -> None:
    answer = client.request(method, path, json=MESSAGE if method == "POST" else None)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["request-id"].startswith("req_")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_the_log_has_no_key_no_query_and_no_header(caplog: pytest.LogCaptureFixture, locked: TestClient) -> None:
    caplog.set_level(logging.DEBUG)
    for key in (KEYS[0], "wrong-key"):
        locked.get(f"/v1/models?api_key={key}&secret-query", headers={"authorization": f"Bearer {key}"})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("dflash2")]
    assert [line.split()[:3] for line in lines] == [["GET", "/v1/models", "200"], ["GET", "/v1/models", "401"]]
    assert not any(word in line for line in lines for word in ("first-key", "wrong-key", "secret-query"))


def test_a_path_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture, client: TestClient) -> None:
    caplog.set_level(logging.INFO, "dflash2_server.access")
    client.get("/v1/models/a%0AGET%20/forged%20200%1b[2J")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dflash2_server.access"]
    assert line.isprintable()
