"""What web pages of other sites may not do, and which requests reach the pages."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.manager.guarded import client_of, guarded_app, refusal_of
from tests.server.doubles import BASE_URL

# Every route of the admin API that changes something, with a body that it takes.
CHANGING: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/admin/api/models/demo/load", {}),
    ("POST", "/admin/api/models/demo/unload", {}),
    ("PUT", "/admin/api/models/demo/settings", {"temperature": 0.5}),
    ("DELETE", "/admin/api/models/Qwen3-4B-4bit?confirm=Qwen3-4B-4bit", {}),
    ("POST", "/admin/api/hf/download", {"repo_id": "a/b"}),
    ("POST", "/admin/api/hf/cancel/t1", {}),
    ("POST", "/admin/api/hf/retry/t1", {}),
    ("DELETE", "/admin/api/hf/tasks/t1", {}),
    ("POST", "/admin/api/global-settings", {"max_queue": 5}),
    ("POST", "/admin/api/bench/start", {"model": "demo"}),
    ("POST", "/admin/api/bench/demo/cancel", {}),
    ("POST", "/admin/api/models/demo/quantize", {}),
    ("POST", "/admin/api/quantize/demo/cancel", {}),
    ("POST", "/admin/api/login", {"key": "k"}),
    ("POST", "/admin/api/logout", {}),
]
FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://localhost:8000"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


def test_the_table_has_every_route_that_changes() -> None:
    schema = TestClient(guarded_app(), base_url=BASE_URL).get("/openapi.json").json()["paths"]
    admin = [
        (method.upper(), path)
        for path, operations in schema.items()
        for method in operations
        if path.startswith("/admin")
    ]
    changing = {(method, path) for method, path in admin if method != "GET"}
    named = {
        (method, path.split("?")[0].replace("demo", "{id}").replace("Qwen3-4B-4bit", "{id}").replace("t1", "{task}"))
        for method, path, _ in CHANGING
    }
    assert changing == named


@pytest.fixture(scope="module")
def clients() -> dict[str, TestClient]:
    """By what `--cors-origin` lists. Requests that are refused leave them as they are."""
    return {"": client_of(), "*": client_of(cors_origin="*")}


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize(("method", "path", "body"), CHANGING)
@pytest.mark.parametrize("listed", ["", "*"])
def test_a_page_of_another_origin_changes_nothing(
    method: str, path: str, body: dict[str, Any], headers: dict[str, str], listed: str, clients: dict[str, TestClient]
) -> None:
    answer = clients[listed].request(method, path, json=body, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "access-control-allow-origin" not in answer.headers
    assert happened(clients[listed]) == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("content", [b"", b'{"force": true}'])
@pytest.mark.parametrize(("method", "path", "body"), CHANGING)
def test_what_a_form_can_send_is_refused(
    method: str, path: str, body: dict[str, Any], content: bytes, kind: str, clients: dict[str, TestClient]
) -> None:
    answer = clients[""].request(method, path, content=content, headers={"content-type": kind})
    assert answer.status_code == 415
    assert happened(clients[""]) == 0


def happened(client: TestClient) -> int:
    """How many events the manager has published."""
    events: int = client.app.state.manager.events.last_id  # type: ignore[attr-defined]
    return events


@pytest.mark.parametrize("headers", [{}, {"origin": BASE_URL}, {"origin": BASE_URL, "sec-fetch-site": "same-origin"}])
def test_the_servers_own_pages_and_programs_may(headers: dict[str, str]) -> None:
    with client_of() as client:
        assert client.post("/admin/api/models/demo/load", headers=headers).status_code == 200
        assert client.get("/admin/api/models/demo", headers=headers).json()["loaded"] is True


@pytest.mark.parametrize("path", ["/admin/api/models", "/admin/api/logs", "/chat"])
def test_a_listed_origin_reads_neither_admin_nor_pages(path: str) -> None:
    client = client_of(cors_origin="https://app.example")
    headers = {"origin": "https://app.example"}
    assert client.get(path, headers=headers).status_code == 403
    assert client.get("/v1/models", headers=headers).headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:3000", "null"])
@pytest.mark.parametrize("listed", ["", "*"])
def test_websockets_of_other_origins_are_refused(origin: str, listed: str, clients: dict[str, TestClient]) -> None:
    assert f"origin {origin!r}" in refusal_of(clients[listed], {"origin": origin})


def test_links_from_other_sites_open_pages() -> None:
    assert client_of().get("/chat", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_looking_changes_nothing(clients: dict[str, TestClient]) -> None:
    client = clients[""]
    for path in ("models", "models/demo", "models/demo/settings", "models/demo/estimate", "stats", "activity", "logs"):
        assert client.get(f"/admin/api/{path}").status_code == 200
    for method, path, _ in CHANGING:
        if method == "POST" and not path.endswith("/global-settings"):
            assert client.get(path).status_code in (404, 405)
    assert happened(client) == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/nowhere", 404),
        ("POST", "/health", 405),
        ("GET", "/health/x", 404),
        ("GET", "/v1/messages", 405),
        ("GET", "/admin", 404),
        ("GET", "/admin/api", 404),
        ("GET", "/admin/api/nowhere", 404),
        ("GET", "/admin/api/login", 405),
        ("PATCH", "/admin/api/models", 405),
        ("GET", "/openapi.json/x", 404),
    ],
)
def test_the_apis_keep_their_own_refusals(method: str, path: str, status: int, clients: dict[str, TestClient]) -> None:
    answer = clients[""].request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/chat", "/models/a/b", "/adminx", "/v2/models", "/healthy"])
def test_what_no_route_matches_is_a_page(path: str, clients: dict[str, TestClient]) -> None:
    answer = clients[""].get(path)
    assert answer.text == f"page {path}"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_the_pages_send_is_left_alone() -> None:
    answer = client_of(max_body_mb=0.001).post("/_nicegui/client/1/upload/2", content=b"\xff" * 5000)
    assert answer.text == "5000 bytes"


def test_the_pages_live_and_end_with_the_application() -> None:
    seen: list[str] = []
    with client_of(seen) as client:
        assert seen == ["started"]
        client.get("/chat")
    assert seen == ["started", "page /chat", "stopped"]
