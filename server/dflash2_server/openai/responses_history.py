"""The input items of a responses request as chat messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.openai.fields import joined_text
from dflash2_server.openai.schemas_responses import (
    CustomToolCallItem,
    FunctionCallItem,
    Item,
    MessageItem,
    OtherItem,
    OutputItem,
    ReasoningItem,
)
from dflash2_server.openai.tools import past_call

Plain = dict[str, Any]

# The one argument of the function that a custom tool is offered as.
CUSTOM_ARGUMENT = "input"


def history(items: str | Sequence[Item]) -> list[Plain]:
    """The messages. What one turn of the model left as items (reasoning, message, calls) is one message again.

    Raises RequestError that names the item, for those that are not served.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Plain] = []
    for i, item in enumerate(items):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[Plain], item: Item, place: str) -> None:
    match item:
        case MessageItem(role="assistant"):
            turn = _open_turn(messages, closed_by=("content", "tool_calls"))
            turn["content"] = joined_text(item.content, f"{place}.content")
        case MessageItem():
            messages.append({"role": item.role, "content": joined_text(item.content, f"{place}.content")})
        case ReasoningItem():
            turn = _open_turn(messages, closed_by=("content", "tool_calls"))
            thought = "".join(part.text for part in item.content or item.summary or [])
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        case FunctionCallItem():
            _add_call(messages, past_call(item.call_id, item.name, item.arguments))
        case CustomToolCallItem():
            _add_call(messages, past_call(item.call_id, item.name, {CUSTOM_ARGUMENT: item.input}))
        case OutputItem():
            text = joined_text(item.output, f"{place}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        case OtherItem(type="item_reference"):
            raise RequestError(f"{place} is an item_reference: nothing is stored, send the item itself", param=place)
        case OtherItem():
            raise RequestError(
                f"{place} is of type {item.type!r:.80}, which is not served: leave it out", param=f"{place}.type"
            )


def _open_turn(messages: list[Plain], *, closed_by: tuple[str, ...]) -> Plain:
    """The assistant's message that the next item still belongs to: the last one, or a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or any(last.get(key) is not None for key in closed_by):
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _add_call(messages: list[Plain], call: Plain) -> None:
    _open_turn(messages, closed_by=()).setdefault("tool_calls", []).append(call)
