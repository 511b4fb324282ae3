"""Where prompts are from: chat files, texts, the Hub, our own templates, and answers that exist already."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DFlashError, RequestError
from ...prompts import SETS, Prompt, from_set, jsonl
from ...prompts.hub_rows import fetch_rows, named_rows
from .exclude import without
from .own import template_prompts
from .plan import Item
from .texts import text_items

# Rows of a Hub data set that are read where no limit is given: its API gives a hundred at a time.
_HUB_ROWS = 2000
_COLUMNS = (*jsonl.COLUMNS, "instruction", "query")
_SPEAKERS = {"human": "user", "gpt": "assistant"}  # another common way to write messages


@dataclass(frozen=True)
class Sources:
    """What the command names; several may be given together, `limit` is for each of them."""

    prompts: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    sets: tuple[str, ...] = ()
    templates: bool = False
    completions: tuple[Path, ...] = ()
    exclude: Path | None = None
    limit: int | None = None


def gather(sources: Sources, seed: int) -> list[Item]:
    """All prompts that may be trained on. Raises RequestError that names file and line, or the source."""
    jsonl.check_limit(sources.limit)
    found: list[list[Item]] = [_shuffled(_of_file(path, _chat), seed) for path in sources.prompts]
    found += [_shuffled(_of_file(path, _completion), seed) for path in sources.completions]
    found += [text_items(folder, seed) for folder in sources.texts]
    found += [_of_hub(name, sources.limit) for name in sources.sets]
    if sources.templates:
        found.append([_from_prompt(prompt) for prompt in template_prompts(seed)])
    if not found:
        raise RequestError(
            "no prompts are named: give one or more of --prompts, --texts, --set, --templates and --completions "
            "(or --join)",
            param="prompts",
        )
    kept = [item for items in found for item in without(items, sources.exclude)[: sources.limit]]
    if not kept:
        raise RequestError("nothing is left: all prompts are held out by --exclude or our own", param="exclude")
    return kept


def _shuffled(items: list[Item], seed: int) -> list[Item]:
    random.Random(seed).shuffle(items)
    return items


def _of_file(path: Path, read: Callable[[Mapping[str, Any], Path], Item]) -> list[Item]:
    found = []
    for number, row in jsonl.rows(path):
        try:
            found.append(read(row, path))
        except ValueError as error:
            raise RequestError(f"{path}:{number}: {error}", param="prompts") from None
    if not found:
        raise RequestError(f"{path} holds nothing: one JSON object a line is expected", param="prompts")
    return found


def _chat(row: Mapping[str, Any], path: Path) -> Item:
    return Item(kind=jsonl.kind(row), source=path.name, messages=_question(row))


def _completion(row: Mapping[str, Any], path: Path) -> Item:
    """An answer of the target's own with its prompt. Raises ValueError."""
    completion = _typed(row, "completion", str)
    if not completion:
        raise ValueError("completion is empty")
    jsonl.check_text("completion", completion)
    temperature = float(_typed(row, "temperature", (int, float), 0.0))
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature:g}, it has to be 0 or more")
    finished = _typed(row, "finished", bool, True)
    return Item(
        kind=jsonl.kind(row),
        source=path.name,
        messages=_question(row),
        completion=completion,
        temperature=temperature,
        finished=finished,
    )


def _typed(row: Mapping[str, Any], key: str, kind: Any, otherwise: Any = None) -> Any:
    value = row.get(key, otherwise)
    if value is None:
        raise ValueError(f"{key} is missing")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key} is {value!r}, which it may not be")
    return value


def _question(row: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """The messages up to the last of the user's: what the assistant said after it is answered anew. ValueError."""
    messages = row.get("messages") or _spoken(row.get("conversations"))
    if messages is None:
        text = row.get("input")
        found = jsonl.question(row, _COLUMNS)
        if row.get("instruction") == found[0]["content"] and isinstance(text, str) and text.strip():
            return ({"role": "user", "content": f"{found[0]['content']}\n\n{text}"},)
        return found
    if isinstance(messages, list):
        messages = list(messages)
        while messages and isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
            messages.pop()
    return jsonl.question({"messages": messages})


def _spoken(turns: Any) -> list[dict[str, Any]] | None:
    """Messages that are written as `from` and `value`."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return None
    return [
        {"role": _SPEAKERS.get(str(turn.get("from")), turn.get("from")), "content": turn.get("value")} for turn in turns
    ]


def _of_hub(name: str, limit: int | None) -> list[Item]:
    """The first rows of a set. Raises RequestError for a name or a row, DFlashError where the Hub fails."""
    if name in SETS:
        return [_from_prompt(prompt) for prompt in from_set(name, limit)]
    if name.partition(":")[0].count("/") != 1:
        raise RequestError(f"--set {name}: there are {', '.join(SETS)} and the Hub's own, owner/name", param="set")
    wanted = named_rows(name)
    kept = "--".join(wanted).replace("/", "--")
    found = []
    for number, row in enumerate(fetch_rows(kept, wanted, limit or _HUB_ROWS), 1):
        try:
            found.append(Item(kind=jsonl.OTHER, source=name, messages=_question(row)))
        except ValueError as error:
            raise RequestError(f"{name}, row {number}: {error}", param="set") from None
    if not found:
        raise DFlashError(f"{name} holds no rows")
    return found


def _from_prompt(prompt: Prompt) -> Item:
    return Item(kind=prompt.kind, source=prompt.source, messages=prompt.messages)
