"""Which published drafter goes with a repository: by its config, or by its name where that is all that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash2_mlx.errors import CheckpointError

_WORDS = re.compile(r"[a-z]+|[0-9.]+[a-z]*")


def of_config(config: Mapping[str, Any], repo_id: str) -> str | None:
    """The Hub id of the drafter for a model with that config; None for a drafter, and where none is known."""
    from dflash2_mlx.pairs import published_drafter, target_facts  # imports mlx

    try:
        return published_drafter(target_facts(config), repo_id, warn=False)
    except CheckpointError:
        return None


def of_name(repo_id: str) -> str | None:
    """The drafter whose target's name is in this one's: a listing of the Hub tells no sizes."""
    from dflash2_mlx.pairs import published_drafters

    words = _words(repo_id)
    fitting = [(_words(_target(drafter)), drafter) for drafter in published_drafters()]
    found = [(len(part), drafter) for part, drafter in fitting if _contains(words, part)]
    return max(found)[1] if found else None


def is_named_drafter(repo_id: str) -> bool:
    from dflash2_mlx.pairs import published_drafters

    return repo_id in published_drafters()


def _target(drafter: str) -> str:
    """`Qwen3-8B` of `z-lab/Qwen3-8B-DFlash-b16`."""
    return re.split(r"-dflash", drafter.rsplit("/", 1)[-1], flags=re.IGNORECASE)[0]


def _words(name: str) -> list[str]:
    """`Qwen3-8B` gives qwen, 3, 8b: names of the same model differ in hyphens."""
    return [word.strip(".") for word in _WORDS.findall(name.rsplit("/", 1)[-1].lower())]


def _contains(words: list[str], part: list[str]) -> bool:
    return any(words[start : start + len(part)] == part for start in range(len(words) - len(part) + 1))
