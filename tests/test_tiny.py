"""The tiny targets themselves: varied text, and rows of a block that agree with single rows."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests import tiny

TOKENS = 120


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_greedy_text_is_varied_and_the_same_in_one_pass(name: str) -> None:
    model = tiny.build(name)
    prompt = tiny.random_prompt(50)
    text = tiny.plain_greedy(model, prompt, TOKENS)
    assert len(set(text)) > 20
    assert len(set(text[-40:])) > 8, "the text ends in a loop"
    cache = make_prompt_cache(model)
    logits = model(mx.array([prompt + text[:-1]]), cache=cache)
    assert mx.argmax(logits[0, len(prompt) - 1 :], axis=-1).tolist() == text


def test_a_seed_decides_every_weight() -> None:
    one, same, other = (tiny.build("qwen3_moe", seed=seed) for seed in (1, 1, 2))
    prompt = mx.array([tiny.random_prompt(8)])
    assert mx.array_equal(one(prompt), same(prompt))
    assert not mx.array_equal(one(prompt), other(prompt))


def test_a_stranger_cache_is_no_known_class() -> None:
    model = tiny.with_unknown_cache()
    assert [type(cache) for cache in make_prompt_cache(model)] == [tiny.UnknownCache] * 4
