"""From a responses request to the Inference that answers it. Pure; whatever is not served is refused by name."""

from __future__ import annotations

import re
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.inference import Inference
from dflash2_server.openai.fields import grammar, refuse, sampling_parameters
from dflash2_server.openai.reasoning import reasoning_arguments
from dflash2_server.openai.responses_history import CUSTOM_ARGUMENT, history
from dflash2_server.openai.schemas_responses import (
    BuiltInTool,
    CustomTool,
    FunctionTool,
    ResponsesRequest,
    ResponsesTool,
    TextOptions,
)
from dflash2_server.openai.tools import Function, offered, tool_choice

INCLUDE_LOGPROBS = "message.output_text.logprobs"
_NOT_IN_HEADERS = re.compile(r"[^A-Za-z0-9._-]")


def responses_inference(request: ResponsesRequest) -> Inference:
    """Raises RequestError; its param is the field at fault."""
    _refuse_the_unserved(request)
    tools = [_offered(tool) for tool in request.tools or [] if not isinstance(tool, BuiltInTool)]
    messages = history(request.input)
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    return Inference(
        model=request.model,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice(request.tool_choice, [tool["function"]["name"] for tool in tools]),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        parameters=_parameters(request),
        grammar=_grammar(request.text),
        **reasoning_arguments(request),
    )


def skipped_tools(request: ResponsesRequest) -> list[str]:
    """The types of the tools that the model is not offered, each once, safe to stand in a header."""
    kinds = [tool.type for tool in request.tools or [] if isinstance(tool, BuiltInTool)]
    return list(dict.fromkeys(_NOT_IN_HEADERS.sub("?", kind[:40]) for kind in kinds))


def custom_tools(request: ResponsesRequest) -> frozenset[str]:
    """The names of the tools whose calls are given back as custom tool calls."""
    return frozenset(tool.name for tool in request.tools or [] if isinstance(tool, CustomTool))


def wants_logprobs(request: ResponsesRequest) -> bool:
    return INCLUDE_LOGPROBS in (request.include or [])


def _refuse_the_unserved(request: ResponsesRequest) -> None:
    refuse("previous_response_id", request.previous_response_id or None, "nothing is stored, send the whole input")
    refuse("conversation", request.conversation or None, "nothing is stored, send the whole input")
    refuse("prompt", request.prompt, "there are no stored prompts, send instructions and input")
    refuse("background", request.background or None, "wait for the answer, or stream it")
    refuse("moderation", request.moderation, "this server does not moderate")


def _parameters(request: ResponsesRequest) -> dict[str, Any]:
    parameters = sampling_parameters(request)
    if request.max_output_tokens is not None:
        parameters["max_tokens"] = request.max_output_tokens
    if wants_logprobs(request):
        parameters["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs} and the log-probabilities are not asked for: "
            f"add {INCLUDE_LOGPROBS!r} to include",
            param="top_logprobs",
        )
    return parameters


def _grammar(text: TextOptions | None) -> Any:
    if text is None or text.format is None:
        return None
    return grammar(text.format.type, text.format.schema_, "text.format", "text.format.schema")


def _offered(tool: ResponsesTool) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        return offered(tool)
    assert isinstance(tool, CustomTool)
    schema = {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: {"type": "string", "description": "the whole input of the tool"}},
        "required": [CUSTOM_ARGUMENT],
    }
    return offered(Function(name=tool.name, description=_custom_description(tool), parameters=schema))


def _custom_description(tool: CustomTool) -> str:
    """The tool's own words, and the grammar that its input has to follow."""
    told = [tool.description] if tool.description else []
    if tool.format is not None and tool.format.definition:
        syntax = f" ({tool.format.syntax})" if tool.format.syntax else ""
        told.append(f"The input follows this grammar{syntax}:\n{tool.format.definition}")
    return "\n\n".join(told)
