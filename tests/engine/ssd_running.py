"""Pairs with an identity for the disk tier, and a process that leaves files of all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.engine.prefix_cache import PrefixCache
from dflash2_mlx.engine.prefix_limits import CacheLimits
from dflash2_mlx.pairs import Pair
from tests import tiny
from tests.engine.test_prefix_cache import DENSE, HYBRID, NESTED, ROOM, SLIDING, Run
from tests.running import config_of, subject
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter

# kind of target, kind of drafter, options of it
Case = tuple[str, str, dict[str, int]]
SINK = {"draft_window": 12, "draft_sink": 5}
CASES: tuple[Case, ...] = (
    (DENSE, "dflash", {}),
    (DENSE, "dflash2", SINK),
    (SLIDING, "mixed", {}),
    (HYBRID, "dflash", {}),
    (HYBRID, "dflash2", {}),
    (NESTED, "dflash2", SINK),
)
ON = CacheLimits(ssd_bytes=1 << 30)
HEAD = 330  # tokens of a prompt: more than a file has to save
BORDER, BEFORE_END = 280, HEAD - 17  # positions of its inner marks


def make_pair(case: Case, drafters: Path) -> Pair:
    kind, engine, options = case
    of = subject(kind, 16)
    make = tiny_v1_config if engine == "dflash" else tiny_drafter_config
    config = make(of.plain, block_size=5, target_layer_ids=of.taps, **config_of(engine, 16))
    drafter = load_drafter(write_drafter(drafters / f"{kind}-{engine}", config), dtype="float32", **options)
    return Pair(of.target, drafter, model_name="-".join([kind, engine, *options]), identity="tiny")


def plain_pair(kind: str) -> Pair:
    return Pair(subject(kind, 16).target, model_name=f"{kind}-plain", identity="tiny")


def opened(pair: Pair, files: Path, **changes: int) -> PrefixCache:
    """A cache with the disk tier on for the pair."""
    cache = PrefixCache(ROOM, files)
    cache.set_limits(pair, replace(ON, **changes))
    return cache


def first_prompt() -> list[int]:
    return tiny.random_prompt(HEAD)


def next_prompt(answer: Sequence[int]) -> list[int]:
    return [*first_prompt(), *answer, *tiny.random_prompt(20, seed=8)]


def main(files: Path, drafters: Path) -> None:
    for case in CASES:
        pair = make_pair(case, drafters)
        cache = opened(pair, files)
        Run(cache, pair, first_prompt(), borders={BORDER})
        cache.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
