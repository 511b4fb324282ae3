"""Prose to fill a context with: of our own making, no sentence twice, the same each time.

Repeated filler would be guessed by any drafter, and gives speeds that no real text has.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from dflash2_mlx.errors import RequestError

_SENTENCES = (4, 8)  # of a paragraph: from, to
_SLOT = re.compile(r"\{(\w+)\}")
# Paragraphs are counted one by one: at their borders a tokenizer may save a token or spend one more.
_SPARE = 1.02


def long_context(tokens_wanted: int, encode: Callable[[str], Sequence[int]], *, seed: int = 0) -> str:
    """Prose of at most `tokens_wanted` tokens as `encode` counts them, and not much fewer; whole words.

    `encode` is a tokenizer's, without special tokens; `seed` decides which prose it is. Raises
    RequestError for a negative number.
    """
    if tokens_wanted < 0:
        raise RequestError(f"a context of {tokens_wanted} tokens: it has to be 0 or more", param="depth")
    found: list[str] = []
    count = 0
    head = 0  # paragraphs that surely fit
    for paragraph in paragraphs(seed):
        if count > tokens_wanted * _SPARE + 16:
            break
        found.append(paragraph)
        count += len(encode(paragraph + "\n\n"))
        if count < tokens_wanted / _SPARE - 16:
            head = len(found)
    return _joined("".join(f"{each}\n\n" for each in found[:head]), "\n\n".join(found[head:]), tokens_wanted, encode)


def paragraphs(seed: int = 0) -> Iterator[str]:
    """Paragraphs without end, each with a heading; no sentence comes twice."""
    data = json.loads((resources.files(__package__) / "data" / "filler.json").read_text(encoding="utf-8"))
    chance = random.Random(seed)
    used: set[str] = set()
    order: list[dict[str, Any]] = []
    number = 0
    while True:
        number += 1
        if not order:
            order = sorted(data["sections"], key=lambda _: chance.random())
        section = order.pop()
        templates = sorted(section["sentences"], key=lambda _: chance.random())[: _count(chance)]
        sentences = [_new(template, data["words"], chance, used) for template in templates]
        yield f"{section['heading'].replace('{ordinal}', _ordinal(number))}\n{' '.join(sentences)}"


def _count(chance: random.Random) -> int:
    low, high = _SENTENCES
    return low + int(chance.random() * (high - low + 1))


def _new(template: str, words: dict[str, list[str]], chance: random.Random, used: set[str]) -> str:
    """A sentence that has not been used; of each template there are thousands."""
    while True:
        sentence = _filled(template, words, chance)
        if sentence not in used:
            used.add(sentence)
            return sentence


def _filled(template: str, words: dict[str, list[str]], chance: random.Random) -> str:
    """Each slot is filled with another word of its kind; a slot with a capital begins a sentence."""
    taken: set[str] = set()

    def word(match: re.Match[str]) -> str:
        name = match[1]
        chosen = _one([each for each in words[name.lower()] if each not in taken], chance)
        taken.add(chosen)
        return chosen[0].upper() + chosen[1:] if name[0].isupper() else chosen

    return _SLOT.sub(word, template)


def _one(choices: Sequence[str], chance: random.Random) -> str:
    return choices[int(chance.random() * len(choices))]  # of all of Random, only random() is promised to stay the same


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _joined(head: str, tail: str, tokens: int, encode: Callable[[str], Sequence[int]]) -> str:
    """`head`, which fits, and as much of `tail` as does. A long text is encoded a few times, not once for each try."""
    room = tokens - (len(encode(head)) if head else 0)
    text = head + _cut(tail, room, encode)
    # Where the parts meet, a tokenizer may count otherwise than for each alone.
    while room > 0 and (over := len(encode(text)) - tokens) > 0:
        room -= over
        text = head + _cut(tail, room, encode)
    return text.rstrip()


def _cut(text: str, tokens: int, encode: Callable[[str], Sequence[int]]) -> str:
    """The longest beginning in whole words that is not too many tokens, found by halving."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    low, high = 0, len(ends)  # `low` words fit
    while low < high:
        middle = (low + high + 1) // 2
        if len(encode(text[: ends[middle - 1]])) <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low - 1]] if low else ""
