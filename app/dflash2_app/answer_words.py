"""The figures of an answer in words, and two answers to one message compared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from dflash2_app.conversation import Reply
from dflash2_server.inference import Done

_ENDS = {
    "stop": "ended by itself",
    "length": "cut at the token limit",
    "tool_calls": "ended with a tool call",
    "cancelled": "stopped",
}


def figures(done: Done) -> list[str]:
    """What an answer took, one fact each."""
    timings, engine = done.timings, done.engine
    facts = [
        "1 token" if done.completion_tokens == 1 else f"{done.completion_tokens} tokens",
        f"{timings['predicted_per_second'] or 0:.1f} tok/s",
        f"{timings['tokens_per_cycle']:.2f} tokens per cycle",
    ]
    if timings["draft_n"]:
        facts.append(f"{timings['draft_n_accepted']} of {timings['draft_n']} drafts accepted")
    facts.append(f"{done.cached_tokens} of {done.prompt_tokens} prompt tokens cached")
    return [*facts, engine_words(engine), _ENDS.get(done.finish_reason, done.finish_reason)]


def engine_words(engine: Mapping[str, Any]) -> str:
    """The engine in force, with what a request may have changed."""
    if engine["engine"] == "plain":
        reason = engine.get("fallback_reason")
        return f"plain decoding: {reason}" if reason else "plain decoding"
    if engine["verify_mode"] == "off":
        return f"{engine['engine']}, speculation off"
    return f"{engine['engine']}, block size {engine['block_size']}, {engine['verify_mode']}"


def comparison_rows(reply: Reply, other: Reply) -> list[tuple[str, str, str]]:
    """Name, with speculation, without; of two answers that are done."""
    assert reply.done is not None
    assert other.done is not None
    both = (reply.done, other.done)
    rows = {
        "tokens per second": [f"{done.timings['predicted_per_second'] or 0:.1f}" for done in both],
        "tokens": [str(done.completion_tokens) for done in both],
        "seconds": [f"{done.timings['predicted_ms'] / 1000:.2f}" for done in both],
        "tokens per cycle": [f"{done.timings['tokens_per_cycle']:.2f}" for done in both],
        "engine": [engine_words(done.engine) for done in both],
    }
    return [(name, first, second) for name, (first, second) in rows.items()]


def verdict(reply: Reply, other: Reply, *, greedy: bool | None) -> str:
    """How much faster it was, and whether the texts are equal. `greedy` None: it is not known."""
    assert reply.done is not None
    assert other.done is not None
    fast, slow = (done.timings["predicted_per_second"] or 0.0 for done in (reply.done, other.done))
    speed = f"{fast / slow:.2f} times the speed. " if slow else ""
    place = first_difference(reply.reasoning + reply.content, other.reasoning + other.content)
    if place is None:
        return f"{speed}The texts are equal."
    why = {
        True: "greedy answers may fork where the two best tokens are nearly equal",
        False: "sampled answers do",
        None: "sampled answers do, greedy ones only where the two best tokens are nearly equal",
    }[greedy]
    return f"{speed}The texts differ from character {place + 1} on: {why}."


def first_difference(one: str, two: str) -> int | None:
    """Index of the first character that is not the same; None for equal texts."""
    pairs = enumerate(zip_longest(one, two))
    return next((place for place, (first, second) in pairs if first != second), None)


def thinking_title(reply: Reply) -> str:
    if reply.state == "thinking":
        return "Thinking …"
    tokens = f", {reply.done.reasoning_tokens} tokens" if reply.done and reply.done.reasoning_tokens else ""
    return f"Thought for {reply.thought_seconds or 0:.1f} s{tokens}"
