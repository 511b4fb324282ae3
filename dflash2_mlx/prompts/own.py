"""The prompts of our own: twelve of each kind of content, written for this package, from one line to several pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from dflash2_mlx.errors import RequestError
from dflash2_mlx.prompts.jsonl import check_limit
from dflash2_mlx.prompts.model import KINDS, Prompt

SOURCE = "own"


def own(kinds: Sequence[str] = KINDS, per_kind: int | None = None) -> list[Prompt]:
    """The first `per_kind` prompts (all by default) of each kind, in the order of `kinds`.

    Raises RequestError for a kind that there is not, or a number below 1.
    """
    check_limit(per_kind)
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"no kind {kind!r} of prompts: there are {', '.join(KINDS)}", param="kinds")
    return [prompt for kind in dict.fromkeys(kinds) for prompt in _of(kind)[:per_kind]]


def _of(kind: str) -> list[Prompt]:
    text = (resources.files(__package__) / "data" / f"{kind}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [Prompt(id=row["id"], kind=kind, messages=tuple(row["messages"]), source=SOURCE) for row in rows]
