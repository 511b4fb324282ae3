"""The application with the admin API over a manager in memory, and clients of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from dflash2_server.app import create_app
from tests.manager.doubles import FakeManager
from tests.server.doubles import BASE_URL, Connection

API = "/admin/api"


def admin_app(manager: FakeManager) -> FastAPI:
    """The whole application, without pages."""
    return create_app(manager.service, manager.settings, manager)


@contextmanager
def client_of(manager: FakeManager) -> Iterator[TestClient]:
    """One event loop for all requests of the client, so that work may go on between them."""
    with TestClient(admin_app(manager), base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield client


class Get(Connection):
    """One GET on a bare connection; `path` is as the server decoded it."""

    def __init__(
        self,
        application: Any,
        path: str,
        *,
        query: str = "",
        method: str = "GET",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(application, path, b"", headers)
        self._scope |= {"method": method, "query_string": query.encode()}


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error, once status and envelope are seen to be right."""
    assert answer.status_code == status, answer.text
    return error_in(answer.text)


def error_in(text: str) -> dict[str, Any]:
    body = json.loads(text)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error
