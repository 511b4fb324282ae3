"""Machines and texts for the simulation: cost curves of verify by width, and acceptance by position."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.width.simulate import Content, Cost

WIDEST = 8
DRAFT = 0.10  # a draft's share of a plain step


def flat(width: int, depth: int) -> float:
    """A machine that is bound by memory: a verify costs what a step costs."""
    return 1.0 if width == 1 else 1.0 + DRAFT + 0.01 * width


def cliff(width: int, depth: int) -> float:
    """Another kernel from five rows on, as on some chips."""
    return 1.0 if width == 1 else 1.05 + DRAFT + 0.02 * width + (0.9 if width > 4 else 0.0)


def linear(width: int, depth: int) -> float:
    """As on this CPU: each row costs a third of a step."""
    return 1.0 if width == 1 else 0.7 + DRAFT + 0.33 * width


def deep(width: int, depth: int) -> float:
    """Attention over a long context costs for each row."""
    rows = 1.0 if width == 1 else 1.1 + 0.02 * width
    return rows + depth / 16384 * (0.3 if width == 1 else 0.2 * width)


COSTS: dict[str, Cost] = {"flat": flat, "cliff at 5": cliff, "linear": linear, "long context": deep}


def profile(first: float, fall: float = 0.97) -> list[float]:
    """Conditional acceptance by position, from `first` on, each a little worse than the one before."""
    return [first * fall**i for i in range(WIDEST - 1)]


CODE, CHAT, PROSE, HOPELESS = profile(0.9), profile(0.7), profile(0.5), profile(0.15)


def texts(name: str, *, requests: int = 24, prompt: int = 200, seed: int = 3) -> list[Content]:
    """Requests of one kind, or of several in random order, or each changing its kind on the way."""
    rng = random.Random(seed)
    pure = {"code": CODE, "chat": CHAT, "prose": PROSE, "hopeless": HOPELESS}
    if name in pure:
        return [Content([pure[name]], prompt) for _ in range(requests)]
    kinds: Sequence[list[float]] = (CODE, CHAT, PROSE)
    if name == "mixed":
        return [Content([rng.choice(kinds)], prompt) for _ in range(requests)]
    if name == "changing":
        return [Content([rng.choice(kinds) for _ in range(3)], prompt) for _ in range(requests)]
    raise KeyError(name)


TEXTS = ("code", "chat", "prose", "hopeless", "mixed", "changing")
