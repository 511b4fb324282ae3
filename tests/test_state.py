"""A conversation's caches from turn to turn: reuse, going back, closing at any time, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.errors import RequestError
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import flatten
from tests import tiny
from tests.proposers import Helped, Scripted
from tests.running import CHUNK, Subject, decode, real_drafter, steps, subject

DENSE, SLIDING, HYBRID, NESTED = "llama", "gpt_oss", "qwen3_5", "falcon_h1"
KINDS = (DENSE, SLIDING, HYBRID, NESTED)
BEFORE_END = 17  # tokens of a prompt after the point that caches which cannot be trimmed come back to


@pytest.fixture(params=KINDS)
def of(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, 16)


@lru_cache(maxsize=200)
def _cold(of: Subject, prompt: tuple[int, ...], count: int) -> list[int]:
    return decode(of.target, None, prompt, max_tokens=count).tokens


def cold(of: Subject, prompt: Sequence[int], count: int) -> list[int]:
    """The answer to a prompt without any state, by the tested target itself, plainly."""
    return list(_cold(of, tuple(prompt), count))


def answer(of: Subject, state: DecodeState, prompt: Sequence[int], count: int = 20, **options: Any) -> Any:
    """A speculative answer with drafts that are right at 0.6, which has to equal the cold one."""
    expected = cold(of, prompt, count)
    proposer = Scripted(of.target, [*prompt, *expected], of.shape(), right=0.6)
    run = decode(of.target, proposer, prompt, state=state, max_tokens=count, block_size=5, **options)
    assert run.tokens == expected
    check_aligned(state)
    return run


def check_aligned(state: DecodeState) -> None:
    offsets = {entry.offset for entry in flatten(state.caches) if hasattr(entry, "offset")}
    assert offsets <= {len(state.tokens)}
    if state.context is not None:
        assert state.context.end == len(state.tokens)


def new_state(of: Subject) -> DecodeState:
    return DecodeState(of.target, Scripted(of.target, [], of.shape()))  # type: ignore[arg-type]


# --- reuse --------------------------------------------------------------------------------------------------------


def test_a_growing_conversation_runs_only_what_is_new(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    for turn in range(4):
        held = len(state.tokens)
        run = answer(of, state, prompt)
        assert run.stats.cached_tokens == held
        assert held == (0 if turn == 0 else len(prompt) - 12 - 1)
        prompt = [*prompt, *run.tokens, *tiny.random_prompt(12, seed=turn)]


def test_the_same_prompt_again_runs_its_end_only(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    first = answer(of, state, prompt)
    for _ in range(6):
        again = answer(of, state, prompt)
        assert again.stats.cached_tokens == len(prompt) - (1 if state.trimmable else BEFORE_END)
        assert again.tokens == first.tokens


def test_a_shorter_prompt_than_the_state_goes_back(of: Subject) -> None:
    """Dense targets go back to any point, others to one shortly before an earlier answer, or begin anew."""
    state = new_state(of)
    prompts = [tiny.random_prompt(40)]
    for turn in range(3):
        run = answer(of, state, prompts[-1])
        prompts.append([*prompts[-1], *run.tokens, *tiny.random_prompt(10, seed=turn)])
    dense = state.trimmable
    assert dense == (of is subject(DENSE, 16))

    branch = [*prompts[1][:-3], *tiny.random_prompt(9, seed=7)]  # parts from turn 2 within its user message
    run = answer(of, state, branch)
    assert run.stats.cached_tokens == (len(prompts[1]) - 3 if dense else len(prompts[1]) - 10 - 1)

    run = answer(of, state, [*prompts[0][:20], *tiny.random_prompt(9, seed=8)])  # before every mark
    assert run.stats.cached_tokens == (20 if dense else 0)

    run = answer(of, state, tiny.random_prompt(30, seed=9))  # nothing in common
    assert run.stats.cached_tokens == 0


def test_undo_after_several_retries_still_finds_the_earlier_turn(of: Subject) -> None:
    state = new_state(of)
    first = tiny.random_prompt(40)
    run = answer(of, state, first)
    second = [*first, *run.tokens, *tiny.random_prompt(10, seed=1)]
    for _ in range(6):
        answer(of, state, second)
    run = answer(of, state, [*first, *tiny.random_prompt(5, seed=2)])
    assert run.stats.cached_tokens == (len(first) if state.trimmable else len(first) - BEFORE_END)


def test_a_prompt_that_the_state_goes_past_re_runs_its_last_token(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    run = answer(of, state, prompt, 30)
    run = answer(of, state, [*prompt, *run.tokens[:10]])
    assert run.stats.cached_tokens == (len(prompt) + 9 if state.trimmable else len(prompt) - BEFORE_END)


def test_a_mark_is_not_changed_by_what_is_decoded_after_it(of: Subject) -> None:
    """Plain steps write into a rotating cache in place: the mark has to hold other arrays."""
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    for _ in range(3):
        run = decode(of.target, None, prompt, state=state, max_tokens=30)
        assert run.tokens == cold(of, prompt, 30)
    assert run.stats.cached_tokens == len(prompt) - (1 if state.trimmable else BEFORE_END)


# --- closing ------------------------------------------------------------------------------------------------------


def closed_after(
    of: Subject,
    state: DecodeState,
    prompt: Sequence[int],
    count: int,
    close: Callable[[Any], None],
    **options: Any,
) -> list[int]:
    """Take steps until `count` tokens are there, then close: the tokens given."""
    expected = cold(of, prompt, 40)
    proposer = Scripted(of.target, [*prompt, *expected], of.shape(), right=0.7)
    running = steps(of.target, proposer, prompt, state=state, max_tokens=40, **{"block_size": 5, **options})
    given: list[int] = []
    for step in running:
        given += step.tokens
        if len(given) >= count:
            break
    close(running)
    assert given == expected[: len(given)]
    return given


def close_here(running: Any) -> None:
    running.close()


def close_elsewhere(running: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(running.close).result()


@pytest.mark.parametrize("close", [close_here, close_elsewhere])
@pytest.mark.parametrize("options", [{"block_size": 5}, {"block_size": 1}])
@pytest.mark.parametrize("count", [1, 12])
def test_closing_leaves_the_state_at_what_was_given(
    of: Subject, close: Callable[[Any], None], options: dict[str, Any], count: int
) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    given = closed_after(of, state, prompt, count, close, **options)
    text = [*prompt, *given]
    # the last token is the anchor of a cycle that was not run; plain decoding has fed it already
    assert state.tokens == (text if options["block_size"] == 1 else text[:-1])
    check_aligned(state)
    longer = [*text, *tiny.random_prompt(6, seed=1)]
    held = len(state.tokens)
    run = answer(of, state, longer)
    assert run.stats.cached_tokens == held


def test_a_consumer_that_fails_leaves_the_state_at_what_was_given(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    proposer = Scripted(of.target, [*prompt, *cold(of, prompt, 40)], of.shape(), right=0.7)
    given: list[int] = []

    def consume() -> None:
        for step in steps(of.target, proposer, prompt, state=state, max_tokens=40, block_size=5):
            given.extend(step.tokens)
            if len(given) > 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert state.tokens == [*prompt, *given[:-1]]
    answer(of, state, [*prompt, *given, 1, 2, 3])


@pytest.mark.parametrize("options", [{"block_size": 5}, {"block_size": 1}])
def test_cancelling_between_cycles_ends_with_one_reason(of: Subject, options: dict[str, Any]) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    proposer = Scripted(of.target, [*prompt, *cold(of, prompt, 40)], of.shape(), right=0.7)
    given: list[int] = []
    run_steps = list(
        steps(
            of.target,
            proposer,
            prompt,
            state=state,
            max_tokens=40,
            cancelled=lambda: len(state.tokens) >= len(prompt) + 8,
            **options,
        )
    )
    given = [token for step in run_steps for token in step.tokens]
    assert [step.finish_reason for step in run_steps[:-1]] == [None] * (len(run_steps) - 1)
    assert run_steps[-1].finish_reason == "cancelled"
    assert run_steps[-1].tokens == []
    text = [*prompt, *given]
    assert state.tokens == (text if options["block_size"] == 1 else text[:-1])
    answer(of, state, [*text, 1, 2, 3])


def test_cancelling_in_prefill_keeps_the_finished_chunks(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(300)
    seen: list[tuple[int, int]] = []
    running = steps(
        of.target,
        Scripted(of.target, [], of.shape()),
        prompt,
        state=state,
        max_tokens=10,
        progress=lambda done, total: seen.append((done, total)),
        cancelled=lambda: seen[-1][0] >= 2 * CHUNK,
    )
    (step,) = running
    assert (step.finish_reason, step.tokens) == ("cancelled", [])
    assert seen == [(0, 300), (CHUNK, 300), (2 * CHUNK, 300)]
    assert state.tokens == prompt[: 2 * CHUNK]
    check_aligned(state)
    run = answer(of, state, prompt, 10)
    assert run.stats.cached_tokens == 2 * CHUNK


def test_progress_counts_prompt_tokens_from_what_is_cached(of: Subject) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(100)
    seen: list[tuple[int, int]] = []
    decode(of.target, None, prompt, state=state, max_tokens=1, progress=lambda *now: seen.append(now))
    marked = [] if state.trimmable else [(100 - BEFORE_END, 100)]
    assert seen == [(0, 100), (64, 100), *marked, (99, 100), (100, 100)]
    seen.clear()
    decode(of.target, None, prompt, state=state, max_tokens=1, progress=lambda *now: seen.append(now))
    assert seen == [*marked, (99, 100), (100, 100)]


@pytest.mark.parametrize("options", [{"block_size": 5}, {"block_size": 1}])
def test_a_request_that_was_left_open_ends_when_the_state_goes_on(of: Subject, options: dict[str, Any]) -> None:
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    proposer = Scripted(of.target, [*prompt, *cold(of, prompt, 40)], of.shape(), right=0.7)
    left = steps(of.target, proposer, prompt, state=state, max_tokens=40, **options)
    given = [token for _ in range(4) for token in next(left).tokens]
    answer(of, state, [*prompt, *given, 1, 2, 3])
    held = list(state.tokens)
    with pytest.raises(RequestError, match="another request"):
        next(left)
    assert state.tokens == held
    check_aligned(state)
    answer(of, state, [*held, 4, 5])


# --- failures -----------------------------------------------------------------------------------------------------


class Failing(Target):
    """A target whose forward breaks off at the n-th call from now, after it has changed the caches."""

    countdown: int | None = None

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        logits = super().__call__(tokens, caches)
        if self.countdown is not None:
            self.countdown -= 1
            if self.countdown == 0:
                raise MemoryError("no room for another row")
        return logits


@pytest.mark.parametrize("countdown", [1, 4, 7])  # in prefill, at the last prompt token, in a cycle
@pytest.mark.parametrize("block_size", [1, 5])
def test_an_exception_inside_a_forward_empties_the_state(countdown: int, block_size: int) -> None:
    of = subject(HYBRID, 16)
    target = Failing(tiny.build(HYBRID))
    target.prepare(of.taps)
    prompt = tiny.random_prompt(100)
    proposer = Scripted(target, [*prompt, *cold(of, prompt, 40)], of.shape(), right=0.7)
    state = DecodeState(target, proposer)  # type: ignore[arg-type]
    target.countdown = countdown
    with pytest.raises(MemoryError):
        list(steps(target, proposer, prompt, state=state, max_tokens=40, block_size=block_size))
    assert state.tokens == []
    check_aligned(state)
    assert all(entry.empty() for entry in flatten(state.caches))
    run = decode(target, proposer, prompt, state=state, max_tokens=40, block_size=block_size)
    assert run.tokens == cold(of, prompt, 40)


def test_an_exception_in_the_cut_hook_leaves_caches_and_tokens_in_step(of: Subject) -> None:
    """The hook decodes text: whatever it raises, the block that it looked at must not stay half committed."""
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    proposer = Scripted(of.target, [*prompt, *cold(of, prompt, 40)], of.shape(), right=0.7)
    calls: list[int] = []

    def cut(tokens: Sequence[int]) -> int | None:
        calls.append(len(tokens))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        list(steps(of.target, proposer, prompt, state=state, max_tokens=40, block_size=5, cut=cut))
    check_aligned(state)
    answer(of, state, prompt)


# --- the drafter's context ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (DENSE, "dflash2"),
        (DENSE, "dflash"),
        (SLIDING, "mixed"),
        (HYBRID, "dflash2"),
        (HYBRID, "dflash"),
        (NESTED, "mixed"),
    ],
)
def test_a_reused_context_drafts_as_a_cold_one(kind: str, engine: str, tmp_path: Path) -> None:
    of = subject(kind, 16)
    drafter = real_drafter(tmp_path, of, engine=engine, window=16, block_size=6)
    prompts = [tiny.random_prompt(80)]
    state = DecodeState(of.target, drafter)
    for turn in range(2):
        tokens, warm = drafts_of(of, drafter, prompts[-1], state)
        cached, fresh = drafts_of(of, drafter, prompts[-1], DecodeState(of.target, drafter))
        assert tokens == cached
        assert warm == fresh
        assert any(accepted > 0 for _, accepted in warm)
        prompts.append([*prompts[-1], *tokens, *tiny.random_prompt(12, seed=turn)])
    assert len(state.tokens) > 100
    # the same turn again: from a mark, or by a trim, which may have lost rows that a ring has overwritten
    tokens, warm = drafts_of(of, drafter, prompts[1], state)
    cached, fresh = drafts_of(of, drafter, prompts[1], DecodeState(of.target, drafter))
    assert tokens == cached
    if not state.trimmable or engine == "dflash":
        assert warm == fresh


def drafts_of(
    of: Subject, drafter: Drafter, prompt: Sequence[int], state: DecodeState
) -> tuple[list[int], list[tuple[Any, int]]]:
    """The answer, and (own drafts, accepted) of every cycle."""
    expected = cold(of, prompt, 30)
    helped = Helped(drafter, of.target, [*prompt, *expected], of.shape())
    run = decode(of.target, helped, prompt, state=state, max_tokens=30, checkpoint_block_size=6)
    assert run.tokens == expected
    return run.tokens, list(zip(helped.drafted, run.accepted, strict=True))


def test_a_context_never_gets_rows_of_another_branch(of: Subject) -> None:
    """A scripted context records every row: after going back, they are those of the new text."""
    state = new_state(of)
    prompt = tiny.random_prompt(40)
    answer(of, state, prompt)
    branch = [*prompt[:30], *tiny.random_prompt(20, seed=3)]
    answer(of, state, branch)
    fresh = new_state(of)
    answer(of, fresh, branch)
    ours: Any = state.context
    theirs: Any = fresh.context
    assert state.tokens == fresh.tokens
    gap = mx.abs(ours.rows() - theirs.rows()).max()
    assert (gap <= 1e-4 * mx.abs(theirs.rows()).max()).item()
