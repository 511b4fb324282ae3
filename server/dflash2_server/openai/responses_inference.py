"""From a responses request to the Inference that answers it. Pure; whatever is not served is refused by name."""

from __future__ import annotations

from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.inference import Inference
from dflash2_server.openai.fields import grammar, refuse, sampling_parameters
from dflash2_server.openai.reasoning import reasoning_arguments
from dflash2_server.openai.responses_history import history
from dflash2_server.openai.responses_tools import offered_tools
from dflash2_server.openai.schemas_responses import ResponsesRequest, TextOptions
from dflash2_server.openai.tools import tool_choice

INCLUDE_LOGPROBS = "message.output_text.logprobs"


def responses_inference(request: ResponsesRequest) -> Inference:
    """Raises RequestError; its param is the field at fault."""
    _refuse_the_unserved(request)
    tools = offered_tools(request)
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
