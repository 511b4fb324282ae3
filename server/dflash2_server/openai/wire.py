"""Pieces of responses that the three protocols share: ids, usage, log-probabilities, and the frames of an error."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dflash2_mlx import __version__
from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_mlx.errors import DecodeError
from dflash2_server.errors import openai_body, wire_error
from dflash2_server.inference import Done, Event, ModelInfo, Text, ToolCall
from dflash2_server.sse import frame

# OpenAI's value for "as good as impossible": JSON has no infinity.
_LEAST_LOGPROB = -9999.0

TokenText = Callable[[int], str]


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"


def fingerprint(model: ModelInfo) -> str:
    """What a seed's promise depends on: the version, the model and how it is run."""
    facts = (__version__, model.id, model.engine, model.block_size, model.drafter)
    return f"fp_{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every object of one response repeats."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))


def head(prefix: str, model: ModelInfo) -> Head:
    """A new response of that model, its id beginning with `prefix`."""
    return Head(id=new_id(prefix), model=model.id, fingerprint=fingerprint(model))


def usage(done: Done) -> dict[str, Any]:
    """The usage object of chat and completions."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
    }


def extras(done: Done) -> dict[str, Any]:
    """Our own two objects, on every final response or last chunk."""
    return {"timings": dict(done.timings), "dflash": dict(done.engine)}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


def logprob_entries(tokens: Iterable[TokenLogprobs], token_text: TokenText) -> list[dict[str, Any]]:
    """The entries of chat and responses, one a token."""
    return [
        _entry(one.token, one.logprob, token_text)
        | {"top_logprobs": [_entry(token, logprob, token_text) for token, logprob in one.top]}
        for one in tokens
    ]


def _entry(token: int, logprob: float, token_text: TokenText) -> dict[str, Any]:
    text = token_text(token)
    # A token that is part of a character has no text of its own, and its bytes are not known here.
    known = None if "\ufffd" in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": finite(logprob), "bytes": known}


def split_end(events: Sequence[Event]) -> tuple[list[Text | ToolCall], Done]:
    """A whole answer without its last event, and that event. Raises DecodeError where it is missing."""
    if not events or not isinstance(events[-1], Done):
        raise no_end()
    return [event for event in events[:-1] if not isinstance(event, Done)], events[-1]


def no_end() -> DecodeError:
    return DecodeError("the engine ended the answer without saying why: send the request again")


async def ending_with_done(frames: AsyncGenerator[str]) -> AsyncIterator[str]:
    """The frames, an error frame where they fail, and the `[DONE]` that ends a stream of chat or completions."""
    async with aclosing(frames):
        try:
            async for text in frames:
                yield text
        except Exception as error:
            yield frame(openai_body(wire_error(error)))
    yield frame("[DONE]")
