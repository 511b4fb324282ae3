"""Limits of one pair: entries, bytes, off; other pairs are untouched, and figures are told by pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash2_mlx.engine.prefix_cache import PrefixCache
from dflash2_mlx.engine.prefix_limits import CacheFigures, CacheLimits
from dflash2_mlx.pairs import Pair
from tests import tiny
from tests.engine.test_prefix_cache import DENSE, HYBRID, ROOM, Run, cold, pair_of


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(params=[DENSE, HYBRID])
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    return pair_of(request.param, folder)


def known(cache: PrefixCache, pair: Pair, prompts: list[list[int]]) -> list[bool]:
    return [cache.restore(pair, prompt).known > 1 for prompt in prompts]


def test_inner_marks_of_a_conversation_are_one_entry(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    cache.set_limits(pair, CacheLimits(max_entries=1))
    prompt = tiny.random_prompt(60)
    for turn in range(3):
        run = Run(cache, pair, prompt, borders={20, 40})
        assert run.cached == (0 if turn == 0 else len(prompt) - 31)
        prompt = [*prompt, *run.tokens, *tiny.random_prompt(30, seed=turn)]
    figures = cache.figures_of(pair)
    assert figures.entries == 1
    assert figures.evictions == 0
    assert figures.marks > 3


def test_the_least_recently_used_branch_goes_whole(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    cache.set_limits(pair, CacheLimits(max_entries=2))
    prompts = [[i, *tiny.random_prompt(80, seed=i)] for i in range(3)]
    for prompt in (*prompts[:2], prompts[0]):
        Run(cache, pair, prompt, max_tokens=1, borders={40})
    before = cache.figures_of(pair).nbytes
    Run(cache, pair, prompts[2], max_tokens=1, borders={40})
    assert cache.figures_of(pair).entries == 2
    assert cache.figures_of(pair).nbytes <= before * 1.01
    assert known(cache, pair, prompts) == [True, False, True]


def test_what_other_entries_share_outlives_one(pair: Pair) -> None:
    cache, shared = PrefixCache(ROOM), tiny.random_prompt(50)
    cache.set_limits(pair, CacheLimits(max_entries=2))
    prompts = [[*shared, i, *tiny.random_prompt(40, seed=i)] for i in range(4)]
    for prompt in prompts:
        run = Run(cache, pair, prompt, max_tokens=6, borders={50})
        assert run.tokens == cold(pair, prompt, max_tokens=6).tokens
    assert cache.restore(pair, prompts[0]).known == 50
    assert len(cache.restore(pair, prompts[3]).state.tokens) > 50


def test_bytes_of_one_pair_are_limited_beside_the_whole(folder: Path) -> None:
    cache, a, b = PrefixCache(ROOM), pair_of(DENSE, folder), pair_of(HYBRID, folder)
    for seed in range(3):
        for pair in (a, b):
            Run(cache, pair, tiny.random_prompt(80, seed=seed), max_tokens=1)
    held, other = cache.figures_of(a).nbytes, cache.figures_of(b)
    cache.set_limits(a, CacheLimits(max_bytes=held // 2))
    assert 0 < cache.figures_of(a).nbytes <= held // 2
    assert cache.figures_of(a).evictions > 0
    assert cache.figures_of(b) == other
    assert cache.figures.nbytes == cache.figures_of(a).nbytes + other.nbytes
    Run(cache, a, tiny.random_prompt(200), max_tokens=1)
    assert cache.figures_of(a).nbytes <= held // 2


def test_off_drops_what_is_there_and_keeps_nothing(folder: Path) -> None:
    cache, a, b = PrefixCache(ROOM), pair_of(DENSE, folder), pair_of(HYBRID, folder)
    prompt = tiny.random_prompt(60)
    for pair in (a, b):
        Run(cache, pair, prompt)
    cache.set_limits(a, CacheLimits(enabled=False))
    assert cache.figures_of(a).nbytes == cache.figures_of(a).nodes == 0
    again = Run(cache, a, prompt)
    assert again.cached == 0
    assert again.tokens == cold(a, prompt).tokens
    assert cache.figures_of(a).nbytes == 0
    assert Run(cache, b, prompt).cached > 0
    cache.set_limits(a, CacheLimits())
    Run(cache, a, prompt)
    assert Run(cache, a, prompt).cached > 0


def test_figures_are_told_by_pair_and_in_sum(folder: Path) -> None:
    cache, a, b = PrefixCache(ROOM), pair_of(DENSE, folder), pair_of(HYBRID, folder)
    prompt = tiny.random_prompt(60)
    for pair in (a, a, b):
        Run(cache, pair, prompt)
    mine, theirs = cache.figures_of(a), cache.figures_of(b)
    assert (mine.hits, mine.misses) == (1, 1)
    assert (theirs.hits, theirs.misses) == (0, 1)
    assert cache.figures == mine + theirs
    cache.drop(a)
    assert cache.figures_of(a) == CacheFigures()
    assert cache.figures.hits == 1
    assert cache.figures.nbytes == theirs.nbytes
