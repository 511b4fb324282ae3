"""The seed of a sample: that of its prompt and round, so that all arms draw from the same numbers."""

from __future__ import annotations

import hashlib

from .model import BenchPrompt


def seed_of(seed: int, prompt: BenchPrompt, number: int) -> int:
    """A seed below 2**31, which servers of all kinds take, for a prompt in round `number`."""
    text = f"{seed} {prompt.id} {prompt.depth} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
