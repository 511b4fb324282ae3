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

    Raises RequestError for a kind that there is not, none at all, a number below 1, or one of more than there are.
    """
    check_limit(per_kind)
    if not kinds:
        raise RequestError(f"there are no kinds: give some of {', '.join(KINDS)}", param="kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise RequestError(f"no kind {kind!r} of prompts: there are {', '.join(KINDS)}", param="kinds")
    found = [_of(kind) for kind in dict.fromkeys(kinds)]
    most = min(map(len, found))
    if per_kind is not None and per_kind > most:
        raise RequestError(
            f"{per_kind} prompts of a kind: there are {most} of each of our own, so give at most {most}",
            param="prompts_per_kind",
        )
    return [prompt for prompts in found for prompt in prompts[:per_kind]]


def _of(kind: str) -> list[Prompt]:
    text = (resources.files(__package__) / "data" / f"{kind}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [Prompt(id=row["id"], kind=kind, messages=tuple(row["messages"]), source=SOURCE) for row in rows]
