"""From an exception to what goes over the wire, in OpenAI's or in Anthropic's envelope. The one file that maps them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

from dflash2_mlx.errors import DFlashError, EngineBusy, ModelNotFound, PromptTooLong, QueueFull, RequestError
from dflash2_server.strict_json import json_response

log = logging.getLogger(__name__)

# What both protocols call the errors that come without an exception of ours.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_BUSY_SECONDS = 5
# Kinds of content that come up in the protocols and that no text model reads.
_NO_TEXT = (
    "image", "image_url", "input_image", "document", "file", "input_file", "audio", "input_audio", "video", "base64",
    "url",
)  # fmt: skip


@dataclass(frozen=True)
class WireError:
    """An error as a client sees it; `retry_after` is in seconds."""

    status: int
    kind: str
    code: str | None
    message: str
    param: str | None = None
    retry_after: int | None = None


class Refusal(DFlashError):
    """A route's own answer to what is wrong, where no exception of the service says it."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.message)
        self.error = error


def wire_error(error: BaseException) -> WireError:
    """What a client is told of an exception. One that is not ours is logged and its text kept from the client."""
    message = " ".join(str(error).split())
    match error:
        case RequestValidationError():
            return _from_validation(error.errors(), error.body)
        case Refusal():
            return error.error
        case PromptTooLong():
            return WireError(400, "invalid_request_error", "context_length_exceeded", message, error.param)
        case RequestError():
            return WireError(400, "invalid_request_error", None, message, error.param)
        case ModelNotFound():
            return WireError(404, "not_found_error", "model_not_found", message, "model")
        case QueueFull():
            return WireError(429, "rate_limit_error", "queue_full", message, None, error.retry_after)
        case EngineBusy():
            return WireError(503, "overloaded_error", "engine_busy", message, None, _BUSY_SECONDS)
        case DFlashError():
            return WireError(500, "api_error", None, message)
        case HTTPException():
            return refusal(error.status_code, error.detail)
        case _:
            log.error("a request failed", exc_info=error)
            return WireError(500, "api_error", None, "internal error: the server's log tells more")


def refusal(status: int, message: str, *, code: str | None = None, param: str | None = None) -> WireError:
    """An error of the web layer itself, its kind by its status."""
    kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return WireError(status, kind, code, message, param)


@contextmanager
def param_names(names: Mapping[str, str]) -> Iterator[None]:
    """Tells errors of the service by the fields of a protocol whose names differ: what is inside of one is not told.

    `names` maps the service's names to the protocol's.
    """
    try:
        yield
    except RequestError as error:
        field = re.split(r"[.\[]", error.param or "", maxsplit=1)[0]
        error.param = names.get(field, error.param)
        raise


def openai_body(error: WireError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def anthropic_body(error: WireError, request_id: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"type": "error", "error": {"type": error.kind, "message": error.message}}
    return body if request_id is None else body | {"request_id": request_id}


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is of Anthropic's protocol: by its path, and on the shared paths by its version header."""
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    shared = path == "/v1/models" or path.startswith("/v1/models/")
    return shared and any(name == b"anthropic-version" for name, _ in scope["headers"])


def error_response(scope: Scope, error: WireError, headers: Mapping[str, str] | None = None) -> Response:
    """The response to a request that failed before it began to answer, in the envelope of its protocol."""
    given = dict(headers or {})
    if error.retry_after is not None:
        given["Retry-After"] = str(error.retry_after)
    request_id = scope.get("state", {}).get("request_id")
    body = anthropic_body(error, request_id) if speaks_anthropic(scope) else openai_body(error)
    return json_response(body, given, error.status)


def _from_validation(errors: Sequence[Any], body: Any) -> WireError:
    """The first thing that a request's schema refuses; a RequestError of one of our validators speaks for itself."""
    first = errors[0]
    raised = first.get("ctx", {}).get("error")
    param = ".".join(str(part) for part in _path(first, body)) or None
    if isinstance(raised, RequestError):
        return WireError(400, "invalid_request_error", None, str(raised), raised.param or param)
    return WireError(400, "invalid_request_error", None, f"{param or 'the body'}: {_reason(first)}", param)


def _path(first: Mapping[str, Any], body: Any) -> tuple[Any, ...]:
    """Where in the body an error is. Pydantic's place also has the tags of unions, which are no fields of a request."""
    source, *rest = first["loc"]
    place = tuple(rest if source in ("body", "query", "path", "header") else first["loc"])
    if not isinstance(body, dict) or source != "body":
        return place
    missing = place[-1:] if first["type"] == "missing" else ()
    paths = list(_paths(body, place[: len(place) - len(missing)]))
    # A tag may have the name of a field: the right path is the one that leads to what was refused.
    fitting = (path for path, value in paths if value is first.get("input"))
    return next(fitting, paths[0][0]) + missing


def _paths(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The ways to read a place with some of its parts left out, and where each leads; those of most parts first."""
    if not place:
        yield (), value
        return
    part, rest = place[0], place[1:]
    if (isinstance(value, dict) and part in value) or (
        isinstance(value, list) and isinstance(part, int) and part < len(value)
    ):
        yield from (((part, *path), end) for path, end in _paths(value[part], rest))
    yield from _paths(value, rest)


def _reason(first: Mapping[str, Any]) -> str:
    """What is wrong with one value, and the value where it is short."""
    given = first.get("input")
    if first["type"] == "union_tag_invalid":
        given, known = first["ctx"]["tag"], first["ctx"]["expected_tags"]
        reason = f"{given!r:.80} is not served here, only {known}"
    else:
        shown = f" (it is {given!r:.80})" if given is None or isinstance(given, str | int | float | bool) else ""
        reason = first["msg"].removeprefix("Value error, ") + shown
    return f"{reason}: this model reads text only" if given in _NO_TEXT else reason
