"""The optimizer: its library's AdamW, with a rate and a clip for what makes kernels, and decay on matrices alone."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.optimizers import AdamW
from mlx.utils import tree_flatten, tree_map

from dflash2_mlx.drafter.config import parse_config
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.train.loop.optimizer import DraftOptimizer
from dflash2_mlx.train.recipe.values import Loop
from tests.tiny_drafters import tiny_v1_config
from tests.train.training import subject

LOOP = Loop(learning_rate=0.02, weight_decay=0.1)


def flat(tree: Any) -> dict[str, np.ndarray]:
    pairs: Any = tree_flatten(tree)
    return {name: np.array(array) for name, array in pairs}


def gradient_of(model: Any, step: int) -> Any:
    mx.random.seed(step)
    return tree_map(lambda x: mx.random.normal(x.shape), model.trainable_parameters())


def moved(optimizer: Any, rates: list[float], set_rate: Any) -> dict[str, np.ndarray]:
    """The weights of a drafter after a step at each of `rates`, with gradients that hang on the step alone."""
    model = subject(count=1, tokens=4).drafter
    optimizer.init(model.trainable_parameters())
    for step, rate in enumerate(rates):
        set_rate(rate)
        optimizer.update(model, gradient_of(model, step))
        mx.eval(model.parameters())
    return flat(model.trainable_parameters())


def adamw(rates: list[float], decay: float) -> dict[str, np.ndarray]:
    optimizer = AdamW(learning_rate=LOOP.learning_rate, betas=[0.9, 0.95], weight_decay=decay)
    return moved(optimizer, rates, lambda rate: setattr(optimizer, "learning_rate", rate))


def test_every_weight_moves_as_adamw_moves_it_at_its_own_rate_and_decay() -> None:
    optimizer = DraftOptimizer(LOOP)
    rates = [0.02, 0.01, 0.005]
    found = moved(optimizer, rates, optimizer.set_rate)
    arms = {
        "kernel": adamw([x / 100 for x in rates], LOOP.weight_decay),
        "factor": adamw(rates, 0.0),
        "matrix": adamw(rates, LOOP.weight_decay),
    }
    kinds = {name: kind_of(name) for name in found}
    assert set(kinds.values()) == set(arms)
    for name, array in found.items():
        for kind, arm in arms.items():
            assert np.allclose(arm[name], array, rtol=1e-6, atol=1e-8) == (kind == kinds[name]), (name, kind)


def kind_of(name: str) -> str:
    if name.endswith("_conv.kernel_projection.weight"):
        return "kernel"
    return "factor" if "norm" in name or name.endswith("_conv.base_kernel") else "matrix"


def test_neither_part_of_the_gradient_shortens_the_other() -> None:
    model = subject(count=1, tokens=4).drafter
    gradient = gradient_of(model, 0)
    sizes = {name: float(np.linalg.norm(array)) for name, array in flat(gradient).items()}
    kernels, rest = (
        sum(size**2 for name, size in sizes.items() if ("kernel_projection" in name) is wanted) ** 0.5
        for wanted in (True, False)
    )
    clipped, norm = DraftOptimizer.clipped(gradient, 2.0)
    assert float(norm) == pytest.approx((kernels**2 + rest**2) ** 0.5, rel=1e-5)
    for name, array in flat(clipped).items():
        part = kernels if "kernel_projection" in name else rest
        assert np.linalg.norm(array) == pytest.approx(sizes[name] * 2.0 / part, rel=1e-4), name


def test_a_short_gradient_is_left_as_it_is() -> None:
    gradient = gradient_of(subject(count=1, tokens=4).drafter, 0)
    clipped, _ = DraftOptimizer.clipped(gradient, 1e6)
    for name, array in flat(gradient).items():
        np.testing.assert_array_equal(flat(clipped)[name], array, err_msg=name)


def test_a_drafter_without_convolution_has_one_part() -> None:
    model = DraftModel(parse_config(tiny_v1_config(subject(count=1, tokens=4).model)))
    optimizer = DraftOptimizer(LOOP)
    optimizer.init(model.trainable_parameters())
    before = flat(model.trainable_parameters())
    gradient, norm = optimizer.clipped(gradient_of(model, 0), 1.0)
    assert float(norm) > 1.0
    optimizer.update(model, gradient)
    for name, array in flat(model.trainable_parameters()).items():
        assert not np.array_equal(array, before[name]), name
