"""The route `/v1/responses`."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dflash2_mlx.settings import ServerSettings
from dflash2_server.disconnect import collect
from dflash2_server.inference import Service
from dflash2_server.openai.responses_frames import ResponseFrames, response
from dflash2_server.openai.responses_inference import (
    custom_tools,
    responses_inference,
    skipped_tools,
    wants_logprobs,
)
from dflash2_server.openai.responses_object import ResponseObject
from dflash2_server.openai.responses_output import OutputStyle
from dflash2_server.openai.schemas_responses import ResponsesRequest
from dflash2_server.openai.wire import head, json_response
from dflash2_server.sse import stream

log = logging.getLogger(__name__)

router = APIRouter()

SKIPPED_HEADER = "x-dflash2-skipped-tools"


@router.post("/v1/responses", response_class=Response)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """The next items of a conversation, as a whole or as a stream of events. Nothing is stored."""
    service: Service = request.app.state.service
    settings: ServerSettings = request.app.state.settings
    inference = responses_inference(body)
    about = ResponseObject(body, head("resp_", service.model(body.model)))
    style = _style(body, service)
    headers = _skipped(body)
    answer = await service.submit(inference)
    if not body.stream:
        return json_response(response(await collect(request, answer), about, style), headers)
    events = ResponseFrames(about, style)
    streamed = stream(
        events.frames(answer), answer=answer, keep_alive=events.keep_alive, every=settings.keep_alive_seconds
    )
    streamed.headers.update(headers)
    return streamed


def _style(body: ResponsesRequest, service: Service) -> OutputStyle:
    options = body.reasoning
    return OutputStyle(
        token_text=service.token_text,
        custom_tools=custom_tools(body),
        reasoning=options is None or options.exclude is not True,
        summary=options is not None and options.summary_wanted is not None,
        logprobs=wants_logprobs(body),
    )


def _skipped(body: ResponsesRequest) -> dict[str, str]:
    """The header that names the tools which the model was not offered."""
    kinds = skipped_tools(body)
    if not kinds:
        return {}
    log.info("tools that are not functions were skipped: %s", ", ".join(kinds))
    return {SKIPPED_HEADER: ",".join(kinds)}
