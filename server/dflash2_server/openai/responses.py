"""The route `/v1/responses`."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dflash2_mlx.settings import ServerSettings
from dflash2_server.disconnect import collect
from dflash2_server.errors import param_names
from dflash2_server.inference import Answer, Service
from dflash2_server.openai.responses_frames import ResponseFrames, response
from dflash2_server.openai.responses_inference import responses_inference, wants_logprobs
from dflash2_server.openai.responses_object import ResponseObject
from dflash2_server.openai.responses_output import OutputStyle
from dflash2_server.openai.responses_tools import origins, skipped_tools
from dflash2_server.openai.schemas_responses import ResponsesRequest
from dflash2_server.openai.wire import head
from dflash2_server.sse import stream
from dflash2_server.strict_json import json_response

log = logging.getLogger(__name__)

router = APIRouter()

SKIPPED_HEADER = "x-dflash2-skipped-tools"
MOST_SKIPPED_NAMES = 16
# The service speaks in chat's names.
PARAM_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


@router.post("/v1/responses", response_class=Response)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """The next items of a conversation, as a whole or as a stream of events. Nothing is stored."""
    service: Service = request.app.state.service
    settings: ServerSettings = request.app.state.settings
    inference = responses_inference(body)
    about = ResponseObject(body, head("resp_", service.model(body.model)))
    headers = _skipped(body)
    with param_names(PARAM_NAMES):
        answer = await service.submit(inference)
    style = _style(body, answer)
    if not body.stream:
        return json_response(response(await collect(request, answer), about, style), headers)
    events = ResponseFrames(about, style)
    streamed = stream(
        events.frames(answer), answer=answer, keep_alive=events.keep_alive, every=settings.keep_alive_seconds
    )
    streamed.headers.update(headers)
    return streamed


def _style(body: ResponsesRequest, answer: Answer) -> OutputStyle:
    options = body.reasoning
    return OutputStyle(
        token_text=answer.token_text,
        origins=origins(body),
        reasoning=options is None or options.exclude is not True,
        summary=options is not None and options.summary_wanted is not None,
        logprobs=wants_logprobs(body),
    )


def _skipped(body: ResponsesRequest) -> dict[str, str]:
    """The header that names the tools which the model was not offered."""
    kinds = skipped_tools(body)
    if not kinds:
        return {}
    shown, more = kinds[:MOST_SKIPPED_NAMES], len(kinds) - MOST_SKIPPED_NAMES
    told = ",".join([*shown, f"and {more} more"] if more > 0 else shown)
    log.info("tools that are not functions were skipped: %s", told)
    return {SKIPPED_HEADER: told}
