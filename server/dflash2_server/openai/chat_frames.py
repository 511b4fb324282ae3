"""From the events of an answer to a chat completion, or to the chunks of a stream. Both are made of the same deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash2_server.inference import Answer, Done, Event, Text, ToolCall
from dflash2_server.openai.wire import Head, TokenText, extras, logprob_entries, no_end, split_end, usage
from dflash2_server.sse import frame

# "content": not split from the answer, in tags; "hidden": the request excludes it.
ReasoningField = Literal["both", "reasoning_content", "reasoning", "content", "hidden"]

_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


@dataclass(frozen=True, kw_only=True)
class ChatStyle:
    """How an answer is written. `logprobs`: those of the content are given."""

    token_text: TokenText
    reasoning_field: ReasoningField = "both"
    logprobs: bool = False
    include_usage: bool = False


@dataclass(frozen=True)
class Delta:
    """What one event adds to the message, and the log-probabilities of its tokens."""

    fields: dict[str, str]
    logprobs: list[dict[str, Any]]


class Deltas:
    """Text events as deltas. It knows whether a thinking tag stands open, where reasoning is part of the content."""

    def __init__(self, style: ChatStyle) -> None:
        self._style = style
        self._thinking = False

    def of(self, event: Text) -> Iterator[Delta]:
        """At most one: an event that shows nothing has none."""
        fields = self._reasoning(event.text) if event.kind == "reasoning" else self._content(event.text)
        shown = self._style.logprobs and "content" in fields
        logprobs = logprob_entries(event.logprobs, self._style.token_text) if shown else []
        if logprobs or any(fields.values()):
            yield Delta(fields, logprobs)

    def close(self) -> Iterator[Delta]:
        """What has to stand before a call or the end."""
        if self._thinking:
            self._thinking = False
            yield Delta({"content": _CLOSE}, [])

    def _reasoning(self, text: str) -> dict[str, str]:
        match self._style.reasoning_field:
            case "both":
                return {"reasoning_content": text, "reasoning": text}
            case "hidden":
                return {}
            case "content":
                tag = "" if self._thinking else _OPEN
                self._thinking = True
                return {"content": tag + text}
            case name:
                return {name: text}

    def _content(self, text: str) -> dict[str, str]:
        tag = _CLOSE if self._thinking else ""
        self._thinking = False
        return {"content": tag + text}


def finish_reason(done: Done, calls: bool) -> str:
    """Exactly one of OpenAI's. A cancelled answer is one that was cut."""
    if done.finish_reason == "cancelled":
        return "length"
    return "tool_calls" if calls and done.finish_reason == "stop" else done.finish_reason


def chat_completion(events: Sequence[Event], head: Head, style: ChatStyle) -> dict[str, Any]:
    """The response object of a whole answer. Raises DecodeError where it has no end."""
    parts, done = split_end(events)
    deltas = Deltas(style)
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    logprobs: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for event in parts:
        for delta in deltas.of(event) if isinstance(event, Text) else deltas.close():
            _add(message, delta, logprobs)
        if isinstance(event, ToolCall):
            calls.append(_whole_call(event))
    for delta in deltas.close():
        _add(message, delta, logprobs)
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(logprobs) if style.logprobs else None,
        "finish_reason": finish_reason(done, bool(calls)),
    }
    return _object(head, "chat.completion", [choice]) | {"usage": usage(done)} | extras(done)


def _add(message: dict[str, Any], delta: Delta, logprobs: list[dict[str, Any]]) -> None:
    for name, text in delta.fields.items():
        message[name] = message.get(name, "") + text
    logprobs.extend(delta.logprobs)


def _whole_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def _object(head: Head, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
    }


async def chat_frames(answer: Answer, head: Head, style: ChatStyle) -> AsyncGenerator[str]:
    """The chunks of a stream. The first one, with the role, does not wait for the engine."""
    yield _chunk(head, style, {"role": "assistant", "content": ""})
    deltas = Deltas(style)
    calls = False
    async for event in answer:
        if isinstance(event, Text):
            for delta in deltas.of(event):
                yield _chunk(head, style, delta.fields, logprobs=delta.logprobs)
            continue
        for delta in deltas.close():
            yield _chunk(head, style, delta.fields)
        if isinstance(event, ToolCall):
            calls = True
            for call in _call_deltas(event):
                yield _chunk(head, style, {"tool_calls": [call]})
        else:
            for text in _last_frames(event, head, style, calls):
                yield text
            return
    raise no_end()


def _call_deltas(call: ToolCall) -> Iterator[dict[str, Any]]:
    """Index, id, type and name once with empty arguments, then the arguments."""
    named = {"name": call.name, "arguments": ""}
    yield {"index": call.index, "id": call.id, "type": "function", "function": named}
    yield {"index": call.index, "function": {"arguments": call.arguments}}


def _last_frames(done: Done, head: Head, style: ChatStyle, calls: bool) -> Iterator[str]:
    reason = finish_reason(done, calls)
    if not style.include_usage:
        yield _chunk(head, style, {}, reason=reason, last=extras(done))
        return
    yield _chunk(head, style, {}, reason=reason)
    yield frame(_object(head, "chat.completion.chunk", []) | {"usage": usage(done)} | extras(done))


def keep_alive_chunk(head: Head, style: ChatStyle) -> str:
    """A chunk that adds nothing, for clients whose timers do not count comments."""
    return _chunk(head, style, {})


def _chunk(
    head: Head,
    style: ChatStyle,
    delta: dict[str, Any],
    *,
    logprobs: list[dict[str, Any]] | None = None,
    reason: str | None = None,
    last: dict[str, Any] | None = None,
) -> str:
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": _logprobs(logprobs) if logprobs else None,
        "finish_reason": reason,
    }
    chunk = _object(head, "chat.completion.chunk", [choice])
    if style.include_usage:
        chunk["usage"] = None
    return frame(chunk | (last or {}))
