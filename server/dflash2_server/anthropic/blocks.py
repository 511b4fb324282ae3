"""From events to Anthropic's content blocks: as a whole message, or as the events of a stream."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from dflash2_mlx.errors import DecodeError, EngineBusy
from dflash2_server.body import is_too_deep
from dflash2_server.inference import Done, Event, Text, ToolCall

Block = dict[str, Any]
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def message(id_: str, model: str, events: Iterable[Event], hide_thinking: bool = False) -> dict[str, Any]:
    """A complete message. Raises DFlashError where the events have no proper end.

    With `hide_thinking` the blocks of thinking are there and empty.
    """
    content: list[Block] = []
    end: Done | None = None
    for event in events:
        match event:
            case Text():
                _add_text(content, event, hide_thinking)
            case ToolCall():
                content.append({**call_start(event), "input": call_input(event.arguments)})
            case Done():
                end = event
    done = proper_end(end)
    return {
        **head(id_, model, content),
        **stopped(done),
        "usage": usage(done),
        "timings": dict(done.timings),
        "dflash": dict(done.engine),
    }


def head(id_: str, model: str, content: list[Block]) -> dict[str, Any]:
    """A message but for how it ended."""
    return {"id": id_, "type": "message", "role": "assistant", "model": model, "content": content}


def proper_end(done: Done | None) -> Done:
    """Raises DFlashError for an answer that broke off."""
    if done is None:
        raise DecodeError("the answer ended without an end: this is a fault of the server")
    if done.finish_reason == "cancelled":
        raise EngineBusy("the answer was cancelled")
    return done


def stopped(done: Done) -> dict[str, Any]:
    reason = _STOP_REASONS[done.finish_reason]
    by_text = reason == "end_turn" and done.stop_sequence is not None
    return {
        "stop_reason": "stop_sequence" if by_text else reason,
        "stop_sequence": done.stop_sequence if by_text else None,
    }


def usage(done: Done) -> dict[str, Any]:
    """Input tokens are those that were not cached, as in the protocol."""
    return {
        "input_tokens": done.prompt_tokens - done.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": done.cached_tokens,
        "output_tokens": done.completion_tokens,
        "output_tokens_details": {"thinking_tokens": done.reasoning_tokens},
    }


def first_usage(prompt_tokens: int) -> dict[str, Any]:
    """The usage with which a stream begins; how much of the prompt was cached comes at its end."""
    return {
        "input_tokens": prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }


class BlockStream:
    """The events `content_block_start`, `_delta` and `_stop`, with one block open at a time."""

    def __init__(self, hide_thinking: bool = False) -> None:
        self._hide_thinking = hide_thinking
        self._index = -1
        self._open: Literal["thinking", "text"] | None = None

    def feed(self, event: Text | ToolCall) -> Iterator[dict[str, Any]]:
        if isinstance(event, ToolCall):
            yield from self.close()
            yield self._start(call_start(event) | {"input": {}})
            arguments = json.dumps(call_input(event.arguments), ensure_ascii=False)
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            yield self._stop()
        elif event.text:
            yield from self._feed_text(event)

    def close(self) -> Iterator[dict[str, Any]]:
        """The end of the block that is open, if one is. Thinking is signed with nothing: there is nothing to verify."""
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open is not None:
            yield self._stop()
        self._open = None

    def _feed_text(self, event: Text) -> Iterator[dict[str, Any]]:
        kind = block_kind(event)
        if self._open != kind:
            yield from self.close()
            self._open = kind
            yield self._start(empty_block(kind))
        if not (self._hide_thinking and kind == "thinking"):
            yield self._delta({"type": f"{kind}_delta", kind: event.text})

    def _start(self, block: Block) -> dict[str, Any]:
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Block) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": self._index}


def block_kind(event: Text) -> Literal["thinking", "text"]:
    return "thinking" if event.kind == "reasoning" else "text"


def empty_block(kind: Literal["thinking", "text"]) -> Block:
    return {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}


def call_start(call: ToolCall) -> Block:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def call_input(arguments: str) -> Block:
    """The object of a call's arguments, as JSON can hold it: null for numbers that are not finite.

    What is no object, or too deep to be sent back, is the argument `input` as a text.
    """
    try:
        found = json.loads(arguments, parse_float=_finite, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) and not is_too_deep(found) else {"input": arguments}


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _add_text(content: list[Block], event: Text, hide_thinking: bool) -> None:
    """More of the last block, or a new one where that is of another kind."""
    kind = block_kind(event)
    if event.text:
        if not content or content[-1]["type"] != kind:
            content.append(empty_block(kind))
        if not (hide_thinking and kind == "thinking"):
            content[-1][kind] += event.text
