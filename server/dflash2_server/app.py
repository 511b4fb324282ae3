"""The web application: which routes there are, what every request passes through, how errors come out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash2_mlx import __version__
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.settings import ServerSettings
from dflash2_server import models, status
from dflash2_server.admin import session_routes
from dflash2_server.admin.routes import routers as admin_routers
from dflash2_server.anthropic import messages
from dflash2_server.body import JsonBodies
from dflash2_server.disconnect import ClientLeft
from dflash2_server.envelope import Envelope
from dflash2_server.errors import error_response, wire_error
from dflash2_server.inference import Service
from dflash2_server.management import Management
from dflash2_server.openai import chat, completions, responses
from dflash2_server.openapi import schema
from dflash2_server.security import API_PATHS, HostGuard, KeyGuard, OriginGuard, is_under
from dflash2_server.sessions import Sessions

# What a proxy's log shows for a client that closed its connection; nobody receives it.
CLIENT_CLOSED = 499


def create_app(
    service: Service, settings: ServerSettings, manager: Management | None = None, pages: FastAPI | None = None
) -> FastAPI:
    """The application over a service. It neither starts nor closes the service or the manager.

    With a `manager` there is the admin API. `pages` gets what no route matches, outside the paths of the APIs; its
    lifespan runs within this one's. The interactive pages of the schema are left out: they would load scripts from
    elsewhere.
    """
    sessions = Sessions()
    app = FastAPI(
        title="dflash2-mlx",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware(settings, sessions, pages=pages is not None),
        lifespan=_lifespan_of(pages),
    )
    app.state.service, app.state.settings = service, settings
    app.state.manager, app.state.sessions = manager, sessions
    for router in (chat.router, completions.router, responses.router, messages.router, models.router, status.router):
        app.include_router(router)
    if manager is not None:
        for router in (session_routes.router, *admin_routers()):
            app.include_router(router)
    if pages is not None:
        app.router.default = _Fallback(pages, app.router.default)
    for kind in (DFlashError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(ClientLeft, _left)
    app.openapi = lambda: schema(app)  # type: ignore[method-assign]
    return app


class _Fallback:
    """What no route matches: a page, or under the paths of the APIs what the router says itself."""

    def __init__(self, pages: ASGIApp, absent: ASGIApp) -> None:
        self.pages, self.absent = pages, absent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen = self.absent if is_under(scope["path"], *API_PATHS) else self.pages
        await chosen(scope, receive, send)


def _lifespan_of(pages: FastAPI | None) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if pages is None:
            yield
            return
        async with pages.router.lifespan_context(pages):
            yield

    return lifespan


def middleware(settings: ServerSettings, sessions: Sessions, *, pages: bool) -> list[Middleware]:
    """From the outside in: a preflight bears no key, so CORS comes before keys, and foreign hosts before all."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origin,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "retry-after", responses.SKIPPED_HEADER],
    )
    return [
        Middleware(Envelope),
        Middleware(HostGuard, settings),
        Middleware(OriginGuard, settings),
        *([cors] if settings.cors_origin else []),
        Middleware(KeyGuard, settings, sessions, pages=pages),
        Middleware(JsonBodies, settings.max_body_bytes),
    ]


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return error_response(request.scope, wire_error(error))
    shown = wire_error(error)
    if error.status_code in (404, 405):
        shown = replace(shown, message=f"{request.method} {request.url.path!r:.200} is not served")
    return error_response(request.scope, shown, error.headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)
