"""What happens now: figures, requests, the log, and the stream of events."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse

from dflash2_mlx.errors import RequestError
from dflash2_server import sse
from dflash2_server.admin.asked import PREFIX, Manager
from dflash2_server.admin.views import pair_json
from dflash2_server.events import Event
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=PREFIX, tags=["admin: live"])

_ID = re.compile(r"[0-9]{1,18}")


@router.get("/stats")
async def stats(manager: Manager, history: bool = False) -> Response:
    """The latest figures of the process, and each loaded pair with its own; on request the last five minutes too."""
    body: dict[str, Any] = {
        "figures": asdict(manager.figures()),
        "pairs": [pair_json(view) for view in manager.models() if view.running is not None],
    }
    if history:
        body["history"] = [asdict(sample) for sample in manager.history()]
    return json_response(body)


@router.get("/activity")
async def activity(manager: Manager) -> Response:
    """Running requests, and those that wait, in order."""
    return json_response({"requests": [asdict(request) for request in manager.activity()]})


@router.get("/logs")
async def logs(
    manager: Manager,
    level: Annotated[str | None, Query(description="Lines of this level or above, such as warning.")] = None,
    text: Annotated[str, Query(description="Lines that hold this text, in any case.")] = "",
    limit: Annotated[int, Query(ge=1, le=2000)] = 500,
    after: Annotated[int, Query(ge=0, description="Lines after the one of this number.")] = 0,
) -> Response:
    """The latest lines of the log, oldest first, without keys and tokens."""
    try:
        entries = manager.logs.entries(level, text, limit, after)
    except ValueError as error:
        raise RequestError(str(error), param="level") from None
    return json_response({"entries": [asdict(entry) for entry in entries]})


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
)
async def events(
    manager: Manager,
    last_event_id: Annotated[str | None, Header(description="Of the last event that was read.")] = None,
    after: Annotated[str | None, Query(alias="last_event_id", description="As the header, which counts.")] = None,
) -> Response:
    """Every change as it happens, or from the one after that id on: `id`, `event` (its kind) and `data` (JSON).

    Where some events after it are gone, the first is of the kind `missed`: what is shown is to be asked for anew.
    """
    given = after if last_event_id is None else last_event_id
    coming = manager.events.subscribe(_event_id(given))
    every = manager.settings.keep_alive_seconds
    return sse.stream(_frames(coming), keep_alive=sse.comment, every=every)


async def _frames(coming: AsyncIterator[Event]) -> AsyncIterator[str]:
    async for event in coming:
        yield f"id: {event.id}\n" + sse.frame(dict(event.data), event=event.kind)


def _event_id(given: str | None) -> int | None:
    """None where none is given; an EventSource sends an empty one before its first event."""
    if not given:
        return None
    if not _ID.fullmatch(given):
        raise RequestError(f"last_event_id is {given!r:.100}: it is the number of an event", param="last_event_id")
    return int(given)
