"""The gradient of every kind of weight against finite differences; micro batches and lanes change nothing."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from dflash2_mlx.train.lanes import open_lanes
from dflash2_mlx.train.learning import quick
from dflash2_mlx.train.learning.loss import BlockBatch, block_loss
from dflash2_mlx.train.learning.step import _computed, gradients
from dflash2_mlx.train.recipe.values import Loss
from tests.tiny_families import VOCAB
from tests.train.training import Subject, batch_of, subject, whole_columns

RECIPE = Loss(frequent=0, sampled=0, distill=0.4, selector=0.7)
WEIGHTS = (
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    "layers.0.input_layernorm.weight",
    "layers.1.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.2.self_attn.v_proj.weight",
    "layers.2.self_attn.o_proj.weight",
    "layers.1.self_attn.q_norm.weight",
    "layers.1.self_attn.k_norm.weight",
    "layers.1.mlp.gate_proj.weight",
    "layers.1.mlp.up_proj.weight",
    "layers.1.mlp.down_proj.weight",
    "layers.0.attention_conv.base_kernel",
    "layers.0.attention_conv.kernel_projection.weight",
    "layers.2.mlp_conv.base_kernel",
    "layers.2.mlp_conv.kernel_projection.weight",
    "candidate_selector.predecessor_codebook.weight",
    "candidate_selector.successor_codebook.weight",
    "candidate_selector.hidden_projection.weight",
)


@pytest.fixture(scope="module")
def one() -> Subject:
    """With the whole vocabulary as candidates: a list that changes would make the loss jump."""
    return subject(selector_top_k=VOCAB)


def loss_at(one: Subject, batch: BlockBatch, weights: dict[str, mx.array]) -> float:
    one.drafter.load_weights(list(weights.items()))
    return block_loss(one.drafter, one.target, batch, whole_columns(one.target), RECIPE).loss.item()


def test_the_list_names_every_kind_of_weight(one: Subject) -> None:
    import re

    def kinds(names: Any) -> set[str]:
        return {re.sub(r"^layers\.\d+\.", "", name) for name in names}

    found = kinds(dict(tree_flatten(one.drafter.trainable_parameters())))
    same = {"attention_conv.base_kernel": "mlp_conv.base_kernel"}
    assert found - kinds(WEIGHTS) <= {
        "mlp_conv.base_kernel",
        "mlp_conv.kernel_projection.weight",
        "attention_conv.base_kernel",
        "attention_conv.kernel_projection.weight",
    } | set(same)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_gradient_is_the_slope_of_the_loss(one: Subject, name: str) -> None:
    batch, _ = batch_of(one)
    weights: dict[str, mx.array] = dict(tree_flatten(one.drafter.trainable_parameters()))
    _, tree = gradients(one.drafter, one.target, [batch], whole_columns(one.target), RECIPE, one.lanes)
    slope: mx.array = dict(tree_flatten(tree))[name]
    norm = mx.sqrt(mx.square(slope).sum()).item()
    assert norm > 1e-4
    direction = slope / norm
    errors = []
    for size in (1e-2, 3e-3, 1e-3):  # too large bends, too small rounds: one of them has to fit
        up, down = (loss_at(one, batch, weights | {name: weights[name] + sign * size * direction}) for sign in (1, -1))
        errors.append(abs((up - down) / (2 * size) - norm) / norm)
    one.drafter.load_weights(list(weights.items()))
    assert min(errors) < 0.02


def test_micro_batches_and_lanes_change_nothing(one: Subject) -> None:
    batch, _ = batch_of(one)
    singles = [BlockBatch(*(array[i : i + 1] for array in batch)) for i in range(batch.truth.shape[0])]
    columns = whole_columns(one.target)
    whole, tree = gradients(one.drafter, one.target, [batch], columns, RECIPE, one.lanes)
    parts, pieces = gradients(one.drafter, one.target, singles, columns, RECIPE, one.lanes)
    assert mx.allclose(whole.loss, parts.loss, rtol=1e-5)
    assert mx.array_equal(whole.counted, parts.counted)
    for (name, a), (_, b) in zip(tree_flatten(tree), tree_flatten(pieces), strict=True):
        assert mx.allclose(a, b, rtol=1e-3, atol=1e-5), name


def test_bfloat16_forwards_leave_float32_weights_and_like_gradients(one: Subject) -> None:
    batch, _ = batch_of(one)
    columns = whole_columns(one.target)
    before = dict(tree_flatten(one.drafter.parameters()))
    loss, full = gradients(one.drafter, one.target, [batch], columns, RECIPE, one.lanes)
    rough, half = gradients(one.drafter, one.target, [batch], columns, RECIPE, one.lanes, dtype=mx.bfloat16)
    for name, array in tree_flatten(one.drafter.parameters()):
        assert mx.array_equal(array, before[name]), name
    a, b = (mx.concatenate([x.reshape(-1) for _, x in tree_flatten(t)]) for t in (full, half))
    assert b.dtype == mx.float32
    assert abs(loss.loss.item() / rough.loss.item() - 1) < 0.1
    cosine = (a * b).sum() / mx.sqrt(mx.square(a).sum() * mx.square(b).sum())
    assert cosine.item() > 0.3  # a random model in bfloat16 is rough; another loss' gradient would be near 0


def test_a_failed_forward_leaves_the_weights(one: Subject) -> None:
    batch, _ = batch_of(one)
    before = dict(tree_flatten(one.drafter.parameters()))
    with pytest.raises(ValueError, match=r"."):
        gradients(
            one.drafter, one.target, [batch._replace(taps=batch.taps[..., :-1])], whole_columns(one.target), RECIPE,
            one.lanes, dtype=mx.bfloat16,
        )  # fmt: skip
    assert all(mx.array_equal(array, before[name]) for name, array in tree_flatten(one.drafter.parameters()))
    assert tree_unflatten(list(before.items()))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (quick.softmax, lambda x: mx.softmax(x, axis=-1)),
        (quick.logsumexp, lambda x: mx.logsumexp(x, axis=-1)),
        (lambda x: quick.swiglu(x, mx.cos(x)), lambda x: x * mx.sigmoid(x) * mx.cos(x)),
    ],
    ids=["softmax", "logsumexp", "swiglu"],
)
def test_the_quick_functions_are_those_of_mlx(ours: Any, theirs: Any) -> None:
    x = mx.random.normal((7, 33), key=mx.random.key(0)) * 6
    weights = mx.random.normal(theirs(x).shape, key=mx.random.key(1))
    (a, da), (b, db) = (mx.value_and_grad(lambda x, f=f: (f(x) * weights).sum())(x) for f in (ours, theirs))
    assert np.isclose(a.item(), b.item(), rtol=1e-4)
    assert mx.abs(da - db).max().item() < 3e-4


@pytest.mark.parametrize("quickly", [True, False], ids=["on a CPU", "elsewhere"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(monkeypatch: pytest.MonkeyPatch, quickly: bool) -> None:
    monkeypatch.setattr(quick, "_use_quick", lambda: quickly)
    x = (mx.random.normal((7, 333), key=mx.random.key(0)) * 3).astype(mx.bfloat16)
    exact = x.astype(mx.float32)
    for ours, theirs in (
        (quick.softmax(x), mx.softmax(exact, axis=-1)),
        (quick.swiglu(x, x), exact * mx.sigmoid(exact) * exact),
    ):
        assert ours.dtype == mx.bfloat16
        assert (mx.abs(ours.astype(mx.float32) - theirs) <= 0.02 * mx.abs(theirs) + 1e-6).all()


def test_a_token_that_is_looked_up_often_gets_its_whole_gradient_in_bfloat16() -> None:
    places = mx.zeros((1000,), mx.int32)

    def total(table: mx.array) -> mx.array:
        rows: mx.array = _computed("candidate_selector.successor_codebook.weight", table, mx.bfloat16)[places]
        return rows.astype(mx.float32).sum()

    assert mx.grad(total)(mx.zeros((2, 3)))[0].tolist() == [1000.0] * 3
    assert _computed("fc.weight", mx.zeros((2, 3)), mx.bfloat16).dtype == mx.bfloat16


def test_more_micro_batches_take_no_more_memory() -> None:
    one = subject(selector_rank=2048, selector_top_k=4)
    batch, _ = batch_of(one, 2)
    columns, lanes = whole_columns(one.target), open_lanes(1)
    size = sum(array.nbytes for _, array in tree_flatten(one.drafter.parameters()))
    peaks = []
    for count in (2, 4):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        gradients(one.drafter, one.target, [batch] * count, columns, RECIPE, lanes)
        peaks.append((mx.get_peak_memory() - before) / size)
    assert peaks[1] < peaks[0] + 0.2


def test_the_quick_exponential_keeps_its_promise() -> None:
    x = np.linspace(-20, 0, 4001)
    error = np.abs(np.array(quick._power(mx.array(x.astype(np.float32))), np.float64) / np.exp(x) - 1)
    assert error[x >= -8].max() < 3e-5
    assert error.max() < 1e-3
    assert quick._power(mx.array([-1e30])).item() < 1e-30
