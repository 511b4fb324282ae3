"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dflash2_server.anthropic import blocks
from dflash2_server.anthropic.convert import count_inference, hides_thinking, inference
from dflash2_server.anthropic.schemas import CountRequest, MessagesRequest
from dflash2_server.disconnect import collect
from dflash2_server.errors import anthropic_body, wire_error
from dflash2_server.inference import Answer, Done, Service
from dflash2_server.sse import frame, stream
from dflash2_server.strict_json import json_response

router = APIRouter(tags=["anthropic"])


@router.post("/v1/messages", response_model=None)
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """A message, streamed where `stream` asks for it."""
    service: Service = request.app.state.service
    model = service.model(body.model).id
    answer = await service.submit(inference(body))
    hide = hides_thinking(body)
    id_ = f"msg_{uuid.uuid4().hex[:24]}"
    if body.stream:
        every = request.app.state.settings.keep_alive_seconds
        request_id = request.scope["state"]["request_id"]
        frames = _frames(_events(id_, model, answer, hide), request_id)
        return stream(frames, answer=answer, keep_alive=ping, every=every)
    return json_response(blocks.message(id_, model, await collect(request, answer), hide))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
    """The number of tokens of a request's prompt."""
    service: Service = request.app.state.service
    return {"input_tokens": await service.count(count_inference(body))}


def ping() -> str:
    return _event({"type": "ping"})


async def _frames(events: AsyncGenerator[dict[str, Any]], request_id: str) -> AsyncGenerator[str]:
    """The whole stream. What fails once it has begun becomes its last event."""
    try:
        async with aclosing(events):
            async for event in events:
                yield _event(event)
    except Exception as error:
        yield _event(anthropic_body(wire_error(error), request_id))


async def _events(id_: str, model: str, answer: Answer, hide_thinking: bool) -> AsyncGenerator[dict[str, Any]]:
    opening = blocks.head(id_, model, []) | {"stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": opening | {"usage": blocks.first_usage(answer.prompt_tokens)}}
    yield {"type": "ping"}
    content, end = blocks.BlockStream(hide_thinking), None
    async for event in answer:
        if isinstance(event, Done):
            end = event
            continue
        for part in content.feed(event):
            yield part
    for part in content.close():
        yield part
    done = blocks.proper_end(end)
    yield {
        "type": "message_delta",
        "delta": blocks.stopped(done),
        "usage": blocks.usage(done),
        "timings": dict(done.timings),
        "dflash": dict(done.engine),
    }
    yield {"type": "message_stop"}


def _event(data: dict[str, Any]) -> str:
    return frame(data, event=data["type"])
