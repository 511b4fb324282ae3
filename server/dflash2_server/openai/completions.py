"""The route `/v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dflash2_mlx.settings import ServerSettings
from dflash2_server.disconnect import collect
from dflash2_server.errors import param_names
from dflash2_server.inference import Service
from dflash2_server.openai.completions_frames import CompletionStyle, completion, completion_frames, keep_alive_chunk
from dflash2_server.openai.completions_inference import completion_inference
from dflash2_server.openai.schemas_completions import CompletionRequest
from dflash2_server.openai.wire import ending_with_done, head
from dflash2_server.sse import comment, stream
from dflash2_server.strict_json import json_response

router = APIRouter()


@router.post("/v1/completions", response_class=Response)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """The continuation of a text, without a chat template."""
    service: Service = request.app.state.service
    settings: ServerSettings = request.app.state.settings
    inference = completion_inference(body)
    opening = head("cmpl-", service.model(body.model))
    with param_names({"messages": "prompt"}):
        answer = await service.submit(inference)
    style = CompletionStyle(
        token_text=answer.token_text,
        logprobs=body.logprobs is not None,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
    )
    if not body.stream:
        return json_response(completion(await collect(request, answer), opening, style))
    return stream(
        ending_with_done(completion_frames(answer, opening, style)),
        answer=answer,
        keep_alive=lambda: keep_alive_chunk(opening, style) if settings.keep_alive_style == "chunk" else comment(),
        every=settings.keep_alive_seconds,
    )
