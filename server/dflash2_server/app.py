"""The web application: which routes there are, what every request passes through, how errors come out."""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from dflash2_mlx import __version__
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.settings import ServerSettings
from dflash2_server import models, status
from dflash2_server.anthropic import messages
from dflash2_server.body import JsonBodies
from dflash2_server.disconnect import ClientLeft
from dflash2_server.envelope import Envelope
from dflash2_server.errors import error_response, wire_error
from dflash2_server.inference import Service
from dflash2_server.openai import chat, completions, responses
from dflash2_server.openapi import schema
from dflash2_server.security import HostGuard, KeyGuard, OriginGuard

# What a proxy's log shows for a client that closed its connection; nobody receives it.
CLIENT_CLOSED = 499


def create_app(service: Service, settings: ServerSettings) -> FastAPI:
    """The application over a service. It neither starts nor closes the service.

    The interactive pages are left out: they would load scripts from elsewhere.
    """
    app = FastAPI(
        title="dflash2-mlx",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware(settings),
    )
    app.state.service = service
    app.state.settings = settings
    for router in (chat.router, completions.router, responses.router, messages.router, models.router, status.router):
        app.include_router(router)
    for kind in (DFlashError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(ClientLeft, _left)
    app.openapi = lambda: schema(app)  # type: ignore[method-assign]
    return app


def middleware(settings: ServerSettings) -> list[Middleware]:
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
        Middleware(KeyGuard, settings),
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
