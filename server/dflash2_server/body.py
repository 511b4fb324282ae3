"""A request's body: JSON of a bounded size, or a refusal. What the routes get is read, checked and complete."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash2_server.errors import WireError, error_response, refusal
from dflash2_server.security import API_PATHS, is_under

# Tool schemas nest some 30 deep; far beyond, recursive code (templates, validators) fails.
MAX_DEPTH = 128
# How long a client may send nothing in the middle of its body, in seconds.
SILENCE_SECONDS = 30.0


class Refused(Exception):
    """A body that is not taken, with what the client is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.error: WireError = refusal(status, message)


class JsonBodies:
    """A middleware that reads the bodies of requests other than GET and HEAD, and passes on those that are sound.

    Another content type than JSON is refused: a page of another site may send forms and plain text without asking.
    The pages' own traffic is left alone.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS")
        if reads or not is_under(scope["path"], *API_PATHS):
            await self.app(scope, receive, send)
            return
        try:
            body = await self._sound_body(scope, receive)
        except Refused as refused:
            # The rest of the body is not read, so the connection cannot be used again.
            headers = {"Connection": "close"} if refused.error.status in (408, 413) else {}
            await error_response(scope, refused.error, headers)(scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    async def _sound_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, None when the client left before its end. Raises Refused."""
        headers = Headers(scope=scope)
        _check_declared(headers, self.limit)
        body = await _read(receive, self.limit)
        if body is None or (not body and "content-type" not in headers):
            return body  # where a route needs one, it says what is missing
        _check_type(headers)
        _check_encoding(headers)
        return sound(body) if body else body


def sound(body: bytes) -> bytes:
    """The body, checked: JSON in UTF-8, an object, without NaN, not too deep. Raises Refused.

    Halves of surrogate pairs, which clients make when they cut text, become U+FFFD: no tokenizer takes them.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is no UTF-8: byte {error.start} cannot be read") from None
    except RecursionError:
        raise Refused(400, f"the body nests deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    except ValueError as error:  # a number of too many digits
        raise Refused(400, f"the body holds a number that cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    if is_too_deep(value):
        raise Refused(400, f"the body nests deeper than {MAX_DEPTH} levels")
    return _without_lone_surrogates(body, value)


def is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        children = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _without_lone_surrogates(body: bytes, value: Any) -> bytes:
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _refuse_constant(name: str) -> NoReturn:
    raise Refused(400, f"the body holds {name}, which is no JSON")


def _check_type(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(415, f"content type {kind!r:.100} is not taken: send application/json")


def _check_encoding(headers: Headers) -> None:
    encoding = ",".join(headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise Refused(415, f"content encoding {encoding!r:.100} is not taken: send the JSON as it is")


def _check_declared(headers: Headers, limit: int) -> None:
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body, of any number of pieces; None when the client left before its end."""
    pieces, size = [], 0
    while True:
        message = await _next_piece(receive)
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _next_piece(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            return await receive()
    except TimeoutError:
        raise Refused(408, f"nothing more of the body came for {SILENCE_SECONDS:g} s: send it whole") from None


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than {limit} bytes: --max-body-mb sets the limit")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body once more, then what the connection itself says: that the client left."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
