"""Bring a prompt to a context depth: a long text goes before the last message of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_context(messages: Sequence[Mapping[str, str]], context: str) -> list[dict[str, str]]:
    """The messages with `context` before the last user message's own text; as they are where it is empty."""
    copies = [dict(message) for message in messages]
    users = [message for message in copies if message.get("role") == "user"]
    if context and users:
        users[-1]["content"] = f"{context}\n\n{users[-1]['content']}"
    return copies
