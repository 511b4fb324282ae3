"""Widths that change within an answer: the text is that of plain decoding, in float32, for every family."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.decode.chooser import Lap
from dflash2_mlx.decode.generate import generate_tokens
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.proposers import Scripted
from tests.running import CHUNK, Subject, cold_drafts, real_drafter, subject

TOKENS = 120
PROMPT = 40


class Switching:
    """A chooser that goes through a list of widths, again and again."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.reason: str | None = "switching"
        self.widths = itertools.cycle(widths)
        self.seen: list[tuple[int, int, int, float | None]] = []
        self.ends = 0

    def choose(self, depth: int) -> int:
        return next(self.widths)

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        self.seen.append((width, accepted, depth, seconds))

    def end(self) -> None:
        self.ends += 1


def schedule(seed: int) -> list[int]:
    """Every width, in stretches of one to four, plain ones among them."""
    rng = random.Random(seed)
    first = rng.sample((1, 2, 3, 5, 8), 5)
    return [*first, *(width for _ in range(30) for width in [rng.choice((1, 1, 2, 3, 5, 8))] * rng.randint(1, 3))]


def run(of: Subject, proposer: Drafter | Scripted, chooser: Switching) -> tuple[list[int], Stats, DecodeState]:
    request = make_request(
        of.prompt(PROMPT),
        vocab_size=of.target.vocab_size,
        checkpoint_block_size=8,
        max_tokens=TOKENS,
        verify_mode="adaptive",
        prefill_step_size=CHUNK,
    )
    stats, state = Stats(), DecodeState(of.target, proposer)  # type: ignore[arg-type]
    steps = generate_tokens(of.target, proposer, request, state, stats, chooser)
    return [token for step in steps for token in step.tokens], stats, state


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_switching_never_changes_the_text(family: str, tmp_path: Path) -> None:
    of = subject(family)
    prompt = of.prompt(PROMPT)
    chooser = Switching(schedule(len(family)))
    proposer = of.helped(real_drafter(tmp_path, of), prompt, TOKENS, right=0.6)
    tokens, stats, _ = run(of, proposer, chooser)
    assert tokens == of.answer(prompt, TOKENS)
    assert len(set(tokens)) > 20
    widths = [width for width, *_ in chooser.seen]
    assert {1, 2, 3, 5, 8} <= set(widths)
    crossings = sum((a == 1) != (b == 1) for a, b in itertools.pairwise(widths))
    assert crossings > 10
    assert {0, 1, 2} <= {count for width, count, *_ in chooser.seen if width > 1}
    assert sum(stats.cycles_by_width) == len(widths)
    assert chooser.ends == 1


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "muse_glimmer"])
def test_after_plain_steps_the_drafter_knows_what_it_would_have_seen(family: str, tmp_path: Path) -> None:
    """Re-entry rebuilds its context from the taps that plain steps have kept: drafts equal those of a cold context."""
    of = subject(family)
    drafter = real_drafter(tmp_path, of, window=64)
    prompt = of.prompt(PROMPT)
    proposer = of.helped(drafter, prompt, TOKENS, right=0.5)
    tokens, _, _ = run(of, proposer, Switching([1] * 7 + [5] * 2 + [1] * 70 + [3]))
    text = [*prompt, *tokens]
    cycles = [(position, seen) for position, seen in proposer.drafted if position < len(text) - 1]
    assert len(cycles) > 3
    assert [seen for _, seen in cycles] == cold_drafts(of, drafter, text, cycles)


def test_the_control_a_context_that_misses_plain_rows_drafts_otherwise(tmp_path: Path) -> None:
    of = subject("llama")
    drafter = real_drafter(tmp_path, of, window=64)
    prompt = of.prompt(PROMPT)
    proposer = of.helped(drafter, prompt, TOKENS, right=0.5)
    defer = type(drafter.new_context()).defer

    def forgetful(self: object, taps: Sequence[mx.array], position: int, **options: int) -> None:
        defer(self, [mx.zeros_like(tap) for tap in taps], position, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(drafter.new_context()), "defer", forgetful)
        tokens, _, _ = run(of, proposer, Switching([1] * 20 + [5]))
    assert tokens == of.answer(prompt, TOKENS), "the text stays right, the drafts do not"
    text = [*prompt, *tokens]
    cycles = [(position, seen) for position, seen in proposer.drafted if position < len(text) - 1]
    assert [seen for _, seen in cycles] != cold_drafts(of, drafter, text, cycles)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gpt_oss"])
def test_the_state_is_that_of_the_text_wherever_a_switching_request_ends(family: str, tmp_path: Path) -> None:
    """A second turn on the same state goes on exactly."""
    of = subject(family)
    prompt = of.prompt(PROMPT)
    proposer = of.helped(real_drafter(tmp_path, of), prompt, TOKENS)
    request = make_request(
        prompt, vocab_size=of.target.vocab_size, checkpoint_block_size=8, max_tokens=TOKENS, prefill_step_size=CHUNK
    )
    wanted = of.answer(prompt, TOKENS)
    for stop_after in (1, 4, 9, 17):
        state = DecodeState(of.target, proposer)  # type: ignore[arg-type]
        steps = generate_tokens(of.target, proposer, request, state, Stats(), Switching([1, 1, 3, 5, 1, 2, 1]))
        got: list[int] = []
        for _ in range(stop_after):
            got += next(steps).tokens
        steps.close()
        longer = [*prompt, *got]
        again = make_request(
            longer, vocab_size=of.target.vocab_size, checkpoint_block_size=8, max_tokens=20, prefill_step_size=CHUNK
        )
        more = generate_tokens(of.target, proposer, again, state, Stats(), Switching([4, 1]))
        assert [t for step in more for t in step.tokens] == wanted[len(got) : len(got) + 20]


def test_cycles_are_timed_but_not_those_at_a_crossing(tmp_path: Path) -> None:
    of = subject("llama")
    prompt = of.prompt(PROMPT)
    chooser = Switching([1, 1, 1, 4, 4, 4])
    run(of, of.helped(real_drafter(tmp_path, of), prompt, TOKENS), chooser)
    for (before, *_), (width, _, _, seconds) in itertools.pairwise(chooser.seen):
        if (before == 1) != (width == 1):
            assert seconds is None
    timed = [seconds for *_, seconds in chooser.seen if seconds is not None]
    assert len(timed) > 10
    assert min(timed) > 0


def test_a_lap_in_which_another_request_ran_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 2.5, 4.0, 5.0, 6.0, 7.0, 8.0])
    monkeypatch.setattr("dflash2_mlx.decode.chooser.time.perf_counter", lambda: next(clock))
    lap, other = Lap(), Lap()
    assert lap.end() is None, "the first has no beginning"
    assert lap.end() == pytest.approx(2.0)
    other.end()
    assert lap.end() is None
    assert lap.end() == pytest.approx(1.0)
    Lap.interrupt()
    assert lap.end() is None, "a prefill"
    assert lap.end(counts=False) is None


def test_no_chooser_is_the_requests_own_block_size(tmp_path: Path) -> None:
    of = subject("llama")
    prompt = of.prompt(PROMPT)
    request = make_request(
        prompt, vocab_size=of.target.vocab_size, checkpoint_block_size=8, block_size=3, max_tokens=30
    )
    stats, proposer = Stats(), of.scripted(prompt, 60)
    target: Target = of.target
    list(generate_tokens(target, proposer, request, DecodeState(target, proposer), stats))  # type: ignore[arg-type]
    assert [count > 0 for count in stats.cycles_by_width] == [False, False, True]
