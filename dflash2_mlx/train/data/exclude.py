"""Prompts that stay out of training: those to judge with, and close variants of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import RequestError
from ...prompts import own
from .held_out import held_out_prompts
from .plan import Item

# Two prompts whose words overlap by this share of all their words (Jaccard) count as the same.
_NEAR = 0.8
_WORD = re.compile(r"\w+")


def without(prompts: Sequence[Item], excluded: Path | None) -> list[Item]:
    """The prompts without those of the file, without our own for measuring, and without close variants of either.

    Raises RequestError (param exclude) for a file that cannot be read.
    """
    judged = own()
    if excluded is not None:
        try:
            judged += held_out_prompts(excluded)
        except RequestError as error:
            raise RequestError(str(error), param="exclude") from None
    known = {words(str(prompt.messages[-1]["content"])) for prompt in judged}
    by_size: dict[int, list[frozenset[str]]] = {}
    for one in known:
        by_size.setdefault(len(one), []).append(one)
    return [item for item in prompts if not _is_near(words(item.asked), by_size)]


def words(text: str) -> frozenset[str]:
    """The words of a text, in lower case."""
    return frozenset(_WORD.findall(text.lower()))


def _is_near(one: frozenset[str], by_size: dict[int, list[frozenset[str]]]) -> bool:
    """Sets whose sizes differ by more than the share cannot overlap that much."""
    for size in range(int(_NEAR * len(one)), int(len(one) / _NEAR) + 1):
        for other in by_size.get(size, ()):
            shared = len(one & other)
            if shared >= _NEAR * (len(one) + size - shared):
                return True
    return False
