"""From a chat request to the Inference that answers it. Pure; whatever is not served is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.inference import Inference
from dflash2_server.openai.fields import grammar, joined_text, refuse, sampling_parameters
from dflash2_server.openai.reasoning import reasoning_arguments
from dflash2_server.openai.schemas_chat import ChatRequest, Message, PastCall, ResponseFormat, Tool
from dflash2_server.openai.tools import offered, past_call, tool_choice


def chat_inference(request: ChatRequest) -> Inference:
    """Raises RequestError; its param is the field at fault."""
    _refuse_the_unserved(request)
    tools = _tools(request.tools or [])
    return Inference(
        model=request.model,
        messages=chat_messages(request.messages),
        tools=tools,
        tool_choice=tool_choice(request.tool_choice, [tool["function"]["name"] for tool in tools]),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        parameters=_parameters(request),
        grammar=_grammar(request.response_format),
        continue_final=request.continue_final_message is True,
        **reasoning_arguments(request),
    )


def _refuse_the_unserved(request: ChatRequest) -> None:
    if request.n != 1:
        refuse("n", request.n, "one answer a request is served, send the request again for another")
    if set(request.modalities or ()) - {"text"}:
        refuse("modalities", request.modalities, "this model writes text only")
    refuse("audio", request.audio, "this model writes text only")
    refuse("functions", request.functions or None, "offer them as tools")
    refuse("function_call", request.function_call, "say it with tool_choice")
    refuse("web_search_options", request.web_search_options, "this server does not search the web")
    refuse("moderation", request.moderation, "this server does not moderate")


def _parameters(request: ChatRequest) -> dict[str, Any]:
    parameters = sampling_parameters(request)
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if limit is not None:
        parameters["max_tokens"] = limit
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs} without logprobs: set logprobs to true", param="top_logprobs"
        )
    if request.logprobs:
        parameters["logprobs"] = request.top_logprobs or 0
    return parameters


def _grammar(wanted: ResponseFormat | None) -> Any:
    if wanted is None:
        return None
    inner = wanted.json_schema.schema_ if wanted.json_schema else None
    schema = wanted.schema_ if inner is None else inner
    return grammar(wanted.type, schema, "response_format", "response_format.json_schema.schema")


def _tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    found = []
    for i, tool in enumerate(tools):
        if tool.type != "function":
            raise RequestError(
                f"tools[{i}] is of type {tool.type!r:.80}: only functions are served", param=f"tools[{i}].type"
            )
        if tool.function is None:
            raise RequestError(f"tools[{i}] has no function: give one", param=f"tools[{i}].function")
        found.append(offered(tool.function))
    return found


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain data. Raises RequestError for content that is not text, or missing."""
    return [_message(message, i) for i, message in enumerate(messages)]


def _message(message: Message, i: int) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": "tool" if message.role == "function" else message.role}
    plain["content"] = _content(message, f"messages[{i}]")
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "assistant":
        plain |= _assistant(message, i)
    elif message.role == "function":
        plain["tool_call_id"] = _legacy_id(message.name or "")
    elif message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: Message, place: str) -> str | None:
    if message.content is not None:
        return joined_text(message.content, f"{place}.content")
    if message.role == "assistant":
        return None if message.tool_calls or message.function_call else ""
    if message.role in ("tool", "function"):
        return ""
    raise RequestError(f"{place} of role {message.role!r} has no content: give a text", param=f"{place}.content")


def _assistant(message: Message, i: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if thought is not None:
        found["reasoning_content"] = thought
    calls = [_call(call, f"messages[{i}].tool_calls[{j}]") for j, call in enumerate(message.tool_calls or [])]
    if message.function_call is not None:
        legacy = message.function_call
        calls.append(past_call(_legacy_id(legacy.name), legacy.name, legacy.arguments))
    if calls:
        found["tool_calls"] = calls
    return found


def _call(call: PastCall, place: str) -> dict[str, Any]:
    if call.type != "function" or call.function is None:
        raise RequestError(f"{place} is of type {call.type!r:.80}: only functions are served", param=f"{place}.type")
    return past_call(call.id or place, call.function.name, call.function.arguments)


def _legacy_id(name: str) -> str:
    """Calls of the older protocol have no ids: a result belongs to the latest call of its function."""
    return f"call_{name}"
