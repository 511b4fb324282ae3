"""Login: a key for a cookie, what the cookie opens, and what stays shut."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from dflash2_server import sessions
from dflash2_server.sessions import MOST_SESSIONS, TRIES, WAIT_SECONDS, Sessions, cookie_values
from tests.manager.guarded import KEY, client_of, refusal_of, socket_to

LOGIN, LOGOUT = "/admin/api/login", "/admin/api/logout"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def locked() -> TestClient:
    return client_of(api_key=KEY)


@pytest.fixture(scope="module")
def shut() -> TestClient:
    """For requests that are refused, which leave it as it is."""
    return client_of(api_key=KEY)


def logged_in(client: TestClient, name: str = "key") -> Any:
    answer = client.post(LOGIN, json={name: KEY})
    assert answer.status_code == 200, answer.text
    return answer


def test_tokens_are_long_differ_and_are_not_kept() -> None:
    kept = Sessions()
    tokens = {kept.open() for _ in range(50)}
    assert len(tokens) == 50
    assert all(len(token) >= 43 and kept.is_open(token) for token in tokens)
    assert not any(token in repr(vars(kept)) for token in tokens)
    assert not kept.is_open("")
    assert not kept.is_open(next(iter(tokens))[:-1])


def test_sessions_expire_close_and_are_bounded() -> None:
    clock = Clock()
    kept = Sessions(clock)
    first, second = kept.open(), kept.open()
    kept.close(first)
    assert (kept.is_open(first), kept.is_open(second)) == (False, True)
    clock.now += sessions.LIFETIME_SECONDS - 1
    assert kept.is_open(second)
    clock.now += 1
    assert not kept.is_open(second)
    tokens = [kept.open() for _ in range(MOST_SESSIONS + 1)]
    assert [kept.is_open(token) for token in tokens] == [False] + [True] * MOST_SESSIONS


def test_wrong_keys_are_slowed_for_each_address_by_itself() -> None:
    clock = Clock()
    kept = Sessions(clock)
    for _ in range(TRIES):
        assert kept.seconds_to_wait("10.0.0.1") == 0
        kept.failed("10.0.0.1")
    assert kept.seconds_to_wait("10.0.0.1") == WAIT_SECONDS
    assert kept.seconds_to_wait("10.0.0.2") == 0
    clock.now += WAIT_SECONDS
    assert kept.seconds_to_wait("10.0.0.1") == 0
    for number in range(5000):
        kept.failed(f"peer {number}")
    assert len(kept._failures) <= 1000


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"a=1; b=2", ["1"]),
        (b"b=2;a=1", ["1"]),
        (b"a=1; a=2", ["1", "2"]),
        (b'broken"; {"json": [1]}; a=1', ["1"]),
        (b"aa=1; A=2; a", [""]),
        (b"a=x=y", ["x=y"]),
        (b"\xff=\xfe; a=1", ["1"]),
        (b"", []),
    ],
)
def test_cookies_of_other_programs_hide_nothing(header: bytes, found: list[str]) -> None:
    assert cookie_values([(b"host", b"x"), (b"cookie", header)], "a") == found


@pytest.mark.parametrize("name", ["key", "api_key"])
def test_login_opens_pages_and_admin_but_not_the_protocols(name: str, locked: TestClient) -> None:
    cookie = logged_in(locked, name).headers["set-cookie"]
    assert cookie.startswith("dflash2_session_8000=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert KEY not in cookie
    assert locked.get("/chat").text == "page /chat"
    assert locked.get("/admin/api/models").status_code == 200
    for path in ("/v1/models", "/v1/models/demo"):
        assert locked.get(path).status_code == 401, "a page's cookie is no key"
    with socket_to(locked) as socket:
        socket.send_text("me")
        assert socket.receive_text() == "heard me"


def test_a_key_in_a_header_opens_everything(locked: TestClient) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    for path in ("/", "/admin/api/models", "/v1/models", "/metrics"):
        assert locked.get(path, headers=headers).status_code == 200
    with socket_to(locked, headers) as socket:
        socket.send_text("a program")
        assert socket.receive_text() == "heard a program"


def test_logout_ends_the_session_of_the_cookie(locked: TestClient) -> None:
    logged_in(locked)
    token = locked.cookies["dflash2_session_8000"]
    answer = locked.post(LOGOUT)
    assert answer.json() == {"logged_in": False}
    assert 'dflash2_session_8000=""' in answer.headers["set-cookie"]
    assert locked.get("/admin/api/models", headers={"cookie": f"dflash2_session_8000={token}"}).status_code == 401


def test_an_expired_session_leads_to_the_login() -> None:
    client = client_of(api_key=KEY)
    clock = Clock()
    client.app.state.sessions._clock = clock  # type: ignore[attr-defined]
    logged_in(client)
    assert client.get("/chat").status_code == 200
    clock.now += sessions.LIFETIME_SECONDS
    assert client.get("/chat").status_code == 303


def test_a_session_of_another_port_is_none_here(locked: TestClient) -> None:
    logged_in(locked)
    token = locked.cookies["dflash2_session_8000"]
    locked.cookies.clear()
    assert locked.get("/chat", headers={"cookie": f"dflash2_session_8001={token}"}).status_code == 303


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"key": "wrong"}, 401),
        ({"key": ""}, 401),
        ({"key": f"{KEY} "}, 401),
        ({"key": "schlüssel"}, 401),
        ({"key": "\ud800"}, 401),
        ({"key": None}, 400),
        ({"key": [KEY]}, 400),
        ({}, 400),
    ],
)
def test_a_wrong_key_opens_nothing_and_is_not_told(body: dict[str, Any], status: int, locked: TestClient) -> None:
    answer = locked.post(LOGIN, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert "set-cookie" not in answer.headers
    assert KEY not in answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert locked.get("/chat").status_code == 303


def test_guessing_is_slowed_and_the_right_key_waits_too(locked: TestClient) -> None:
    clock = Clock()
    locked.app.state.sessions._clock = clock  # type: ignore[attr-defined]
    for _ in range(TRIES):
        assert locked.post(LOGIN, json={"key": "guess"}).status_code == 401
    for key in ("guess", KEY):
        answer = locked.post(LOGIN, json={"key": key})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "60"
    clock.now += WAIT_SECONDS
    logged_in(locked)


@pytest.mark.parametrize("path", ["/", "/chat", "/models/a%20b/c", "/downloads?q=1&x=%26", "//evil.example/x"])
def test_a_page_leads_to_the_login_and_back_on_this_server_only(path: str, shut: TestClient) -> None:
    answer = shut.get(f"http://127.0.0.1:8000{path}")
    assert answer.status_code == 303
    location = urlsplit(answer.headers["location"])
    assert (location.scheme, location.netloc, location.path) == ("", "", "/login")
    wanted = parse_qs(location.query).get("next", ["/"])[0]
    assert wanted.replace("a b", "a%20b") == path
    assert "evil.example" not in location.netloc


@pytest.mark.parametrize(
    "path", ["/admin/api/models", "/admin/api/logs", "/admin/api/events", "/admin", "/admin/api/nowhere", "/v1/x"]
)
def test_programs_get_a_401_not_a_page(path: str, shut: TestClient) -> None:
    answer = shut.get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/login", "/health"])
def test_what_is_open_without_a_key(path: str, shut: TestClient) -> None:
    assert shut.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/login/", "/login/x", "/Login", "/loginx", "/health/..", "/admin/api/login/x"])
def test_what_looks_like_it_is_not(path: str, shut: TestClient) -> None:
    assert shut.get(path).status_code in (303, 401)
    assert shut.post(path).status_code == 401


def test_a_post_to_a_page_is_no_redirect(shut: TestClient) -> None:
    assert shut.post("/_nicegui/client/1/upload/2", content=b"x").status_code == 401


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, "an API key is needed"),
        ({"cookie": "dflash2_session_8000=guess"}, "an API key is needed"),
        ({"authorization": "Bearer wrong"}, "the API key is wrong"),
        ({"authorization": f"Bearer {KEY}", "origin": "https://evil.example"}, "origin 'https://evil.example'"),
        ({"authorization": f"Bearer {KEY}", "host": "evil.example:8000"}, "host 'evil.example:8000'"),
        ({"authorization": f"Bearer {KEY}", "sec-fetch-site": "same-site"}, "Sec-Fetch-Site is same-site"),
    ],
)
def test_websockets_are_refused_before_they_are_accepted(headers: dict[str, str], told: str) -> None:
    seen: list[str] = []
    assert told in refusal_of(client_of(seen, api_key=KEY), headers)
    assert seen == []


def test_no_key_is_needed_where_none_is_configured() -> None:
    client = client_of()
    assert client.get("/chat").text == "page /chat"
    answer = client.post(LOGIN, json={"key": "anything"})
    assert answer.json() == {"logged_in": True}


def test_the_key_stands_in_no_line_of_the_log(locked: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logged_in(locked)
    locked.post(LOGIN, json={"key": "wrong-key"})
    token = locked.cookies["dflash2_session_8000"]
    assert not any(word in caplog.text for word in (KEY, "wrong-key", token))
