"""The outermost layer: an id and safe headers for every response, the log of requests, and failures as errors."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash2_server.errors import error_response, wire_error

access = logging.getLogger("dflash2_server.access")
_ASSETS = "/_nicegui"  # dozens for each page


class Envelope:
    """Wraps the whole application. It logs method, path, status and time: no query string, no header, no body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req_{uuid.uuid4().hex[:24]}"
        scope.setdefault("state", {})["request_id"] = request_id
        status, started = 0, time.monotonic()

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _mark(MutableHeaders(scope=message), request_id)
            await send(message)

        try:
            await self.app(scope, receive, marked)
        except Exception as error:
            if status:
                raise  # too late for an error of ours: the server breaks the connection off
            await error_response(scope, wire_error(error))(scope, receive, marked)
        finally:
            took = 1000 * (time.monotonic() - started)
            path = scope["path"].encode("unicode_escape").decode("ascii")
            level = logging.DEBUG if scope["path"].startswith(_ASSETS) else logging.INFO
            access.log(level, "%s %s %d %.1f ms %s", scope["method"], path, status, took, request_id)


def _mark(headers: MutableHeaders, request_id: str) -> None:
    """OpenAI's clients read x-request-id, Anthropic's request-id."""
    headers["x-request-id"] = request_id
    headers["request-id"] = request_id
    headers["X-Content-Type-Options"] = "nosniff"
    headers.setdefault("X-Frame-Options", "DENY")  # a page of another port is of the same site: it may not click here
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")
