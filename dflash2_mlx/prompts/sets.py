"""The five sets that others measure with: which rows of the Hub, which of their columns, and how they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.prompts import jsonl
from dflash2_mlx.prompts.hub_rows import HubRows, fetch_rows
from dflash2_mlx.prompts.model import Prompt

_STEPS = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_TESTS = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"
# The categories of MT-Bench that are a kind of their own here; the others are chat.
_CATEGORIES = {"coding": "code", "math": "mathematics", "writing": "prose", "extraction": "structured"}


@dataclass(frozen=True, kw_only=True)
class _Set:
    """`columns` hold the question, the first that is there; `asked` has it in its braces."""

    rows: HubRows
    kind: str
    columns: tuple[str, ...]
    asked: str = "{}"
    kind_of: Callable[[Mapping[str, Any]], str] | None = None


def _category(row: Mapping[str, Any]) -> str:
    return _CATEGORIES.get(str(row.get("category")), "chat")


# Asked as the method's own benchmark asks them, so that figures can be compared.
_SETS = {
    "gsm8k": _Set(
        rows=HubRows("openai/gsm8k", "main", "test"), kind="mathematics", columns=("question",), asked=_STEPS
    ),
    "math500": _Set(
        rows=HubRows("HuggingFaceH4/MATH-500", "default", "test"),
        kind="mathematics",
        columns=("problem",),
        asked=_STEPS,
    ),
    "humaneval": _Set(
        rows=HubRows("openai/openai_humaneval", "openai_humaneval", "test"),
        kind="code",
        columns=("prompt",),
        asked=_TESTS,
    ),
    "mbpp": _Set(
        rows=HubRows("google-research-datasets/mbpp", "sanitized", "test"), kind="code", columns=("prompt", "text")
    ),
    "mtbench": _Set(
        rows=HubRows("HuggingFaceH4/mt_bench_prompts", "default", "train"),
        kind="chat",
        columns=("prompt", "turns"),
        kind_of=_category,
    ),
}
SETS = tuple(_SETS)


def from_set(name: str, limit: int | None = None, *, file: Path | None = None) -> list[Prompt]:
    """The first `limit` prompts of a set: from `file`, JSON Lines with the set's own columns, or from the Hub.

    What came from the Hub is kept, and asked for no more. Of MT-Bench the first turns are taken: the second ones hang
    on the answers. Raises RequestError for a name, number or line that is wrong, DFlashError where the Hub fails.
    """
    chosen = _SETS.get(name)
    if chosen is None:
        raise RequestError(f"no set {name!r} of prompts: there are {', '.join(SETS)}", param="prompts")
    jsonl.check_limit(limit)
    found: list[Prompt] = []
    for number, row in _rows(name, chosen, limit, file):
        if limit is not None and len(found) == limit:
            break
        where = f"{file}:{number}" if file else f"{name}, row {number}"
        try:
            found.append(_prompt(name, chosen, number, row))
        except ValueError as error:
            raise RequestError(f"{where}: {error}", param="prompts") from None
    if not found:
        raise RequestError(f"{file or name} holds no prompts", param="prompts")
    return found


def _rows(name: str, chosen: _Set, limit: int | None, file: Path | None) -> list[tuple[int, dict[str, Any]]]:
    if file is not None:
        return list(jsonl.rows(file))
    try:
        return list(enumerate(fetch_rows(name, chosen.rows, limit), 1))
    except DFlashError as error:
        columns = " or ".join(chosen.columns)
        raise DFlashError(f"{error}: give a local file, --prompts FILE.jsonl, with the column {columns}") from None


def _prompt(name: str, chosen: _Set, number: int, row: Mapping[str, Any]) -> Prompt:
    messages = jsonl.question(row, chosen.columns)
    asked = chosen.asked.format(messages[0]["content"])
    kind = chosen.kind_of(row) if chosen.kind_of else chosen.kind
    return Prompt(id=f"{name}-{number}", kind=kind, messages=({"role": "user", "content": asked},), source=name)
