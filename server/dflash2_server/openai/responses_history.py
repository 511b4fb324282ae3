"""The input items of a responses request as chat messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.openai.fields import joined_text
from dflash2_server.openai.responses_tools import CUSTOM_ARGUMENT, flat_name
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
            turn = _open_turn(messages)
            said = joined_text(item.content, f"{place}.content")
            turn["content"] = said if turn["content"] is None else f"{turn['content']}\n{said}"
        case MessageItem():
            messages.append({"role": item.role, "content": joined_text(item.content, f"{place}.content")})
        case ReasoningItem():
            turn = _open_turn(messages)
            thought = "".join(part.text for part in item.content or item.summary or [])
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        case FunctionCallItem():
            _add_call(messages, past_call(item.call_id, flat_name(item.name, item.namespace), item.arguments))
        case CustomToolCallItem():
            name = flat_name(item.name, item.namespace)
            _add_call(messages, past_call(item.call_id, name, {CUSTOM_ARGUMENT: item.input}))
        case OutputItem():
            text = joined_text(item.output, f"{place}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        case OtherItem(type="item_reference"):
            raise RequestError(f"{place} is an item_reference: nothing is stored, send the item itself", param=place)
        case OtherItem():
            raise RequestError(
                f"{place} is of type {item.type!r:.80}, which is not served: leave it out", param=f"{place}.type"
            )


def _open_turn(messages: list[Plain], *, for_call: bool = False) -> Plain:
    """The assistant's message that the next item still belongs to: the last one, or a new one.

    Text ends a turn, but for the calls after it. Calls end none: their results have to come next, so that whatever
    stands between belongs to the turn that made them.
    """
    last = messages[-1] if messages else {}
    is_open = for_call or last.get("content") is None or "tool_calls" in last
    if last.get("role") != "assistant" or not is_open:
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _add_call(messages: list[Plain], call: Plain) -> None:
    _open_turn(messages, for_call=True).setdefault("tool_calls", []).append(call)
