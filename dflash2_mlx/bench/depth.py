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


def with_nonce(messages: Sequence[Mapping[str, str]], nonce: str) -> list[dict[str, str]]:
    """The messages with `nonce` at the very start of the first."""
    copies = [dict(message) for message in messages]
    if copies:
        copies[0]["content"] = f"[{nonce}]\n{copies[0]['content']}"
    return copies
