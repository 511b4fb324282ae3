"""The response object: what it repeats of its request, and how it stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dflash2_server.errors import WireError
from dflash2_server.inference import Done
from dflash2_server.openai.schemas_responses import (
    BuiltInTool,
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponsesRequest,
)
from dflash2_server.openai.wire import Head, extras

# A failed response knows a closed list of codes; the others are the server's.
_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}


class ResponseObject:
    """A response of one request: its object before, during and after the answer."""

    def __init__(self, request: ResponsesRequest, head: Head) -> None:
        self._same = {"id": head.id, "object": "response", "created_at": head.created, "model": head.model}
        self._same |= _echo(request)

    def begun(self) -> dict[str, Any]:
        """While the answer runs."""
        return self._object("in_progress", [])

    def ended(self, output: Sequence[dict[str, Any]], done: Done) -> dict[str, Any]:
        """After `Done`. An answer that was cut is incomplete."""
        usage = {
            "input_tokens": done.prompt_tokens,
            "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": done.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
            "total_tokens": done.prompt_tokens + done.completion_tokens,
        }
        if was_cut(done):
            reason = {"reason": "max_output_tokens"} if done.finish_reason == "length" else None
            return self._object("incomplete", output, usage=usage, incomplete_details=reason) | extras(done)
        now = int(time.time())
        return self._object("completed", output, usage=usage, completed_at=now) | extras(done)

    def failed(self, output: Sequence[dict[str, Any]], error: WireError) -> dict[str, Any]:
        """After an error in the middle of the answer."""
        told = {"code": _CODES.get(error.kind, "server_error"), "message": error.message}
        return self._object("failed", output, error=told)

    def _object(self, status: str, output: Sequence[dict[str, Any]], **changes: Any) -> dict[str, Any]:
        nothing = {"error": None, "incomplete_details": None, "usage": None, "completed_at": None}
        return self._same | {"status": status, "output": list(output)} | nothing | changes


def was_cut(done: Done) -> bool:
    return done.finish_reason in ("length", "cancelled")


def _echo(request: ResponsesRequest) -> dict[str, Any]:
    """What the response repeats, as it was served: some clients always ask for truncation, and nothing is truncated."""
    options = request.reasoning
    return {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": (options.effort if options else None) or request.reasoning_effort,
            "summary": options.summary_wanted if options else None,
        },
        "store": False,
        "temperature": request.temperature,
        "text": _text(request),
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool(tool) for tool in request.tools or [] if not isinstance(tool, BuiltInTool)],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": "disabled",
    }


def _text(request: ResponsesRequest) -> dict[str, Any]:
    given = request.text.model_dump(by_alias=True, exclude_none=True) if request.text else {}
    return {"format": {"type": "text"}} | given


def _tool(tool: FunctionTool | CustomTool | NamespaceTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        inner = [_tool(one) for one in tool.tools if not isinstance(one, BuiltInTool)]
        return {"type": tool.type, "name": tool.name, "description": tool.description, "tools": inner}
    told: dict[str, Any] = tool.model_dump(exclude_none=True)
    # The protocol's own object has these two also where the request leaves them out.
    return {"parameters": None, "strict": None} | told if tool.type == "function" else told
