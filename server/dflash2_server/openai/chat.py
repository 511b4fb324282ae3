"""The route `/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dflash2_mlx.settings import ServerSettings
from dflash2_server.disconnect import collect
from dflash2_server.inference import Answer, Service
from dflash2_server.openai.chat_frames import ChatStyle, chat_completion, chat_frames, keep_alive_chunk
from dflash2_server.openai.chat_inference import chat_inference
from dflash2_server.openai.schemas_chat import ChatRequest
from dflash2_server.openai.wire import ending_with_done, head
from dflash2_server.sse import comment, stream
from dflash2_server.strict_json import json_response

router = APIRouter()


@router.post("/v1/chat/completions", response_class=Response)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The next message of a conversation, as a whole or as a stream of chunks."""
    service: Service = request.app.state.service
    settings: ServerSettings = request.app.state.settings
    inference = chat_inference(body)
    opening = head("chatcmpl-", service.model(body.model))
    answer = await service.submit(inference)
    style = _style(body, answer, settings)
    if not body.stream:
        return json_response(chat_completion(await collect(request, answer), opening, style))
    return stream(
        ending_with_done(chat_frames(answer, opening, style)),
        answer=answer,
        keep_alive=lambda: keep_alive_chunk(opening, style) if settings.keep_alive_style == "chunk" else comment(),
        every=settings.keep_alive_seconds,
    )


def _style(body: ChatRequest, answer: Answer, settings: ServerSettings) -> ChatStyle:
    excluded = body.reasoning is not None and body.reasoning.exclude is True
    return ChatStyle(
        token_text=answer.token_text,
        reasoning_field="hidden" if excluded else settings.reasoning_field,
        logprobs=body.logprobs is True,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
    )
