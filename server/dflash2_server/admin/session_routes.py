"""Login and logout of the pages: a key for a cookie. No answer ever holds the key."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr

from dflash2_mlx.settings import ServerSettings
from dflash2_server.errors import error_response, refusal
from dflash2_server.keys import encoded, is_known
from dflash2_server.sessions import LIFETIME_SECONDS, Sessions, cookie_name, cookie_values

router = APIRouter(prefix="/admin/api", tags=["admin"])


class Login(BaseModel):
    """`api_key`, or `key`."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)

    api_key: Annotated[SecretStr, Field(validation_alias=AliasChoices("api_key", "key"))]


@router.post("/login")
async def login(body: Login, request: Request) -> Response:
    """A session for the right key; without configured keys there is nothing to log in to."""
    settings: ServerSettings = request.app.state.settings
    sessions: Sessions = request.app.state.sessions
    peer = request.client.host if request.client else ""
    wait = math.ceil(sessions.seconds_to_wait(peer))
    if wait > 0:
        told = replace(refusal(429, f"too many wrong keys: try again in {wait} s"), retry_after=wait)
        return error_response(request.scope, told)
    if settings.api_key and not is_known([_bytes(body.api_key)], encoded(settings.api_key)):
        sessions.failed(peer)
        return error_response(request.scope, refusal(401, "the API key is wrong"))
    answer = JSONResponse({"logged_in": True})
    answer.set_cookie(
        cookie_name(own_port(request)), sessions.open(), max_age=LIFETIME_SECONDS, httponly=True, samesite="strict"
    )
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Ends the session of the request's cookie."""
    sessions: Sessions = request.app.state.sessions
    name = cookie_name(own_port(request))
    for token in cookie_values(request.scope["headers"], name):
        sessions.close(token)
    answer = JSONResponse({"logged_in": False})
    answer.delete_cookie(name, httponly=True, samesite="strict")
    return answer


def own_port(request: Request) -> int:
    """The port that the connection came in at."""
    server = request.scope.get("server")
    return int(server[1]) if server and server[1] else 0


def _bytes(secret: SecretStr) -> bytes:
    return secret.get_secret_value().encode("utf-8", "surrogatepass")
