"""The prefix cache: what is taken up again, that it gives the cold answer, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache as remembered
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.generate import generate_tokens
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.propose import Drafter, Proposal
from dflash2_mlx.engine.job import snapshot_points
from dflash2_mlx.engine.prefix_cache import PrefixCache
from dflash2_mlx.engine.prefix_tree import Node, common_prefix
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.copies import arrays_in
from dflash2_mlx.target.rollback import flatten, is_trimmable
from tests import tiny
from tests.running import real_drafter, subject

DENSE, SLIDING, HYBRID, NESTED = "llama", "gpt_oss", "qwen3_5", "falcon_h1"
KINDS = (DENSE, SLIDING, HYBRID, NESTED)
ROOM = 1 << 30


@remembered
def pair_of(kind: str, folder: Path, engine: str = "dflash2") -> Pair:
    of = subject(kind, 16)
    return Pair(of.target, real_drafter(folder / f"{kind}-{engine}", of, engine=engine, block_size=5))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, folder: Path) -> Pair:
    return pair_of(request.param, folder)


class Watched:
    """A drafter that notes what it drafts."""

    def __init__(self, drafter: Drafter, drafts: list[list[int]]) -> None:
        self._drafter, self._drafts = drafter, drafts

    def propose(self, *args: Any, **options: Any) -> Proposal:
        proposal = self._drafter.propose(*args, **options)
        self._drafts.append(proposal.tokens.tolist())  # type: ignore[arg-type]
        return proposal


class Run:
    """A request on a state of the cache, which stores it afterwards, as the engine does."""

    def __init__(
        self,
        cache: PrefixCache,
        pair: Pair,
        prompt: Sequence[int],
        *,
        borders: set[int] | None = None,
        **parameters: Any,
    ) -> None:
        restored = cache.restore(pair, prompt)
        self.cached = len(restored.state.tokens)
        points = snapshot_points(self.cached, len(prompt), {*(borders or set()), restored.known}, 4096)
        request = make_request(
            prompt,
            vocab_size=pair.target.vocab_size,
            checkpoint_block_size=pair.block_size,
            **{"max_tokens": 12, "prefill_step_size": 64, **parameters},
        )
        request = replace(request, borders=points, at_border=lambda state: cache.store(pair, state))
        self.stats = pair.new_stats(request.block_size, request.verify_mode)
        self.drafts: list[list[int]] = []
        watched = Watched(pair.drafter, self.drafts) if pair.drafter else None
        steps = list(generate_tokens(pair.target, watched, request, restored.state, self.stats))
        self.tokens = [token for step in steps for token in step.tokens]
        self.accepted = [step.accepted for step in steps]
        cache.store(pair, restored.state)
        self.state = restored.state


def cold(pair: Pair, prompt: Sequence[int], **parameters: Any) -> Run:
    return Run(PrefixCache(0), pair, prompt, **parameters)


def conversation(pair: Pair, cache: PrefixCache, turns: int, *, seed: int = 0, head: int = 60) -> list[Run]:
    """Turns that each add what was said and 30 tokens more; every answer is compared with a cold one."""
    prompt, runs = tiny.random_prompt(head, seed=seed), []
    for turn in range(turns):
        run = Run(cache, pair, prompt)
        assert run.tokens == cold(pair, prompt).tokens
        runs.append(run)
        prompt = [*prompt, *run.tokens, *tiny.random_prompt(30, seed=100 * seed + turn)]
    return runs


def test_a_growing_conversation_takes_up_all_but_its_last_message(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    runs = conversation(pair, cache, 4)
    for turn, run in enumerate(runs[1:], start=1):
        # all of the turn before, but its last token, which no cache held
        assert run.cached == 60 + 42 * (turn - 1) + 11


def test_interleaved_conversations_equal_cold_ones(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    a, b = tiny.random_prompt(50, seed=1), tiny.random_prompt(50, seed=2)
    for prompt in (a, a, b, a, b):
        assert Run(cache, pair, prompt).tokens == cold(pair, prompt).tokens


def test_an_exact_hit_runs_the_end_again_and_accepts_as_the_first(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    prompt = tiny.random_prompt(70)
    first, second = (Run(cache, pair, prompt, max_tokens=40) for _ in range(2))
    assert 70 - 17 <= second.cached <= 69
    assert second.tokens == first.tokens
    assert second.drafts == first.drafts


@pytest.mark.parametrize("engine", ["dflash2", "mixed", "dflash"])
@pytest.mark.parametrize("kind", [DENSE, HYBRID])
def test_the_drafters_context_after_a_hit_is_the_cold_one(kind: str, engine: str, folder: Path) -> None:
    pair = pair_of(kind, folder, engine)
    cache = PrefixCache(ROOM)
    prompt = tiny.random_prompt(120)
    Run(cache, pair, prompt, max_tokens=50, borders={90})
    for cut in (prompt, [*prompt[:90], *tiny.random_prompt(20, seed=5)]):
        run, again = Run(cache, pair, cut, max_tokens=30), cold(pair, cut, max_tokens=30)
        assert run.cached >= 90
        assert (run.tokens, run.accepted, run.drafts) == (again.tokens, again.accepted, again.drafts)


@pytest.mark.parametrize("kind", [DENSE, HYBRID])
def test_an_unbounded_context_outlives_the_leaf_that_held_it(kind: str, folder: Path) -> None:
    pair, cache = pair_of(kind, folder, "dflash"), PrefixCache(ROOM)
    prompt = tiny.random_prompt(150)
    Run(cache, pair, prompt, borders={60, 120})
    for length in (60, 120):
        cache.restore(pair, [*prompt[:length], 0])  # used later than the leaf
    cache.give_back(1)
    assert cache.figures.evictions == 1
    cache.limit = ROOM
    again = Run(cache, pair, prompt)
    assert again.cached == 120
    assert again.drafts == cold(pair, prompt).drafts


def test_branches_take_no_more_memory_than_is_counted(folder: Path) -> None:
    pair, cache = pair_of(DENSE, folder), PrefixCache(ROOM)
    shared = tiny.random_prompt(2000)
    for i in range(4):
        Run(cache, pair, [*shared[: 2000 - 300 * i], i, *tiny.random_prompt(10, seed=i)], max_tokens=1)
    mx.clear_cache()
    before = mx.get_active_memory()
    counted = cache.figures.nbytes
    cache.drop(pair)
    assert before - mx.get_active_memory() < 1.15 * counted + 16384 * 200


def test_targets_with_states_are_taken_up_at_marks_only(folder: Path) -> None:
    for kind in (SLIDING, HYBRID, NESTED):
        pair, cache = pair_of(kind, folder), PrefixCache(ROOM)
        prompt = tiny.random_prompt(100)
        Run(cache, pair, prompt, borders={40})
        assert Run(PrefixCache(ROOM), pair, prompt).cached == 0
        for branch, expected in ((39, 0), (40, 40), (41, 40), (70, 40), (84, 83)):
            other = [*prompt[:branch], (prompt[branch] + 1) % 256, *tiny.random_prompt(30, seed=branch)]
            restored = cache.restore(pair, other)
            assert restored.known == branch
            assert len(restored.state.tokens) == expected


def test_where_a_second_prompt_branches_off_there_is_a_mark_for_the_third(folder: Path) -> None:
    pair, cache = pair_of(HYBRID, folder), PrefixCache(ROOM)
    shared = tiny.random_prompt(90)
    prompts = [[*shared, i, *tiny.random_prompt(40, seed=i)] for i in (1, 2, 3)]
    assert [Run(cache, pair, prompt).cached for prompt in prompts] == [0, 0, 90]


def test_a_cancelled_prefill_is_kept(pair: Pair) -> None:
    cache, prompt = PrefixCache(ROOM), tiny.random_prompt(200)
    chunks = iter([False, False, True])
    stopped = Run(cache, pair, prompt, cancelled=lambda: next(chunks, True))
    assert stopped.tokens == []
    again = Run(cache, pair, prompt)
    assert again.cached == 128
    assert again.tokens == cold(pair, prompt).tokens


def test_two_pairs_do_not_share(folder: Path) -> None:
    cache = PrefixCache(ROOM)
    a, b = pair_of(DENSE, folder), pair_of(HYBRID, folder)
    prompt = tiny.random_prompt(60)
    Run(cache, a, prompt)
    assert Run(cache, b, prompt).cached == 0
    assert Run(cache, a, prompt).cached > 0
    cache.drop(a)
    assert cache.restore(a, prompt).known == 0
    assert cache.restore(b, prompt).known > 0


def test_the_limit_holds_and_the_least_recently_used_goes_first(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    prompts = [tiny.random_prompt(80, seed=seed) for seed in range(6)]
    Run(cache, pair, prompts[0])
    cache.limit = round(cache.figures.nbytes * 3.5)
    for prompt in prompts[1:]:
        Run(cache, pair, prompt)
        Run(cache, pair, prompts[0])  # used again and again
        assert cache.figures.nbytes <= cache.limit
    held = [cache.restore(pair, prompt).known > 0 for prompt in prompts]
    assert held[0]
    assert held[5]
    assert not held[1]
    assert cache.figures.evictions > 0


def test_bytes_are_true_and_compact(pair: Pair) -> None:
    cache = PrefixCache(ROOM)
    for seed in range(3):
        Run(cache, pair, tiny.random_prompt(100, seed=seed))
    mx.clear_cache()
    mx.synchronize()
    before = mx.get_active_memory()
    claimed = cache.figures.nbytes
    cache.drop(pair)
    freed = before - mx.get_active_memory()
    # small arrays are rounded up to pages
    assert claimed * 0.98 <= freed <= claimed + 16384 * 400
    assert freed < 3 * claimed


def test_rows_are_stored_once_for_all_that_share_them(folder: Path) -> None:
    pair, cache = pair_of(DENSE, folder), PrefixCache(ROOM)
    shared = tiny.random_prompt(300)
    sizes = []
    for i in range(4):
        Run(cache, pair, [*shared, i, *tiny.random_prompt(10, seed=i)], max_tokens=1)
        sizes.append(cache.figures.nbytes)
    assert sizes[3] - sizes[1] < sizes[0] / 2


def test_what_is_kept_is_out_of_reach_of_later_requests(pair: Pair) -> None:
    """A cache writes in place into the array object that it holds: a kept one must not change."""
    cache, prompt = PrefixCache(ROOM), tiny.random_prompt(80)
    Run(cache, pair, prompt)
    nodes = [node for tree in cache._trees.values() for node in tree.root.subtree()]
    kept = [array for node in nodes for array in (*arrays_in(node.rows), *(node.mark.arrays() if node.mark else []))]
    before = [mx.array(array.tolist()) for array in kept]
    for seed in range(3):
        Run(cache, pair, [*prompt[:79], *tiny.random_prompt(9, seed=seed)])
    assert all(mx.array_equal(a, b) for a, b in zip(kept, before, strict=True))


def test_restored_caches_equal_run_ones(pair: Pair) -> None:
    cache, prompt = PrefixCache(ROOM), tiny.random_prompt(90)
    Run(cache, pair, prompt)
    warm = cache.restore(pair, prompt).state
    fresh = DecodeState(pair.target, pair.drafter)
    logits = []
    for state in (warm, fresh):
        rest = prompt[len(state.tokens) :]
        logits.append(pair.target(mx.array([rest]), state.caches)[0, -1])
    assert mx.allclose(logits[0], logits[1], rtol=1e-4, atol=1e-4)
    rows = [c.offset for c in flatten(warm.caches) if is_trimmable(c)]
    assert all(offset == len(prompt) for offset in rows)


def test_the_tree_splits_and_walks() -> None:
    root = Node(0, (), [])
    rows = mx.arange(10, dtype=mx.float32).reshape(1, 1, 5, 2)
    node = root.add([1, 2, 3, 4, 5], [(rows, rows), None])
    assert root.walk([1, 2, 9]) == ([node], 2)
    upper = node.split(2)
    assert (upper.start, upper.end, node.start, node.end) == (0, 2, 2, 5)
    assert upper.rows[0][0].tolist() == [[[[0, 1], [2, 3]]]]
    assert node.rows[0][1].tolist() == [[[[4, 5], [6, 7], [8, 9]]]]
    assert upper.row_bytes + node.row_bytes == 2 * rows.nbytes
    other = upper.add([7], [None, None])
    assert root.walk([1, 2, 7, 8]) == ([upper, other], 3)
    assert root.walk([1, 2, 3, 4]) == ([upper, node], 4)
    assert common_prefix((1, 2, 3), (1, 2)) == 2


def test_snapshot_points_lie_inside_and_not_close_together() -> None:
    assert snapshot_points(0, 10_000, set(), 4096) == {4096, 8192, 9983}
    assert snapshot_points(0, 10_000, {4000, 0, 10_000}, 4096) == {4000, 8192, 9983}
    assert snapshot_points(0, 10_000, {9950, 9960, 9990}, 4096) == {4096, 8192, 9950, 9990}
    assert snapshot_points(9990, 10_000, {50}, 4096) == frozenset()
