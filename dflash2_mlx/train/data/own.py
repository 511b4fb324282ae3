"""Prompts of our own from templates: kinds in fixed shares, code and structured text the most of them."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from ...prompts import Prompt

SOURCE = "templates"
# Most prompts of one template: no template with large slots may outweigh the others.
_MOST = 1200
_FIELD = re.compile(r"\{(\w+)(?::\d)?\}")


def template_prompts(seed: int) -> list[Prompt]:
    """All of them, more than 20,000, in an order that `seed` decides; each beginning of it has the kinds' shares."""
    placed = []
    for file in _files():
        kind, weight = str(file["kind"]), float(file["weight"])
        found = list(dict.fromkeys(_texts(file, random.Random(f"{seed} {kind}"))))
        random.Random(f"{seed} {kind} order").shuffle(found)
        placed += [((i + 0.5) / weight, kind, text) for i, text in enumerate(found)]
    placed.sort()
    return [
        Prompt(id=f"{SOURCE}-{i}", kind=kind, messages=({"role": "user", "content": text},), source=SOURCE)
        for i, (_, kind, text) in enumerate(placed)
    ]


def _files() -> Iterator[dict[str, Any]]:
    folder = resources.files(__package__) / "templates"
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".json"):
            yield json.loads(path.read_text(encoding="utf-8"))


def _texts(file: dict[str, Any], rng: random.Random) -> Iterator[str]:
    """The filled templates of one file, at most _MOST of each."""
    for template in file["templates"]:
        fields = list(dict.fromkeys(found[0] for found in _FIELD.finditer(template)))
        choices = [file["slots"][_slot(name)] for name in fields]
        total = math.prod(map(len, choices))
        for number in sorted(rng.sample(range(total), min(_MOST, total))):
            values = _values(number, choices)
            if not _repeats(fields, values):
                filled = dict(zip(fields, values, strict=True))
                # One pass, so that braces in a value stay what they are.
                yield _FIELD.sub(lambda found, filled=filled: filled[found[0]], template)  # type: ignore[misc]


def _values(number: int, choices: list[list[str]]) -> list[str]:
    """The combination of that number: its digits in the mixed base of the choices."""
    values = []
    for options in choices:
        number, digit = divmod(number, len(options))
        values.append(options[digit])
    return values


def _repeats(fields: list[str], values: list[str]) -> bool:
    """Whether two fields of one slot have the same value."""
    pairs = [(_slot(field), value) for field, value in zip(fields, values, strict=True)]
    return len(set(pairs)) < len(pairs)


def _slot(field: str) -> str:
    return field.strip("{}").partition(":")[0]
