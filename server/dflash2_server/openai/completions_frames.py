"""From the events of an answer to a text completion, or to the chunks of its stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_server.inference import Answer, Done, Event, Text
from dflash2_server.openai.wire import Head, TokenText, extras, finite, no_end, split_end, usage
from dflash2_server.sse import frame


@dataclass
class LegacyLogprobs:
    """The columns of the older log-probability object; offsets count the tokens' own texts, over the whole answer."""

    token_text: TokenText
    offset: int = field(default=0)

    def columns(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The columns of the next tokens. The chosen token is always among its row's alternatives."""
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for one in tokens:
            text = self.token_text(one.token)
            tops = {text: finite(one.logprob)}
            for token, logprob in one.top:
                tops.setdefault(self.token_text(token), finite(logprob))
            found["tokens"].append(text)
            found["token_logprobs"].append(finite(one.logprob))
            found["top_logprobs"].append(tops)
            found["text_offset"].append(self.offset)
            self.offset += len(text)
        return found


@dataclass(frozen=True, kw_only=True)
class CompletionStyle:
    """How an answer is written."""

    token_text: TokenText
    logprobs: bool = False
    include_usage: bool = False


def completion(events: Sequence[Event], head: Head, style: CompletionStyle) -> dict[str, Any]:
    """The response object of a whole answer. Raises DecodeError where it has no end."""
    parts, done = split_end(events)
    texts = [event for event in parts if isinstance(event, Text)]
    columns = LegacyLogprobs(style.token_text).columns(one for event in texts for one in event.logprobs)
    choice = _choice("".join(event.text for event in texts), columns if style.logprobs else None, _reason(done))
    return _object(head, [choice]) | {"usage": usage(done)} | extras(done)


async def completion_frames(answer: Answer, head: Head, style: CompletionStyle) -> AsyncGenerator[str]:
    """The chunks of a stream."""
    legacy = LegacyLogprobs(style.token_text)
    shared = _no_usage(style)
    async for event in answer:
        if isinstance(event, Text):
            columns = legacy.columns(event.logprobs) if style.logprobs and event.logprobs else None
            if event.text or columns:
                yield frame(_object(head, [_choice(event.text, columns, None)]) | shared)
        elif isinstance(event, Done):
            last = _object(head, [_choice("", None, _reason(event))])
            yield frame(last | (shared if style.include_usage else extras(event)))
            if style.include_usage:
                yield frame(_object(head, []) | {"usage": usage(event)} | extras(event))
            return
    raise no_end()


def keep_alive_chunk(head: Head, style: CompletionStyle) -> str:
    """A chunk that adds nothing."""
    return frame(_object(head, [_choice("", None, None)]) | _no_usage(style))


def _no_usage(style: CompletionStyle) -> dict[str, Any]:
    """What every chunk but the last one says of the usage, where it is asked for."""
    return {"usage": None} if style.include_usage else {}


def _reason(done: Done) -> str:
    return "stop" if done.finish_reason == "stop" else "length"


def _choice(text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _object(head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
    }
