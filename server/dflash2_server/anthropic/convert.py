"""From a request of Anthropic's protocol to an `Inference`: blocks become OpenAI's chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from dflash2_mlx.errors import RequestError
from dflash2_server.anthropic.schemas import (
    AnyMessage,
    AssistantMessage,
    ContentSource,
    CountRequest,
    DocumentBlock,
    MessagesRequest,
    ResultBlock,
    ShownThinking,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolChoice,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from dflash2_server.inference import Inference, NamedTool, Reasoning

# Claude Code puts a line for the billing first, which changes with every request and would spoil the prefix cache.
BILLING_HEADER = "x-anthropic-billing-header:"
MOST_STOPS = 4
_CLIENT_TOOLS = (None, "custom", "function")


def count_inference(request: CountRequest) -> Inference:
    """Raises RequestError for what is known and not served."""
    return Inference(**_prompt(request))


def inference(request: MessagesRequest) -> Inference:
    """Raises RequestError for what is known and not served."""
    return Inference(**_prompt(request), parameters=_parameters(request))


def chat_messages(request: CountRequest) -> list[dict[str, Any]]:
    """OpenAI's chat messages. A tool's results come before what the user says beside them."""
    system = [text for block in request.system if (text := _without_billing(block.text))]
    head = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*head, *(turn for message in request.messages for turn in _turns(message))]


def hides_thinking(request: CountRequest) -> bool:
    """Whether the blocks of thinking are to be empty."""
    return isinstance(request.thinking, ShownThinking) and request.thinking.display == "omitted"


def _without_billing(text: str) -> str:
    """Only the line goes: the instructions may stand in the same block."""
    if not text.lstrip().startswith(BILLING_HEADER):
        return text
    return text.lstrip().partition("\n")[2].lstrip("\n")


def _prompt(request: CountRequest) -> dict[str, Any]:
    for name, nothing in (("container", [None]), ("mcp_servers", [None, []])):
        if getattr(request, name) not in nothing:
            raise RequestError(f"{name} is not served: this server runs no tools itself", param=name)
    tools = [_function(tool, index) for index, tool in enumerate(request.tools or [])]
    choice, parallel = _tool_choice(request)
    reasoning, budget = _reasoning(request)
    return {
        "model": request.model,
        "messages": chat_messages(request),
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "reasoning": reasoning,
        "thinking_budget": budget,
        "grammar": _grammar(request),
        "continue_final": isinstance(request.messages[-1], AssistantMessage),
    }


def _turns(message: AnyMessage) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": _joined(message.content, "\n\n")}
        case AssistantMessage():
            yield _assistant_turn(message)
        case UserMessage():
            results = [block for block in message.content if isinstance(block, ToolResultBlock)]
            texts = [block for block in message.content if not isinstance(block, ToolResultBlock)]
            for result in results:
                yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result_text(result)}
            if texts or not results:
                yield {"role": "user", "content": _joined(texts, "\n")}


def _assistant_turn(message: AssistantMessage) -> dict[str, Any]:
    """Text is joined as it was written, so that a turn reads as the model's own; hidden thinking is left out."""
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in message.content if isinstance(block, ToolUseBlock)]
    turn: dict[str, Any] = {"role": "assistant", "content": _joined(texts, "")}
    if any(thoughts):
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["content"] = turn["content"] or None
        turn["tool_calls"] = calls
    return turn


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result_text(result: ToolResultBlock) -> str:
    text = _joined(result.content, "\n")
    return f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text


def _joined(blocks: Iterable[ResultBlock], separator: str) -> str:
    return separator.join(_text(block) for block in blocks)


def _text(block: ResultBlock) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ToolReferenceBlock(tool_name=name):
            return name
        case DocumentBlock(source=source):
            said = _joined(source.content, "\n") if isinstance(source, ContentSource) else source.data
            return "\n".join(text for text in (block.title, block.context, said) if text)


def _function(tool: Tool, index: int) -> dict[str, Any]:
    if tool.type not in _CLIENT_TOOLS:
        raise RequestError(
            f"tool type {tool.type!r} is not served: only tools that the client runs, of type 'custom'",
            param=f"tools.{index}.type",
        )
    if tool.input_schema is None:
        raise RequestError(f"tool {tool.name!r} has no input_schema", param=f"tools.{index}.input_schema")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(request: CountRequest) -> tuple[Literal["auto", "none", "required"] | NamedTool, bool]:
    """The choice, and whether several calls may be made at once. Raises RequestError where no tool can be chosen."""
    choice = request.tool_choice
    if choice is None:
        return "auto", True
    parallel = not getattr(choice, "disable_parallel_tool_use", None)
    names = [tool.name for tool in request.tools or []]
    if isinstance(choice, ToolChoice):
        if choice.name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise RequestError(
                f"tool_choice names {choice.name!r:.80}, which is not among the tools: {known}", param="tool_choice"
            )
        return NamedTool(choice.name), parallel
    if choice.type == "any" and not names:
        raise RequestError("tool_choice is 'any' and no tools are offered", param="tool_choice")
    kinds: dict[str, Literal["auto", "none", "required"]] = {"auto": "auto", "any": "required", "none": "none"}
    return kinds[choice.type], parallel


def _reasoning(request: CountRequest) -> tuple[Reasoning | None, int | None]:
    """How to reason, and with how many tokens at the most. As in the protocol, effort also goes without thinking."""
    effort = request.output_config.effort if request.output_config else None
    level: Reasoning | None = "xhigh" if effort == "max" else effort
    match request.thinking:
        case None:
            return level, None
        case ThinkingDisabled():
            return "off", None
        case ThinkingEnabled(budget_tokens=budget):
            return level or "on", budget
        case _:
            return level or "on", None


def _grammar(request: CountRequest) -> dict[str, Any] | None:
    newer = request.output_config.format if request.output_config else None
    found = newer or request.output_format
    return None if found is None else found.schema_


def _parameters(request: MessagesRequest) -> dict[str, Any]:
    stops = request.stop_sequences or []
    if len(stops) > MOST_STOPS:
        raise RequestError(
            f"stop_sequences has {len(stops)} texts: {MOST_STOPS} are the most that are served", param="stop_sequences"
        )
    given = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": stops or None,
    }
    options = request.dflash.parameters() if request.dflash else {}
    return {name: value for name, value in given.items() if value is not None} | dict(options)
