"""Seeds: of a sample, those of its prompt and round, so that all arms draw from the same numbers; of fillers."""

from __future__ import annotations

import hashlib

from .model import Arm, BenchPrompt


def seed_of(seed: int, prompt: BenchPrompt, number: int) -> int:
    """A seed below 2**31, which servers of all kinds take, for a prompt in round `number`."""
    text = f"{seed} {prompt.id} {prompt.depth} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def seed_for(arm: Arm, seed: int) -> int | None:
    """The seed that an arm is given; None for one that draws and chooses its width.

    A seed would hold a width that is to be chosen: other widths draw other tokens. Greedy answers draw nothing.
    """
    chosen = arm.verify_mode == "adaptive" or (arm.asks_for_speculation and arm.block_size is None)
    return None if chosen and arm.temperature > 0 else seed


def filler_seed(prompt: BenchPrompt) -> int:
    """Of the text that brings a prompt to its depth: each prompt has a context of its own."""
    return int.from_bytes(hashlib.sha256(f"filler {prompt.id}".encode()).digest()[:4])


def nonce(arm: Arm, prompt: BenchPrompt, seed: int) -> str:
    """Eight hexadecimal characters that no other arm, prompt or round has."""
    text = f"nonce {arm.name} {prompt.id} {prompt.depth} {seed}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]
