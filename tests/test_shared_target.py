"""Several drafters on one loaded model: each pair keeps its own taps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash2_mlx import Pair, generate
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.target.adapter import Target
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
