"""Acceptance by real decoding, along a recording, and the smooth measure, each against a second way to compute it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafter.config import DrafterConfig
from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_quantize.measure import Acceptance, acceptance, expected_tokens, record, replayed, text_law
from tests.proposers import Helped
from tests.running import decode, real_drafter, subject
from tests.tiny import plain_greedy
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter

PROMPT = 12
TOKENS = 40


class Steered(Helped):
    """A real drafter, half of whose drafts are put right, as the measuring functions see a drafter."""

    @property
    def config(self) -> DrafterConfig:
        return self.drafter.config


@pytest.fixture(scope="module", params=["dflash2", "dflash"])
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafter:
    return real_drafter(tmp_path_factory.mktemp("drafter"), subject("llama"), engine=request.param)


def steered(drafter: Drafter, prompt: Sequence[int], text: Sequence[int]) -> Any:
    shape = subject("llama").shape()
    return Steered(drafter, subject("llama").target, [*prompt, *text], shape, right=0.6)


@pytest.mark.parametrize("block_size", [None, 3, 2])
def test_a_recording_gives_what_decoding_gives(drafter: Drafter, block_size: int | None) -> None:
    of = subject("llama")
    prompt = of.prompt(PROMPT)
    text = of.answer(prompt, TOKENS + 10)
    (recording,) = record(of.target, of.taps, [prompt], tokens=TOKENS, beyond=8)
    assert recording.tokens[PROMPT:] == of.answer(prompt, TOKENS + 8)
    real = acceptance(of.target, steered(drafter, prompt, text), [prompt], tokens=TOKENS, block_size=block_size)
    replay = replayed(of.target, steered(drafter, prompt, text), [recording], block_size=block_size)
    assert replay == real
    assert 1.2 < real.tokens_per_cycle < (block_size or 8)
    assert real.tokens == TOKENS
    assert list(real.by_position) == sorted(real.by_position, reverse=True)
    run = decode(of.target, steered(drafter, prompt, text), prompt, max_tokens=TOKENS, block_size=block_size or 8)
    assert run.tokens == text[:TOKENS]
    assert real.cycles == run.stats.cycles
    assert sum(real.by_position) == pytest.approx(run.stats.accepted_tokens / run.stats.cycles, abs=0.2)


def test_end_tokens_end_a_text(drafter: Drafter) -> None:
    of = subject("llama")
    prompt = of.prompt(PROMPT)
    text = of.answer(prompt, TOKENS + 10)
    end = next(i for i in range(9, 30) if text[i] not in text[:i])
    options: dict[str, Any] = {"tokens": TOKENS, "eos_token_ids": [text[end]]}
    (recording,) = record(of.target, of.taps, [prompt], beyond=8, **options)
    assert (recording.start, recording.end) == (PROMPT, PROMPT + end + 1)
    real = acceptance(of.target, steered(drafter, prompt, text), [prompt], **options)
    assert real == replayed(of.target, steered(drafter, prompt, text), [recording])
    assert real.tokens == end + 1


def test_several_prompts_are_summed(drafter: Drafter) -> None:
    of = subject("llama")
    prompts = [of.prompt(PROMPT), of.prompt(20)]
    shares: list[float] = []
    both = acceptance(of.target, drafter, prompts, tokens=16, progress=shares.append)
    each = [acceptance(of.target, drafter, [prompt], tokens=16) for prompt in prompts]
    assert both.cycles == sum(one.cycles for one in each)
    assert both.tokens == 32
    assert both.tokens_per_cycle == pytest.approx(sum(one.tokens_per_cycle * one.cycles for one in each) / both.cycles)
    assert shares == [0.5, 1.0]
    recordings = record(of.target, of.taps, prompts, tokens=16, beyond=8)
    assert replayed(of.target, drafter, recordings) == both


def test_one_token_takes_no_cycle(drafter: Drafter) -> None:
    of = subject("llama")
    assert acceptance(of.target, drafter, [of.prompt(PROMPT)], tokens=1) == Acceptance(1.0, (), 0, 1)


def test_the_target_is_left_as_it_was(drafter: Drafter) -> None:
    """Taps of another drafter's layers, on the same model, do not disturb one another."""
    of = subject("llama")
    prompt = of.prompt(PROMPT)
    record(of.target, [1], [prompt], tokens=4, beyond=2)
    record(of.target, of.taps, [prompt], tokens=4, beyond=2)
    assert decode(of.target, None, prompt, max_tokens=8, block_size=1).tokens == plain_greedy(of.plain, prompt, 8)


@pytest.mark.parametrize("make", [tiny_drafter_config, tiny_v1_config])
def test_expected_tokens_are_those_of_the_drafters_own_law(make: Any, tmp_path: Path) -> None:
    of = subject("llama")
    # Most of the vocabulary is a candidate, or else a random drafter would never have the right one.
    many = {"selector_top_k": 200} if make is tiny_drafter_config else {}
    config = make(of.plain, target_layer_ids=of.taps, **many)
    drafter = load_drafter(write_drafter(tmp_path, config))
    prompt = of.prompt(PROMPT)
    (recording,) = record(of.target, of.taps, [prompt], tokens=6, beyond=8)
    width = 4
    laws = []
    for place in range(PROMPT, PROMPT + 5):
        context = drafter.new_context()
        context.append([tap[:, :place] for tap in recording.taps], 0)
        text = recording.tokens[place : place + width]
        laws.append(by_definition(drafter, context, text))
        np.testing.assert_allclose(np.array(text_law(of.target, drafter, context, text)), laws[-1], rtol=1e-4)
    assert np.max(laws) > 1e-3
    by_hand = 1 + np.cumprod(laws, axis=1).sum(axis=1)
    got = expected_tokens(of.target, drafter, [recording], anchors=5, block_size=width)
    assert got == pytest.approx(by_hand.mean(), rel=1e-5)
    sparse = expected_tokens(of.target, drafter, [recording], anchors=2, block_size=width)
    assert sparse == pytest.approx((by_hand[0] + by_hand[2]) / 2, rel=1e-5)
    all_there_are = expected_tokens(of.target, drafter, [recording], anchors=500, block_size=width)
    assert all_there_are == pytest.approx(got)


def by_definition(drafter: Drafter, context: DraftContext, text: Sequence[int]) -> list[float]:
    """The probability of each token after the first, for the predecessor that the text has."""
    target, anchor, width = subject("llama").target, mx.array(text[:1]), len(text)
    if not drafter.config.is_dflash2:
        logits = np.array(drafter.logits(target, drafter.hidden(target, context, anchor, width)))
        return [float(softmax(row)[token]) for row, token in zip(logits, text[1:], strict=True)]
    lattice = drafter.lattice(target, context, anchor, width)
    candidates, scores = np.array(lattice.candidates).tolist(), np.array(lattice.scores)
    law, before = [], 0
    for row, token in enumerate(text[1:]):
        at = candidates[row].index(token) if token in candidates[row] else None
        law.append(0.0 if at is None else float(softmax(scores[row, before])[at]))
        before = at or 0  # after a token that is no candidate nothing counts any more
    return law


def softmax(row: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(row - row.max())
    return weights / weights.sum()


def test_a_figure_reads_well() -> None:
    assert str(Acceptance(2.5, (1.0, 0.5), 4, 10)) == "2.50 tokens per cycle (by position 1.00 0.50)"
