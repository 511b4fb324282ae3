"""What shares a model or a state: drafters with other taps, requests left open, streams closed at a bad moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import Pair, generate, stream_generate
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import RequestError
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.instances import equip
from tests import tiny
from tests.tiny_drafters import tiny_drafter_config, write_drafter

PROMPT = tiny.random_prompt(40)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("share", ["target", "model"])
def test_two_drafters_with_other_taps_share_a_model(tmp_path: Path, family: str, share: str) -> None:
    model = tiny.build(family)
    pairs = []
    target = Target(model)
    for number, ids in enumerate(([0, 2], [1, 2, 3])):
        config = tiny_drafter_config(model, target_layer_ids=ids)
        folder = write_drafter(tmp_path / str(number), config, seed=number)
        own = target if share == "target" else Target(model)
        pairs.append(Pair(own, load_drafter(folder, dtype="float32")))
    first = [generate(pair, PROMPT, max_tokens=40) for pair in pairs]
    again = [generate(pair, PROMPT, max_tokens=40) for pair in pairs]
    assert len({tuple(answer.tokens) for answer in [*first, *again]}) == 1
    figures = [(a.stats.cycles, a.stats.accepted_by_position) for a in first]
    assert [(a.stats.cycles, a.stats.accepted_by_position) for a in again] == figures


def make_pair(tmp_path: Path, family: str) -> Pair:
    model = tiny.build(family)
    folder = write_drafter(tmp_path / family, tiny_drafter_config(model))
    return Pair(Target(model), load_drafter(folder, dtype="float32"))


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "muse_glimmer"])
def test_a_request_takes_its_state_over_from_one_that_was_left_open(tmp_path: Path, family: str) -> None:
    pair = make_pair(tmp_path, family)
    state = pair.new_state()
    left = stream_generate(pair, PROMPT, max_tokens=40, state=state)
    said: list[int] = []
    while len(said) < 8:
        said += next(left).tokens
    prompt = [*PROMPT, *said, 3, 1]
    answer = generate(pair, prompt, max_tokens=30, state=state)
    assert answer.tokens == tiny.plain_greedy(pair.target.model, prompt, 30)
    with pytest.raises(RequestError, match="another request"):
        next(left)
    again = [*prompt, *answer.tokens, 5]
    assert generate(pair, again, max_tokens=30, state=state).tokens == tiny.plain_greedy(pair.target.model, again, 30)


def test_closing_a_stream_in_the_middle_of_anothers_forward_disturbs_nothing(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "qwen3_5")
    left = stream_generate(pair, PROMPT, max_tokens=40)
    next(left)
    layer = pair.target.layers[-1]

    class Closing:
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            left.close()
            return super().__call__(*arguments, **keywords)  # type: ignore[misc]

    equip(layer, Closing)
    answer = generate(pair, PROMPT, max_tokens=30)
    assert answer.tokens == tiny.plain_greedy(tiny.build("qwen3_5"), PROMPT, 30)
