"""The drafter against the reference on random weights: hidden rows, logits, candidates, scores and paths.

Token equality with plain decoding cannot see a wrong drafter, which only gets slow; so its numbers are
compared here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.reference import Block, Oracle, best_path
from tests.tiny_drafters import drafter_weights, tiny_drafter_config, tiny_v1_config, write_drafter

WINDOW = 16
SLIDING, FULL = "sliding_attention", "full_attention"
LAYERS = {"sliding": [SLIDING] * 3, "mixed": [SLIDING, FULL, SLIDING], "full": [FULL] * 2}
CAUSAL = {"absent": None, "bidirectional": False, "causal": True}

# context rows added before each block: below the window, W-1, W, then past it by every kind of step
GROWING = (3, 1, 5, 6, 1, 2, 1, 1, 8, 20, 1, 15, 16, 3)
AT_ONCE = (40, 1, 5, 1, 1, 17)
WIDTHS = (6, 2, 3, 8)

Builder = Callable[..., dict[str, Any]]
Taps = list[mx.array]


@pytest.fixture(scope="module")
def target() -> nn.Module:
    return tiny.build("llama_untied")


class Pairing:
    """One checkpoint, read by the reference and by us, on one target."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.oracle = Oracle(folder, model)
        self.drafter: Drafter = load_drafter(folder, dtype="float32")
        self.target = Target(model)

    def ours(self, context: DraftContext, anchor: int, width: int) -> Block:
        """Our numbers for one block in the oracle's form."""
        at = mx.array([anchor])
        proposal = self.drafter.propose(self.target, context, at, width)
        assert bool(proposal.finite.item())
        if not self.drafter.config.is_dflash2:
            hidden = self.drafter.hidden(self.target, context, at, width)
            empty = np.zeros((0,))
            logits = np.array(self.drafter.logits(self.target, hidden))
            return Block(np.array(hidden), logits, empty, empty, proposal.tokens.tolist())
        lattice = self.drafter.lattice(self.target, context, at, width)
        logits = np.array(self.drafter.logits(self.target, lattice.hidden))
        order = np.argsort(np.array(lattice.candidates), axis=-1)
        candidates = np.take_along_axis(np.array(lattice.candidates), order, axis=-1)
        scores = _sorted_scores(np.array(lattice.scores), order)
        return Block(np.array(lattice.hidden), logits, candidates, scores, proposal.tokens.tolist())


def _sorted_scores(scores: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Both axes by the order of the candidates; the predecessors of row 0 are all the anchor."""
    before = np.concatenate([np.arange(order.shape[1])[None], order[:-1]])
    scores = np.take_along_axis(scores, before[:, :, None], axis=1)
    return np.take_along_axis(scores, order[:, None, :], axis=2)


def make_pairing(tmp_path: Path, model: nn.Module, config: dict[str, Any], seed: int = 0) -> Pairing:
    return Pairing(write_drafter(tmp_path / "drafter", config, seed=seed), model)


def random_taps(config: dict[str, Any], rows: int, seed: int = 0) -> Taps:
    """Tapped rows as a target would give them, one array a tapped layer: (1, rows, H)."""
    keys = mx.random.split(mx.random.key(seed), len(config["dflash_config"]["target_layer_ids"]))
    return [1.5 * mx.random.normal((1, rows, config["hidden_size"]), key=key) for key in keys]


def rows_of(taps: Taps, first: int, last: int) -> Taps:
    return [tap[:, first:last] for tap in taps]


def assert_same(ours: Block, theirs: Block) -> None:
    """Float32 apart from rounding: single elements near zero differ by a few 1e-5 after three layers."""
    np.testing.assert_allclose(ours.hidden, theirs.hidden, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ours.candidates, theirs.candidates)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-4, atol=3e-4)
    assert ours.path == theirs.path


def assert_parity(pairing: Pairing, taps: Taps, steps: tuple[int, ...], *, start: int = 0) -> None:
    """A context grown step by step gives what the oracle computes from scratch, at every step."""
    context, rows = pairing.drafter.new_context(), 0
    for number, (step, width) in enumerate(zip(steps, cycle(WIDTHS), strict=False)):
        new = rows_of(taps, rows, rows + step)
        if step == 1 and number % 2:
            context.defer(new, start + rows)
        else:
            context.append(new, start + rows)
        rows += step
        anchor = (37 * number + 5) % pairing.target.vocab_size
        expected = pairing.oracle.block(rows_of(taps, 0, rows), anchor, width, start=start)
        assert_same(pairing.ours(context, anchor, width), expected)


@pytest.mark.parametrize("steps", [GROWING, AT_ONCE], ids=["growing", "at-once"])
@pytest.mark.parametrize("causal", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("make_config", [tiny_drafter_config, tiny_v1_config], ids=["dflash2", "v1"])
def test_every_block_equals_the_reference(
    tmp_path: Path,
    target: nn.Module,
    make_config: Builder,
    layers: list[str],
    causal: bool | None,
    steps: tuple[int, ...],
) -> None:
    config = make_config(target, layer_types=layers, is_causal=causal, sliding_window=WINDOW)
    pairing = make_pairing(tmp_path, target, config)
    assert_parity(pairing, random_taps(config, sum(steps)), steps)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"sliding_window": 32}, id="window-32"),
        pytest.param({"rope_parameters": None, "rope_theta": 777.0}, id="flat-theta"),
        pytest.param(
            {
                "rope_parameters": {
                    "rope_theta": 5000.0,
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            id="yarn",
        ),
        pytest.param(
            {"output_multiplier": None, "final_logit_softcapping": None, "input_embedding_scale": None},
            id="optional-fields-absent",
        ),
        pytest.param({"conv_kernel_size": 3, "conv_group_size": 8}, id="three-conv-taps"),
        pytest.param({"selector_top_k": 1}, id="one-candidate"),
        pytest.param({"selector_top_k": 7, "selector_rank": 5}, id="seven-candidates"),
        pytest.param({"target_layer_ids": [2]}, id="one-tap"),
        pytest.param({"num_key_value_heads": 4}, id="no-grouped-heads"),
    ],
)
def test_other_fields(tmp_path: Path, target: nn.Module, config: dict[str, Any]) -> None:
    full = tiny_drafter_config(target, **config)
    pairing = make_pairing(tmp_path, target, full, seed=3)
    assert_parity(pairing, random_taps(full, sum(AT_ONCE)), AT_ONCE)


def test_v1_without_layer_types_is_full_attention(tmp_path: Path, target: nn.Module) -> None:
    config = tiny_v1_config(target)
    pairing = make_pairing(tmp_path, target, config)
    assert pairing.drafter.config.layer_types == (FULL,) * 3
    assert_parity(pairing, random_taps(config, sum(AT_ONCE)), AT_ONCE)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma4", "gpt_oss", "muse_glimmer", "laguna"])
def test_embedding_and_head_of_the_target(tmp_path: Path, family: str) -> None:
    """Tied or not, wrapped or not, scaled or normed inside: the drafter reads the same table and head."""
    model = tiny.build(family)
    config = tiny_drafter_config(model)
    pairing = make_pairing(tmp_path, model, config)
    assert_parity(pairing, random_taps(config, 25), (20, 1, 4))


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_context_that_starts_late_keeps_its_positions(tmp_path: Path, target: nn.Module, layers: list[str]) -> None:
    config = tiny_drafter_config(target, layer_types=layers)
    pairing = make_pairing(tmp_path, target, config)
    assert_parity(pairing, random_taps(config, sum(GROWING)), GROWING, start=300)


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("rows", [9, 40])
@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_trimmed_context_holds_what_is_left(
    tmp_path: Path, target: nn.Module, layers: list[str], rows: int, cut: int
) -> None:
    """Rows that the ring overwrote are lost; the rest of the window is as if the cut rows had never been."""
    config = tiny_drafter_config(target, layer_types=layers)
    pairing = make_pairing(tmp_path, target, config)
    taps = random_taps(config, rows)
    context = pairing.drafter.new_context()
    context.append(rows_of(taps, 0, rows), 0)
    context.trim(rows - cut)
    assert context.end == rows - cut
    lost = min(max(0, rows - (WINDOW - 1)), context.end)
    starts = {kind: context.start(kind) for kind in dict.fromkeys(layers)}
    assert starts == {kind: lost if kind == SLIDING else 0 for kind in starts}
    if len(starts) == 1 and (start := starts[layers[0]]) < context.end:
        kept = rows_of(taps, start, context.end)
        expected = pairing.oracle.block(kept, 11, 6, start=start)
        assert_same(pairing.ours(context, 11, 6), expected)


def test_a_gap_starts_the_context_anew(tmp_path: Path, target: nn.Module) -> None:
    config = tiny_drafter_config(target)
    pairing = make_pairing(tmp_path, target, config)
    taps = random_taps(config, 30)
    context = pairing.drafter.new_context()
    context.append(rows_of(taps, 0, 10), 0)
    context.append(rows_of(taps, 10, 30), 50)
    expected = pairing.oracle.block(rows_of(taps, 10, 30), 11, 6, start=50)
    assert_same(pairing.ours(context, 11, 6), expected)


def test_a_copied_context_goes_its_own_way(tmp_path: Path, target: nn.Module) -> None:
    config = tiny_drafter_config(target)
    pairing = make_pairing(tmp_path, target, config)
    taps, others = random_taps(config, 30), random_taps(config, 5, seed=1)
    context = pairing.drafter.new_context()
    context.append(rows_of(taps, 0, 25), 0)
    twin = context.copy()
    twin.append(others, 25)
    context.append(rows_of(taps, 25, 30), 25)
    assert_same(pairing.ours(context, 11, 6), pairing.oracle.block(taps, 11, 6))
    joined = [mx.concatenate([a[:, :25], b], axis=1) for a, b in zip(taps, others, strict=True)]
    assert_same(pairing.ours(twin, 11, 6), pairing.oracle.block(joined, 11, 6))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_law_of_a_drawn_path(tmp_path: Path, target: nn.Module, temperature: float) -> None:
    """q of every row is the softmax of the reference's scores after the token that was drawn before it."""
    config = tiny_drafter_config(target)
    pairing = make_pairing(tmp_path, target, config)
    taps = random_taps(config, 20)
    context = pairing.drafter.new_context()
    context.append(taps, 0)
    expected = pairing.oracle.block(taps, 11, 6)
    paths = set()
    for seed in range(20):
        key = mx.random.key(seed)
        proposal = pairing.drafter.propose(pairing.target, context, mx.array([11]), 6, temperature=temperature, key=key)
        assert proposal.candidates is not None
        assert proposal.law is not None
        order = np.argsort(np.array(proposal.candidates), axis=-1)
        law = np.take_along_axis(np.array(proposal.law), order, axis=-1)
        tokens = proposal.tokens.tolist()
        paths.add(tuple(tokens))
        previous = 0
        for t, token in enumerate(tokens):
            row = np.exp(expected.scores[t, previous] / temperature)
            np.testing.assert_allclose(law[t], row / row.sum(), rtol=1e-3, atol=1e-5)
            previous = int(np.flatnonzero(expected.candidates[t] == token)[0])
    assert len(paths) > 1


# controls: what the comparison above must be able to see


def test_the_oracle_walks_its_own_scores(tmp_path: Path, target: nn.Module) -> None:
    config = tiny_drafter_config(target)
    oracle = make_pairing(tmp_path, target, config).oracle
    paths = set()
    for anchor in range(8):
        block = oracle.block(random_taps(config, 20, seed=anchor), anchor, 6)
        assert block.path == best_path(block.candidates, block.scores)
        unary = [int(np.argmax(row)) for row in block.logits]
        paths.add(block.path == unary)
    assert False in paths, "the selector must change some path, or its scores are not tested"


def test_the_oracle_is_wrong_only_after_a_single_row_into_a_full_window(tmp_path: Path, target: nn.Module) -> None:
    """Why the oracle's context is built from scratch: the fault of the reference, pinned."""
    config = tiny_drafter_config(target, layer_types=[SLIDING] * 3)
    oracle = make_pairing(tmp_path, target, config).oracle
    steps = (10, 8, 3, 1, 4, 20, 1, 2)
    taps, cache, rows = random_taps(config, sum(steps)), oracle.new_cache(), 0
    for step in steps:
        new = rows_of(taps, rows, rows + step)
        rows += step
        stateful = np.array(oracle.hidden(new, 5, 6, cache=cache))
        scratch = np.array(oracle.hidden(rows_of(taps, 0, rows), 5, 6))
        assert np.allclose(stateful, scratch, rtol=1e-3, atol=1e-3) == (step != 1)


FIELDS = {
    "rms_norm_eps": 2e-2,
    "rope_parameters": {"rope_theta": 50.0, "rope_type": "default"},
    "sliding_window": 12,
    "is_causal": True,
    "layer_types": [SLIDING, SLIDING, SLIDING],
    "output_multiplier": 0.8,
    "final_logit_softcapping": 12.0,
    "input_embedding_scale": 1.0,
    "mask_token_id": 7,
    "selector_top_k": 5,
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_is_seen(tmp_path: Path, target: nn.Module, field: str) -> None:
    config = tiny_drafter_config(target)
    oracle = make_pairing(tmp_path, target, config).oracle
    wrong = tiny_drafter_config(target, **{field: FIELDS[field]})
    taps = random_taps(config, 30)
    ours = make_pairing(tmp_path / "wrong", target, wrong)
    context = ours.drafter.new_context()
    context.append(taps, 0)
    with pytest.raises(AssertionError):
        assert_same(ours.ours(context, 11, 6), oracle.block(taps, 11, 6))


def test_every_tensor_counts(tmp_path: Path, target: nn.Module) -> None:
    """No tensor is loaded and then not used: changing any one changes the scores."""
    config = tiny_drafter_config(target)
    taps = random_taps(config, 20)
    weights = drafter_weights(config)

    def scores(changed: str | None) -> np.ndarray:
        folder = write_drafter(tmp_path / "drafter", config)
        tensors = dict(weights)
        if changed:  # not by a factor: the norms would take that out of some
            noise = mx.random.normal(weights[changed].shape, key=mx.random.key(1))
            tensors[changed] = weights[changed] + 0.05 * noise
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        drafter = load_drafter(folder, dtype="float32")
        context = drafter.new_context()
        context.append(taps, 0)
        return np.array(drafter.lattice(Target(target), context, mx.array([11]), 6).scores)

    plain = scores(None)
    changes = {name: float(np.abs(scores(name) - plain).max()) for name in weights}
    assert {name for name, change in changes.items() if change < 1e-4} == set()


def test_the_steps_cover_the_window() -> None:
    totals = np.cumsum(GROWING).tolist()
    assert {WINDOW - 1, WINDOW} <= set(totals)
    assert any(total < WINDOW - 1 for total in totals)
    full = [step for before, step in pairwise([0, *totals]) if before >= WINDOW for step in [step - before]]
    assert {1, 2, 3, WINDOW - 1, WINDOW, 20} <= set(full)
