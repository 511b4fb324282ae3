"""The law of every row is the one that mlx-lm's own chain samples from, position by position."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step

from dflash2_mlx.decode.laws import SamplingLaw, history_rows, log_probabilities, sampling_law
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.text.stream import generate
from tests import tiny
from tests.mlx_lm_chain import library_law, library_logits
from tests.tiny_drafters import tiny_drafter_config, write_drafter

VOCAB = 40
ROWS = 5
TOKENS = 25

FILTERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 1.7},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_p cold": {"temperature": 0.5, "top_p": 0.95},
    "top_p of one token": {"temperature": 1.0, "top_p": 1e-6},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_k of the whole vocabulary": {"temperature": 1.0, "top_k": VOCAB},
    "top_k past the vocabulary": {"temperature": 1.0, "top_k": VOCAB + 1},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "min_p of the best": {"temperature": 1.0, "min_p": 1.0},
    "top_p, top_k": {"temperature": 0.8, "top_p": 0.9, "top_k": 3},
    "top_p, min_p": {"temperature": 1.3, "top_p": 0.7, "min_p": 0.05},
    "top_k, min_p": {"temperature": 0.7, "top_k": 8, "min_p": 0.2},
    "all three": {"temperature": 0.9, "top_p": 0.95, "top_k": 10, "min_p": 0.02},
}

PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "bias": {"logit_bias": {3: 2.0, 7: -30.0, 0: 0.5}},
    "repetition": {"repetition_penalty": 1.3},
    "repetition, short": {"repetition_penalty": 0.8, "repetition_context_size": 3},
    "presence": {"presence_penalty": 0.7},
    "presence, short": {"presence_penalty": -0.5, "presence_context_size": 1},
    "frequency": {"frequency_penalty": 0.4},
    "frequency, short": {"frequency_penalty": 0.9, "frequency_context_size": 4},
    "all": {
        "logit_bias": {1: -1.0, 9: 3.0},
        "repetition_penalty": 1.2,
        "repetition_context_size": 7,
        "presence_penalty": 0.3,
        "presence_context_size": 2,
        "frequency_penalty": 0.6,
        "frequency_context_size": 30,
    },
}


def random_logits(rows: int = ROWS, seed: int = 0) -> mx.array:
    return 3.0 * mx.random.normal((rows, VOCAB), key=mx.random.key(100 + seed))


def assert_same_law(ours: mx.array, theirs: np.ndarray) -> None:
    probabilities = np.array(mx.softmax(ours, axis=-1))
    np.testing.assert_array_equal(probabilities > 0, theirs > 0)
    np.testing.assert_allclose(probabilities, theirs, rtol=2e-6, atol=1e-9)


def law_of(**parameters: Any) -> SamplingLaw:
    return sampling_law(vocab_size=VOCAB, **parameters)


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_filters_give_the_law_of_mlx_lm(filters: dict[str, Any]) -> None:
    logits = random_logits()
    rows = law_of(**filters).log_law(log_probabilities(logits))
    assert rows.dtype == mx.float32
    assert_same_law(rows, library_law(logits, filters))


@pytest.mark.parametrize("filters", [FILTERS["top_p"], FILTERS["min_p"], FILTERS["all three"]])
def test_ties_are_cut_as_mlx_lm_cuts_them(filters: dict[str, Any]) -> None:
    logits = mx.round(random_logits(seed=3))
    assert_same_law(law_of(**filters).log_law(log_probabilities(logits)), library_law(logits, filters))


@pytest.mark.parametrize("length", [0, 1, 2, 12, 60])
@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
def test_penalties_give_the_logits_of_mlx_lm(penalties: dict[str, Any], length: int) -> None:
    """Row i follows the history and the drafts before i; ids repeat, and the history may be shorter."""
    history = tiny.random_prompt(length, seed=length, vocab=6) if length else []
    drafts = [2, 2, 31, 5]
    logits, law = random_logits(len(drafts) + 1, seed=length), law_of(**penalties)
    size = law.history_size
    rows = history_rows(history, size, mx.array(drafts)) if size else None
    adjusted = law.adjust(logits, rows)
    for i, row in enumerate(adjusted):
        expected = library_logits(logits[i], [*history, *drafts[:i]], penalties)
        np.testing.assert_allclose(np.array(row), np.array(expected), rtol=1e-6, atol=1e-6)


def test_a_filter_sees_the_penalised_logits() -> None:
    filters, penalties = FILTERS["all three"], PENALTIES["all"]
    law, logits = law_of(**filters, **penalties), random_logits(seed=8)
    history = tiny.random_prompt(9, vocab=VOCAB)
    drafts = mx.array([1, 9, 9, 1])
    adjusted = law.adjust(logits, history_rows(history, law.history_size, drafts))
    before = [[*history, *drafts[:i].tolist()] for i in range(len(logits))]
    theirs = [library_logits(row, tokens, penalties) for row, tokens in zip(logits, before, strict=True)]
    assert_same_law(law.log_law(log_probabilities(adjusted)), library_law(mx.stack(theirs), filters))


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(st.integers(0, VOCAB - 1), max_size=30),
    drafts=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7),
    size=st.integers(1, 25),
)
def test_a_row_sees_the_last_tokens_before_it(history: list[int], drafts: list[int], size: int) -> None:
    rows = history_rows(history, size, mx.array(drafts)).tolist()
    assert len(rows) == len(drafts) + 1
    for i, row in enumerate(rows):
        before = [*history, *drafts[:i]][-size:]
        assert row == [-1] * (len(row) - len(before)) + before


def test_a_context_may_be_larger_than_memory() -> None:
    rows = history_rows([1, 2], 1 << 31, mx.array([3, 4]))
    assert rows.tolist() == [[-1, -1, 1, 2], [-1, 1, 2, 3], [1, 2, 3, 4]]


def test_neutral_penalties_are_off() -> None:
    law = law_of(repetition_penalty=1.0, presence_penalty=0, frequency_penalty=0.0, logit_bias=None)
    assert law == SamplingLaw()
    assert law.history_size == 0


def test_the_longest_context_of_the_active_penalties_counts() -> None:
    active = {"repetition_penalty": 1.1, "frequency_penalty": 1.0, "frequency_context_size": 64}
    law = law_of(**active, presence_context_size=99)
    assert law.history_size == 64


def test_bfloat16_rows_are_normalised_in_float32() -> None:
    logits = random_logits().astype(mx.bfloat16)
    table = log_probabilities(logits)
    assert table.dtype == mx.float32
    np.testing.assert_allclose(np.array(mx.exp(table).sum(axis=-1)), 1.0, rtol=1e-5)


GREEDY: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {11: 4.0, 200: -100.0}},
    "repetition": {"repetition_penalty": 1.6},
    "presence, short": {"presence_penalty": 2.0, "presence_context_size": 3},
    "frequency, long": {"frequency_penalty": 0.8, "frequency_context_size": 500},
    "all": {**PENALTIES["all"], "repetition_penalty": 1.5},
}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return tiny.build("llama_untied")


@pytest.fixture(scope="module")
def pair(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = write_drafter(tmp_path_factory.mktemp("drafter"), tiny_drafter_config(model))
    return Pair(Target(model), load_drafter(folder, dtype="float32"))


@pytest.mark.parametrize("penalties", GREEDY.values(), ids=GREEDY)
def test_penalised_greedy_text_is_mlx_lm_s(pair: Pair, model: nn.Module, penalties: dict[str, Any]) -> None:
    prompt = tiny.random_prompt(30)
    processors = sample_utils.make_logits_processors(**penalties)
    steps = generate_step(mx.array(prompt), model, max_tokens=TOKENS, logits_processors=processors)
    expected = [int(token) for token, _ in steps]
    assert generate(pair, prompt, max_tokens=TOKENS, **penalties).tokens == expected
    assert generate(pair, prompt, max_tokens=TOKENS, verify_mode="off", **penalties).tokens == expected
    assert expected != tiny.plain_greedy(model, prompt, TOKENS), "the penalties change nothing"


def test_one_candidate_is_greedy_at_any_temperature(pair: Pair, model: nn.Module) -> None:
    prompt = tiny.random_prompt(20)
    expected = tiny.plain_greedy(model, prompt, TOKENS)
    answer = generate(pair, prompt, max_tokens=TOKENS, temperature=1.4, top_k=1)
    assert answer.tokens == expected
