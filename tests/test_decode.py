"""Where a stream ends, what it counts, what it costs, and what bad rows of the drafter or the target do to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.target.rollback import flatten
from tests.running import Subject, decode, real_drafter, steps, subject

PROMPT = 50
PERFECT, SPOILT = 1.0, 0.6


@pytest.fixture(params=["llama", "gpt_oss", "qwen3_5"])
def of(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, 16)


@pytest.fixture
def untied() -> Subject:
    return subject("llama_untied", 16)


def all_steps(of: Subject, right: float | None, **options: Any) -> tuple[list[TokenStep], DecodeState]:
    """Every step of an answer in blocks of 5; `right` is None for plain decoding."""
    prompt = of.prompt(PROMPT)
    proposer = None if right is None else of.scripted(prompt, 200, right=right)
    state = DecodeState(of.target, proposer)  # type: ignore[arg-type]
    options = {"max_tokens": 60, "block_size": 5, **options}
    return list(steps(of.target, proposer, prompt, state=state, **options)), state


def check_end(of: Subject, taken: Sequence[TokenStep], state: DecodeState, count: int, reason: str) -> None:
    """Exactly `count` tokens of the plain text, one reason, and caches that hold all of them but the last."""
    prompt = of.prompt(PROMPT)
    tokens = [token for step in taken for token in step.tokens]
    assert tokens == of.answer(prompt, count)
    assert [step.finish_reason for step in taken] == [None] * (len(taken) - 1) + [reason]
    text = [*prompt, *tokens]
    # plain decoding has launched the step after an end token already
    assert state.tokens in (text[:-1], text)
    assert {entry.offset for entry in flatten(state.caches) if hasattr(entry, "offset")} == {len(state.tokens)}
    if state.context is not None:
        assert state.tokens == text[:-1]
        assert state.context.end == len(state.tokens)
    assert all(step.accepted <= len(step.tokens) for step in taken)


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [PERFECT, SPOILT, None])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 21])
def test_the_limit_cuts_inside_a_block(of: Subject, right: float | None, count: int) -> None:
    taken, state = all_steps(of, right, max_tokens=count)
    check_end(of, taken, state, count, "length")
    assert taken[-1].stats.generation_tokens == count


def first_new(tokens: Sequence[int], start: int) -> int:
    """The first index from `start` on whose token did not occur before."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.mark.parametrize("right", [PERFECT, SPOILT, None])
@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 20])
def test_an_end_token_cuts_wherever_it_stands_in_a_block(of: Subject, right: float | None, start: int) -> None:
    text = of.answer(of.prompt(PROMPT), 60)
    at = first_new(text, start)
    taken, state = all_steps(of, right, eos_token_ids=[text[at]])
    check_end(of, taken, state, at + 1, "stop")


def test_of_several_end_tokens_the_first_one_met_cuts(of: Subject) -> None:
    text = of.answer(of.prompt(PROMPT), 60)
    at = first_new(text, 12)
    taken, state = all_steps(of, PERFECT, eos_token_ids=[text[first_new(text, at + 1)], text[at]])
    check_end(of, taken, state, at + 1, "stop")


@pytest.mark.parametrize("right", [PERFECT, SPOILT, None])
def test_an_end_token_at_the_limit_is_a_stop_and_one_after_it_is_not_seen(of: Subject, right: float | None) -> None:
    text = of.answer(of.prompt(PROMPT), 60)
    at = first_new(text, 13)
    taken, state = all_steps(of, right, eos_token_ids=[text[at]], max_tokens=at + 1)
    check_end(of, taken, state, at + 1, "stop")
    taken, state = all_steps(of, right, eos_token_ids=[text[at]], max_tokens=at)
    check_end(of, taken, state, at, "length")


class Cut:
    """A stop hook that ends the text with its n-th token, and keeps what it was shown."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.shown: list[int] = []

    def __call__(self, tokens: Sequence[int]) -> int | None:
        before = len(self.shown)
        self.shown += tokens
        return self.count - before if len(self.shown) >= self.count else None


@pytest.mark.parametrize("right", [PERFECT, SPOILT, None])
@pytest.mark.parametrize("count", [1, 5, 6, 7, 20])
def test_the_cut_hook_ends_a_text_inside_a_block(of: Subject, right: float | None, count: int) -> None:
    cut = Cut(count)
    taken, state = all_steps(of, right, cut=cut)
    check_end(of, taken, state, count, "stop")
    assert cut.shown[:count] == of.answer(of.prompt(PROMPT), count)


@pytest.mark.parametrize("right", [PERFECT, None])
def test_the_earliest_end_wins(of: Subject, right: float | None) -> None:
    text = of.answer(of.prompt(PROMPT), 60)
    at = first_new(text, 13)
    for count, limit, reason in ((at, 60, "stop"), (at + 2, at + 2, "stop"), (at + 2, at - 1, "length")):
        taken, state = all_steps(of, right, eos_token_ids=[text[at]], cut=Cut(count), max_tokens=limit)
        check_end(of, taken, state, min(count, at + 1, limit), reason)
    cut = Cut(1000)
    all_steps(of, right, eos_token_ids=[text[at]], cut=cut, max_tokens=at - 1)
    assert cut.shown == text[: at - 1], "the hook is shown nothing past the limit"


def test_a_request_goes_on_from_a_cut_block(of: Subject) -> None:
    prompt = of.prompt(PROMPT)
    text = of.answer(prompt, 60)
    taken, state = all_steps(of, PERFECT, max_tokens=8)
    held = len(state.tokens)
    proposer = of.scripted(prompt, 200, right=SPOILT)
    run = decode(of.target, proposer, [*prompt, *text[:8]], state=state, max_tokens=40)
    assert run.stats.cached_tokens == held == PROMPT + 7
    assert run.tokens == text[8:48]


# --- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [PERFECT, SPOILT, 0.0])
def test_the_figures_of_a_request(of: Subject, right: float) -> None:
    prompt = of.prompt(PROMPT)
    run = decode(of.target, of.scripted(prompt, 200, right=right), prompt, block_size=5, max_tokens=61)
    stats = run.stats
    assert stats.generation_tokens == len(run.tokens) == 61
    assert stats.cycles == len(run.accepted)
    assert stats.proposed_by_position == [stats.cycles] * 4
    counted = Counter(run.accepted)
    for position, times in enumerate(stats.accepted_by_position):
        at_least = sum(count for accepted, count in counted.items() if accepted > position)
        assert at_least <= times <= at_least + 1  # the limit may have cut drafts that stood
    assert stats.accepted_tokens == sum(run.accepted)
    assert stats.tokens_per_cycle == pytest.approx(60 / stats.cycles)
    assert stats.acceptance_by_position == sorted(stats.acceptance_by_position, reverse=True)
    assert stats.prompt_seconds > 0
    assert stats.generation_seconds > 0
    figures = stats.as_dict()
    assert figures["generation_tokens"] == 61
    assert figures["prompt_tokens"] == PROMPT
    assert figures["generation_tps"] == pytest.approx(60 / stats.generation_seconds, rel=0.01)
    assert figures["acceptance_by_position"] == [round(x, 3) for x in stats.acceptance_by_position]
    if right == PERFECT:
        assert (stats.cycles, figures["tokens_per_cycle"]) == (12, 5.0)
    if right == 0.0:
        assert (stats.cycles, figures["tokens_per_cycle"]) == (60, 1.0)


def test_stats_are_live(of: Subject) -> None:
    prompt = of.prompt(PROMPT)
    given = 0
    for step in steps(of.target, of.scripted(prompt, 200), prompt, block_size=5, max_tokens=31):
        given += len(step.tokens)
        assert step.stats.generation_tokens == given


@pytest.mark.parametrize(
    ("right", "count", "alarmed"), [(0.0, 40, False), (0.0, 100, True), (0.3, 100, False), (PERFECT, 100, False)]
)
def test_the_alarm_when_nothing_is_ever_accepted(untied: Subject, right: float, count: int, alarmed: bool) -> None:
    prompt = untied.prompt(PROMPT)
    run = decode(untied.target, untied.scripted(prompt, 200, right=right), prompt, max_tokens=count)
    assert (run.stats.alarm is not None) == alarmed
    assert run.stats.as_dict()["alarm"] == run.stats.alarm
    if alarmed:
        assert "only 0 drafts accepted in 99 cycles" in str(run.stats.alarm)


def test_no_alarm_without_speculation(untied: Subject) -> None:
    prompt = untied.prompt(PROMPT)
    assert decode(untied.target, None, prompt, max_tokens=100).stats.alarm is None
    assert Stats().tokens_per_cycle == 1.0


# --- host syncs ---------------------------------------------------------------------------------------------------

WAITING = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "__array__")


@contextmanager
def counting_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often anything waits for the device: reads of arrays, and `mx.eval`."""
    waits: Counter[str] = Counter()

    def counted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            waits[name] += 1
            return plain(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in WAITING:
            patch.setattr(mx.array, name, counted(name, getattr(mx.array, name)))
        for name in ("eval", "synchronize"):
            patch.setattr(mx, name, counted(name, getattr(mx, name)))
        yield waits


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5", "gemma4_moe"])
@pytest.mark.parametrize("engine", ["dflash2", "dflash"])
@pytest.mark.parametrize(
    "law",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2, "seed": 3},
    ],
    ids=["greedy", "sampled", "filtered"],
)
def test_a_cycle_waits_for_the_device_once(
    family: str, engine: str, law: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = subject(family, 16)
    drafter = real_drafter(tmp_path, of, engine=engine)
    running = steps(of.target, drafter, of.prompt(PROMPT), max_tokens=40, **law)
    stats = next(running).stats
    with counting_waits(monkeypatch) as waits:
        before = stats.cycles
        for _ in range(12):
            next(running)
        cycles = stats.cycles - before
    assert waits == {"tolist": cycles}
    running.close()


@pytest.mark.parametrize("law", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_a_plain_step_waits_once_and_logprobs_only_read_what_is_there(
    of: Subject, law: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = steps(of.target, None, of.prompt(PROMPT), max_tokens=40, **law)
    next(running)
    with counting_waits(monkeypatch) as waits:
        for _ in range(10):
            next(running)
    assert waits == {"tolist": 10}
    running.close()


def test_control_a_wait_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    one = mx.array([1])
    with counting_waits(monkeypatch) as waits:
        one.item()
        bool(one)
        mx.eval(one)
    assert waits == {"item": 1, "__bool__": 1, "eval": 1}


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"verify_mode": "off"}, {"block_size": 5}])
def test_a_long_answer_holds_no_more_than_its_caches(options: dict[str, Any], tmp_path: Path) -> None:
    """With a drafter at hand, plain steps keep tapped rows for it: worked in now and then, not piled up."""
    of = subject("gpt_oss", 16)
    drafter = real_drafter(tmp_path, of)
    state = DecodeState(of.target, drafter)
    held: list[int] = []
    for step in steps(of.target, drafter, of.prompt(PROMPT), state=state, max_tokens=600, **options):
        if step.stats.generation_tokens >= (130, 330)[len(held)]:
            mx.synchronize()
            held.append(mx.get_active_memory() - sum(entry.nbytes for entry in flatten(state.caches)))
            if len(held) == 2:
                break
    assert held[1] - held[0] < 20_000, "a tapped row is 384 bytes"
