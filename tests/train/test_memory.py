"""What a training run will need, before it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.train.check.memory import MemoryEstimate, check, estimate, parameters
from dflash2_mlx.train.lanes import open_lanes
from dflash2_mlx.train.learning.head import head_columns
from dflash2_mlx.train.learning.loss import BlockBatch
from dflash2_mlx.train.learning.step import gradients
from dflash2_mlx.train.recipe.values import Recipe, Shape
from dflash2_mlx.train.start.design import design
from dflash2_mlx.train.start.warm import new_model
from tests import tiny
from tests.tiny_families import HIDDEN, VOCAB, llama

CONFIG = design(Shape(layers=3, window=None, selector_rank=8, mask_token=3), llama(16), TargetFacts(HIDDEN, 4, VOCAB))
RECIPE = Recipe()


def changed(part: str, **values: Any) -> Recipe:
    return replace(RECIPE, **{part: replace(getattr(RECIPE, part), **values)})


def test_the_drafters_size_is_that_of_a_real_one() -> None:
    model, _ = new_model(CONFIG, Target(tiny.build("llama")), "random", 0)
    arrays: Any = tree_flatten(model.parameters())
    assert parameters(CONFIG) == sum(array.size for _, array in arrays)


def test_every_option_makes_its_own_part_smaller() -> None:
    base = estimate(CONFIG, 1000, RECIPE, tokens=10**6)
    assert base.target == 1000
    assert base.total == base.target + base.weights + base.optimizer + base.summed + base.activations + base.columns
    for part, options, figure in (
        ("loop", {"micro_batch": 2}, "activations"),
        ("loop", {"max_tokens": 512}, "activations"),
        ("loop", {"checkpointing": True}, "activations"),
        ("loss", {"anchors": 8}, "activations"),
        ("loss", {"frequent": 64, "sampled": 16}, "columns"),
    ):
        smaller = estimate(CONFIG, 1000, changed(part, **options), tokens=10**6)
        assert getattr(smaller, figure) < getattr(base, figure), options
    assert estimate(CONFIG, 1000, changed("loss", full_steps=1)).columns == base.columns  # a tiny vocabulary
    assert estimate(CONFIG, 1000, RECIPE, item=2).activations < base.activations
    assert estimate(CONFIG, 1000, RECIPE, lanes=2).activations == 2 * base.activations
    assert base.disk == 10**6 * (2 * 3 * HIDDEN + 16 * 8)
    assert estimate(CONFIG, 1000, replace(RECIPE, rows_gb=0.001), tokens=10**6).disk == 10**6


@pytest.mark.parametrize(("anchors", "length"), [(32, 128), (4, 512)])
def test_a_real_step_takes_about_so_much(anchors: int, length: int) -> None:
    recipe = changed("loop", max_tokens=length, batch=2, micro_batch=2)
    recipe = replace(recipe, loss=replace(recipe.loss, anchors=anchors, frequent=0))
    target = Target(tiny.build("llama"))
    model, _ = new_model(CONFIG, target, "random", 0)
    columns = head_columns(target, np.arange(VOCAB, dtype=np.int32), np.zeros(VOCAB, np.float32), mx.float32)
    rows = (2, anchors, CONFIG.block_size)
    drafted = (*rows[:2], CONFIG.block_size - 1)
    batch = BlockBatch(
        taps=mx.random.normal((2, length, 3 * HIDDEN)).astype(mx.bfloat16),
        anchors=mx.random.randint(1, length - 8, rows[:2]),
        truth=mx.random.randint(0, VOCAB, rows),
        weights=mx.ones(drafted) / 100,
        ids=mx.random.randint(0, VOCAB, (*drafted, 16)),
        logits=mx.random.normal((*drafted, 16)),
    )
    mx.eval(batch, model.parameters())
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    gradients(model, target, [batch], columns, recipe.loss, open_lanes(1))
    peak = mx.get_peak_memory() - before
    found = estimate(CONFIG, 0, recipe)
    expected = max(found.gradients, found.activations + found.columns)
    assert 0.5 < expected / peak < 2.0


@pytest.mark.parametrize(
    ("part", "param", "remedy"),
    [
        ("target", "model", "quantised copy"),
        ("weights", "layers", "--layers"),
        ("optimizer", "layers", "--selector-rank"),
        ("gradients", "layers", "--intermediate-size"),
        ("activations", "micro_batch", "--micro-batch"),
        ("columns", "frequent", "--frequent"),
        ("rows", "model", "smaller target"),
    ],
)
def test_what_does_not_fit_is_told_with_its_remedy(part: str, param: str, remedy: str) -> None:
    parts = dict.fromkeys([name for name, _ in estimate(CONFIG, 0, RECIPE).lines()], 10**6)
    found = MemoryEstimate(**{**parts, part: 8 * 10**9})
    check(found, 9 * 10**9)
    check(found, None)
    with pytest.raises(RequestError, match=remedy) as refused:
        check(found, 7 * 10**9)
    assert refused.value.param == param
    assert "8.0" in str(refused.value)
    assert "7.00 GB are free" in str(refused.value)


def test_a_disk_without_room_for_the_rows() -> None:
    found = estimate(CONFIG, 0, RECIPE, tokens=10**6)
    check(found, None, found.disk)
    with pytest.raises(RequestError, match="--rows-gb") as refused:
        check(found, None, found.disk - 1)
    assert refused.value.param == "rows_gb"
