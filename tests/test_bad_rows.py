"""Rows that are not finite: the drafter's cost a block, the target's end the request with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.propose import Proposal
from dflash2_mlx.errors import DecodeError
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.proposers import Scripted, certain
from tests.running import Subject, decode, real_drafter, steps, subject

PROMPT = 50
PERFECT, SPOILT = 1.0, 0.6


@pytest.fixture(params=["llama", "gpt_oss", "qwen3_5"])
def of(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, 16)


@pytest.fixture
def untied() -> Subject:
    return subject("llama_untied", 16)


class NotFinite(Scripted):
    """Right drafts, of which every second block is said to come from rows that are not finite."""

    blocks = 0

    def propose(self, *args: Any, **options: Any) -> Proposal:
        proposal = super().propose(*args, **options)
        self.blocks += 1
        return certain(proposal.tokens.tolist(), finite=self.blocks % 2 == 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_block_that_is_not_finite_is_dropped_and_counted(of: Subject, temperature: float) -> None:
    prompt = of.prompt(PROMPT)
    proposer = NotFinite(of.target, [*prompt, *of.answer(prompt, 200)], of.shape(), checked=temperature == 0)
    run = decode(of.target, proposer, prompt, block_size=5, max_tokens=40, temperature=temperature, top_p=0.9, seed=1)
    assert run.stats.dropped_blocks == (run.stats.cycles + 1) // 2 > 0
    assert run.stats.as_dict()["dropped_blocks"] == run.stats.dropped_blocks
    assert run.accepted[::2] == [0] * len(run.accepted[::2])
    if temperature == 0:
        assert run.tokens == of.answer(prompt, 40)
        assert set(run.accepted[1:-1:2]) == {4}


@pytest.mark.parametrize("engine", ["dflash2", "dflash"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_with_nan_weights_costs_its_blocks_only(
    of: Subject, engine: str, temperature: float, tmp_path: Path
) -> None:
    drafter = real_drafter(tmp_path, of, engine=engine)
    drafter.model.norm.weight = drafter.model.norm.weight * float("nan")
    prompt = of.prompt(PROMPT)
    run = decode(of.target, drafter, prompt, max_tokens=30, temperature=temperature, seed=1)
    assert run.stats.dropped_blocks == run.stats.cycles == 29
    assert len(run.tokens) == 30
    if temperature == 0:
        assert run.tokens == of.answer(prompt, 30)


class Faulty(Target):
    """A target whose logits after position `bad` are not finite."""

    bad: int | None = None
    value = float("nan")

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        start = caches[0].offset
        logits = super().__call__(tokens, caches)
        if self.bad is not None and start <= self.bad < start + tokens.shape[1]:
            logits[0, self.bad - start] = self.value
        return logits


@pytest.mark.parametrize("right", [PERFECT, SPOILT, None])
@pytest.mark.parametrize("bad", [PROMPT - 1, PROMPT, PROMPT + 7, PROMPT + 8, PROMPT + 9, PROMPT + 10])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_row_of_the_target_ends_the_request_after_the_tokens_before_it(
    untied: Subject, right: float | None, bad: int, value: float
) -> None:
    of = untied
    target = Faulty(tiny.build("llama_untied"))
    target.prepare(of.taps)
    target.bad, target.value = bad, value
    prompt = of.prompt(PROMPT)
    text = of.answer(prompt, 40)
    proposer = None if right is None else of.scripted(prompt, 200, right=right)
    state = DecodeState(target, proposer)  # type: ignore[arg-type]
    given: list[int] = []
    running = steps(target, proposer, prompt, state=state, max_tokens=40, block_size=5)
    with pytest.raises(DecodeError, match=rf"after position {bad} are not finite.*dtype"):  # noqa: PT012
        for step in running:
            assert step.finish_reason is None
            given += step.tokens
    assert given == text[: bad + 1 - PROMPT]
    assert state.tokens in ([], [*prompt, *given][:-1])
    target.bad = None
    run = decode(target, proposer, [*prompt, *given], state=state, max_tokens=20, block_size=5)
    assert run.tokens == text[len(given) : len(given) + 20]


def test_a_bad_row_after_the_last_accepted_one_changes_nothing(untied: Subject) -> None:
    of = untied
    target = Faulty(tiny.build("llama_untied"))
    target.prepare(of.taps)
    prompt = of.prompt(PROMPT)
    proposer = of.scripted(prompt, 200, right=0.0)
    state = DecodeState(target, proposer)  # type: ignore[arg-type]
    given: list[int] = []
    for step in steps(target, proposer, prompt, state=state, max_tokens=20, block_size=5):
        given += step.tokens
        target.bad = PROMPT + len(given) + 2  # two rows past the one that decides the next token
    assert given == of.answer(prompt, 20)
