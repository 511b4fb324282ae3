"""The application with a manager and stand-in pages: a page, a post of its own and a websocket that echoes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dflash2_mlx.settings import ServerSettings
from dflash2_server.app import create_app
from tests.manager.doubles import FakeManager
from tests.server.doubles import BASE_URL

KEY = "the-right-key"
SOCKET = "/_nicegui_ws/socket.io/"


def fake_pages(seen: list[str]) -> FastAPI:
    """`seen` gets what happens: started, stopped, and the names of pages and websockets."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        seen.append("started")
        yield
        seen.append("stopped")

    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)

    @pages.websocket(SOCKET)
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        seen.append("websocket")
        try:
            while True:
                await socket.send_text(f"heard {await socket.receive_text()}")
        except WebSocketDisconnect:
            seen.append("websocket left")

    @pages.post("/_nicegui/client/1/upload/2")
    async def upload(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{len(await request.body())} bytes")

    @pages.get("/{name:path}")
    async def page(name: str) -> PlainTextResponse:
        seen.append(f"page /{name}")
        return PlainTextResponse(f"page /{name}")

    return pages


def guarded_app(seen: list[str] | None = None, manager: FakeManager | None = None, **settings: Any) -> FastAPI:
    """The whole application; `settings` are `ServerSettings`' fields."""
    manager = manager or FakeManager(ServerSettings(**settings))
    return create_app(manager.service, manager.settings, manager, fake_pages([] if seen is None else seen))


def client_of(seen: list[str] | None = None, **settings: Any) -> TestClient:
    """A client that follows no redirect."""
    return TestClient(
        guarded_app(seen, **settings), base_url=BASE_URL, raise_server_exceptions=False, follow_redirects=False
    )


def socket_to(client: TestClient, headers: dict[str, str] | None = None) -> Any:
    """A websocket to the server's own address, where a client of httpx's kind takes another by itself."""
    return client.websocket_connect(f"ws://127.0.0.1:8000{SOCKET}", headers=headers or {})


def refusal_of(client: TestClient, headers: dict[str, str]) -> str:
    """The reason why a websocket is refused before it is accepted."""
    with pytest.raises(WebSocketDisconnect) as refused, socket_to(client, headers):
        pass
    assert refused.value.code == 1008
    return refused.value.reason
