"""First weights: random, from the target's own layers, or another drafter's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.config import DrafterConfig
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.train.learning.packed import packed_hidden
from dflash2_mlx.train.recipe.values import Shape
from dflash2_mlx.train.start.codebook import leading_directions, open_gate
from dflash2_mlx.train.start.design import design, published_config
from dflash2_mlx.train.start.target_parts import norm_scale, parts_of
from dflash2_mlx.train.start.warm import default_sources, new_model
from tests import tiny
from tests.tiny_drafters import write_drafter
from tests.tiny_families import HIDDEN, NAMED, OTHERS, VOCAB

FAMILIES = {**NAMED, **OTHERS}
SHAPE = Shape(layers=2, window=16, selector_rank=8, mask_token=3)
MLP = "mlp.gate_proj, mlp.up_proj, mlp.down_proj"


def a_pair(family: str, shape: Shape = SHAPE) -> tuple[DrafterConfig, Target]:
    target = Target(tiny.build(family))
    facts = TargetFacts(target.hidden_size, target.num_layers, target.vocab_size)
    return design(shape, FAMILIES[family](16), facts), target


def flat(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.trainable_parameters()))  # type: ignore[arg-type]


def rows(count: int = 5, seed: int = 0) -> mx.array:
    """Like rows of a residual stream."""
    return 3.0 * mx.random.normal((1, count, HIDDEN), key=mx.random.key(seed))


def hidden_of(model: DraftModel) -> mx.array:
    taps = mx.concatenate([rows(6, i) for i in range(len(model.config.target_layer_ids))], axis=-1)
    block = mx.random.normal((1, 1, 8, HIDDEN), key=mx.random.key(9))
    return packed_hidden(model, block, taps, mx.array([[5]]))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_starts_warm(name: str) -> None:
    config, target = a_pair(name)
    model, _ = new_model(config, target, "warm", 0)
    weights = flat(model)
    assert {n: w.shape for n, w in weights.items()} == {n: w.shape for n, w in flat(DraftModel(config)).items()}
    assert all(w.dtype == mx.float32 and mx.isfinite(w).all().item() for w in weights.values())
    assert mx.isfinite(hidden_of(model)).all().item()


@pytest.mark.parametrize(
    ("family", "notes"),
    [
        ("llama", ()),
        ("qwen3_5", ()),
        ("qwen3_moe", (f"layer 0 (target's 2), 1 (target's 3): nothing there fits {MLP}: random",)),
    ],
)
def test_what_stays_random_is_told(family: str, notes: tuple[str, ...]) -> None:
    config, target = a_pair(family)
    assert new_model(config, target, "warm", 0)[1] == notes


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "muse_glimmer"])
def test_a_context_row_has_the_keys_and_values_of_the_targets_layers(family: str) -> None:
    config, target = a_pair(family)
    model, _ = new_model(config, target, "warm", 0)
    x = rows()
    context = model.hidden_norm(x)
    for number, source in enumerate(default_sources(config, target)):
        ours, theirs = model.layers[number], target.layers[source]
        normed = theirs.input_layernorm(x)
        for side in ("k_proj", "v_proj"):
            expected = theirs.self_attn[side](normed)
            np.testing.assert_allclose(ours.self_attn[side](context), expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            ours.self_attn.q_proj(ours.input_layernorm(x)), theirs.self_attn.q_proj(normed), rtol=1e-3, atol=1e-4
        )


def test_heads_without_norms_keep_the_size_of_their_queries() -> None:
    config, target = a_pair("llama")
    model, _ = new_model(config, target, "warm", 0)
    attention, layer = model.layers[-1].self_attn, target.layers[-1]
    x = rows(64)
    plain = layer.self_attn.q_proj(layer.input_layernorm(x)).reshape(-1, config.head_dim)
    normed = attention.q_norm(attention.q_proj(model.layers[-1].input_layernorm(x)).reshape(-1, config.head_dim))
    sizes = [float(mx.sqrt((q * q).mean()).item()) for q in (plain, normed)]  # type: ignore[arg-type]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.2)
    assert not np.allclose(sizes[0], 1.0, rtol=0.3)  # or nothing was to be kept


def test_queries_are_taken_out_of_a_matrix_that_holds_gates_too() -> None:
    config, target = a_pair("qwen3_5")
    layer = target.layers[default_sources(config, target)[0]]
    shapes = {n.removeprefix("layers.0."): w.shape for n, w in flat(DraftModel(config)).items()}
    taken = parts_of(layer, shapes)["self_attn.q_proj.weight"]
    x = rows(3)
    both = layer.self_attn.q_proj(x).reshape(1, 3, config.num_attention_heads, -1)
    queries = mx.split(both, 2, axis=-1)[0].reshape(1, 3, -1)
    np.testing.assert_allclose(x @ taken.T, queries, rtol=1e-5, atol=1e-5)


def test_packed_layers_are_unpacked() -> None:
    config, target = a_pair("llama")
    shapes = {n.removeprefix("layers.0."): w.shape for n, w in flat(DraftModel(config)).items()}
    plain = parts_of(target.layers[0], shapes)
    nn.quantize(
        target.model, group_size=32, bits=8, class_predicate=lambda path, m: path.endswith(("q_proj", "up_proj"))
    )
    packed = parts_of(target.layers[0], shapes)
    assert packed.keys() == plain.keys()
    for name in ("self_attn.q_proj.weight", "mlp.up_proj.weight"):
        np.testing.assert_allclose(packed[name], plain[name], atol=0.03)
        assert not mx.array_equal(packed[name], plain[name])


def test_norms_of_every_kind() -> None:
    weight = mx.random.normal((HIDDEN,), key=mx.random.key(1))
    plain, centred, layer = (
        nn.RMSNorm(HIDDEN),
        tiny.build("gemma3_text").layers[0].input_layernorm,
        nn.LayerNorm(HIDDEN),
    )
    for norm in (plain, centred, layer):
        norm.weight = weight
    layer.bias = weight + 1.0
    for norm, expected in ((plain, weight), (centred, 1.0 + weight), (layer, weight)):
        np.testing.assert_allclose(norm_scale(norm, HIDDEN), expected, rtol=1e-4, atol=1e-4)
    assert norm_scale(plain, HIDDEN + 1) is None
    assert norm_scale(None, HIDDEN) is None


@pytest.mark.parametrize("start", ["warm", "random"])
def test_convolutions_and_selector_change_nothing_at_first(start: str) -> None:
    config, target = a_pair("llama")
    model, _ = new_model(config, target, start, 0)
    bare = DraftModel(replace(config, conv_kernel_size=0, conv_group_size=0, selector_rank=0, selector_top_k=0))
    bare.load_weights([(n, w) for n, w in flat(model).items() if "_conv." not in n and "selector" not in n])
    np.testing.assert_allclose(hidden_of(model), hidden_of(bare), rtol=1e-5, atol=1e-5)
    hidden = hidden_of(model)[0, 0, 1:]
    unary = mx.random.normal((7, 4))
    scores = model.candidate_selector.scores(hidden, mx.arange(28).reshape(7, 4), unary, mx.array([1]))
    assert mx.array_equal(scores, mx.broadcast_to(unary[:, None], scores.shape))


def test_the_gate_is_open_for_rows_that_share_a_mean_and_small_for_others() -> None:
    noise, mean = mx.random.normal((200, HIDDEN), key=mx.random.key(5)), rows(1)[0]
    for hidden, opened in ((mean + noise, 1.0), (noise - noise.mean(axis=0), 0.0)):
        gate = hidden @ open_gate(hidden, 4, mx.random.key(6)).T
        assert gate.shape == (200, 4)
        np.testing.assert_allclose(gate.mean(axis=0), opened, atol=0.15)
        assert float(mx.abs(gate - opened).mean().item()) < 0.25  # type: ignore[arg-type]
    config, target = a_pair("llama")
    projection = new_model(config, target, "warm", 0)[0].candidate_selector.hidden_projection.weight
    assert projection.shape == (8, HIDDEN)
    assert float(mx.abs(projection).max().item()) < 1.0  # type: ignore[arg-type]


def test_leading_directions_have_one_variance_and_no_correlation() -> None:
    _, target = a_pair("llama")
    codes = np.array(leading_directions(target, 8, mx.random.key(0)))
    np.testing.assert_allclose(np.cov(codes.T, bias=True), np.eye(8), atol=1e-3)
    table = np.array(target.embed(mx.arange(VOCAB)[None])[0])
    solution, *_ = np.linalg.lstsq(np.c_[table, np.ones(VOCAB)], codes, rcond=None)
    np.testing.assert_allclose(np.c_[table, np.ones(VOCAB)] @ solution, codes, atol=1e-3)
    assert leading_directions(target, HIDDEN + 4, mx.random.key(0)).shape == (VOCAB, HIDDEN + 4)


def test_a_seed_decides_everything() -> None:
    config, target = a_pair("qwen3_moe")
    for start in ("warm", "random"):
        first, again, other = (flat(new_model(config, target, start, seed)[0]) for seed in (1, 1, 2))
        assert all(mx.array_equal(first[name], again[name]) for name in first)
        assert not mx.array_equal(first["layers.0.mlp.up_proj.weight"], other["layers.0.mlp.up_proj.weight"])


def test_the_source_layers_can_be_chosen() -> None:
    config, target = a_pair("llama")
    assert default_sources(config, target) == [2, 3]
    model, _ = new_model(config, target, "warm", 0, source_layers=[1, 1])
    assert mx.array_equal(model.layers[0].mlp.up_proj.weight, target.layers[1].mlp.up_proj.weight)
    assert mx.array_equal(model.layers[1].mlp.up_proj.weight, target.layers[1].mlp.up_proj.weight)
    for bad in ([0], [0, 4], [-1, 0]):
        with pytest.raises(RequestError) as refused:
            new_model(config, target, "warm", 0, source_layers=bad)
        assert refused.value.param == "source_layers"


def test_only_layers_with_attention_are_sources() -> None:
    config, target = a_pair("qwen3_5")
    assert default_sources(config, target) == [2, 5]


def test_going_on_from_a_drafter(tmp_path: Path) -> None:
    config, target = a_pair("llama")
    folder = write_drafter(tmp_path / "drafter", published_config(config), dtype=mx.bfloat16)
    model, notes = new_model(config, target, str(folder), 0)
    stored = load_drafter(folder, dtype="float32").model
    kept = dict(tree_flatten(stored.parameters()))
    assert notes == ()
    assert all(mx.array_equal(w, kept[name]) and w.dtype == mx.float32 for name, w in flat(model).items())
    other, notes = new_model(replace(config, block_size=6, is_causal=True), target, str(folder), 0)
    assert all(mx.array_equal(w, kept[name]) for name, w in flat(other).items())
    assert [note.split(" in ")[0] for note in notes] == [
        "goes on with another block_size: 6 and 8",
        "goes on with another is_causal: True and False",
    ]
    with pytest.raises(RequestError, match=r"its own\): target_layer_ids: \(1,\) and \(1, 2, 3\)") as refused:
        new_model(replace(config, block_size=6, target_layer_ids=(1,)), target, str(folder), 0)
    assert refused.value.param == "start"
