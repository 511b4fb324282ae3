"""Answers many at a time: what is used of mlx-lm's BatchGenerator, held against plain decoding one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mlx import nn

from dflash2_mlx.train.data.answers import Asked, answers
from tests import tiny

TOKENS = 12


def asked(count: int = 7, **options: float) -> list[Asked]:
    return [Asked(i, tiny.random_prompt(3 + 5 * (i % 4), seed=i), **options) for i in range(count)]  # type: ignore[arg-type]


def told(model: nn.Module, prompts: list[Asked], batch: int, end: set[int] | None = None) -> dict[int, list[int]]:
    return dict(answers(model, prompts, end_tokens=end or set(), max_tokens=TOKENS, batch=batch))


@pytest.mark.parametrize(("family", "batch"), [("llama", 1), ("llama", 3), ("gemma3_text", 3), ("qwen3_next", 3)])
def test_greedy_answers_are_those_of_plain_decoding(family: str, batch: int) -> None:
    model = tiny.build(family)
    prompts = asked(4)
    found = told(model, prompts, batch)
    assert found == {one.number: tiny.plain_greedy(model, one.prompt, TOKENS) for one in prompts}, (
        "mlx-lm no longer gives a batch the tokens of single sequences in float32"
    )


def test_an_answer_keeps_its_end_token_and_stops_there() -> None:
    model = tiny.build("llama")
    prompts = asked(4)
    whole = told(model, prompts, 4)
    end = whole[2][5]
    for batch in (1, 4):
        found = told(model, prompts, batch, {end})
        for number, tokens in whole.items():
            cut = tokens.index(end) + 1 if end in tokens else TOKENS
            assert found[number] == tokens[:cut]


@pytest.mark.parametrize("batch", [1, 4])
def test_a_sampled_answer_hangs_on_its_seed_alone(batch: int) -> None:
    model = tiny.build("llama")
    mixed = [Asked(i, one.prompt, 0.0 if i % 2 else 1.0, seed=40 + i) for i, one in enumerate(asked())]
    found = told(model, mixed, batch)
    assert found == told(model, mixed[::-1], 3)
    for one in mixed[1::2]:
        assert found[one.number] == tiny.plain_greedy(model, one.prompt, TOKENS)
    reseeded = told(model, [Asked(0, mixed[0].prompt, 1.0, seed=99)], batch)
    assert reseeded[0] != found[0]


def test_a_low_temperature_comes_near_greedy() -> None:
    model = tiny.build("llama")
    prompts = asked(3, temperature=1e-4)
    assert told(model, prompts, 3) == told(model, asked(3), 3)


def test_prompts_are_taken_as_places_are_free() -> None:
    taken: list[int] = []

    def stream() -> Iterator[Asked]:
        for one in asked(9):
            taken.append(one.number)
            yield one

    counted: list[int] = []
    found = answers(tiny.build("llama"), stream(), end_tokens=(), max_tokens=4, batch=2, on_tokens=counted.append)
    next(found)
    assert len(taken) <= 3
    assert len(list(found)) == 8
    assert sum(counted) == 9 * 4
