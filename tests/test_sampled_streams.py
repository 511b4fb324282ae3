"""The whole engine at a temperature: seeds reproduce, and every token is drawn from its exact law."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from dflash2_mlx.decode import cycle
from dflash2_mlx.decode.accept import Verdict, accept_sampled
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.text.stream import generate, stream_generate
from tests import tiny
from tests.chi_square import FITS, deviation
from tests.mlx_lm_chain import library_law, library_logits
from tests.tiny_drafters import drafter_weights, tiny_drafter_config, tiny_v1_config
from tests.tiny_families import llama_untied

VOCAB = 8
TOKENS = 400
CELLS = 16
PROMPT = [1, 3, 2]

LAWS: dict[str, dict[str, Any]] = {
    "T 1": {"temperature": 1.0},
    "filters": {"temperature": 0.8, "top_p": 0.95, "top_k": 6, "min_p": 0.02},
    "penalties": {
        "temperature": 1.3,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "presence_context_size": 2,
        "frequency_penalty": 0.4,
        "frequency_context_size": 9,
        "logit_bias": {3: 1.0},
    },
}


def build_model(vocab: int) -> nn.Module:
    """Two layers and few tokens: small, so that a hundred cycles take a second."""
    return tiny.build_config({**llama_untied(16), "num_hidden_layers": 2, "vocab_size": vocab})


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model(VOCAB)


def paired(model: nn.Module, folder: Path, kind: str, *, candidates: int = 3, stubborn: bool = False) -> Pair:
    """With a random drafter; a stubborn one proposes by the token before alone."""
    sizes: dict[str, Any] = {"target_layer_ids": [0, 1], "block_size": 4, "mask_token_id": 3}
    if kind == "dflash2":
        layers = ["sliding_attention", "full_attention"]
        config = tiny_drafter_config(model, **sizes, layer_types=layers, selector_top_k=candidates)
    else:
        config = tiny_v1_config(model, **sizes, num_hidden_layers=2, output_multiplier=2.0)
    weights = drafter_weights(config)
    if stubborn:
        idle = {name: mx.zeros_like(w) for name, w in weights.items() if "o_proj" in name or "down_proj" in name}
        weights.update(idle)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return Pair(Target(model), load_drafter(folder, dtype="float32"))


@pytest.fixture(scope="module", params=["dflash2", "dflash"])
def pair(request: pytest.FixtureRequest, model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return paired(model, tmp_path_factory.mktemp("drafter"), request.param)


def exact_law(model: nn.Module, tokens: list[int], parameters: dict[str, Any]) -> np.ndarray:
    """The law (n, V) that mlx-lm's chain gives each of the tokens after PROMPT."""
    line = [*PROMPT, *tokens]
    logits = model(mx.array([line[:-1]]))[0, len(PROMPT) - 1 :]
    rows = [library_logits(row, line[: len(PROMPT) + i], parameters) for i, row in enumerate(logits)]
    return library_law(mx.stack(rows), parameters)


def worst_deviation(tokens: list[int], law: np.ndarray) -> float:
    """How far tokens lie from draws by `law` (n, V): as counts, one by one, and in successive pairs.

    By its place in the cumulated law, a token drawn from it gives a uniform number, independent of all before.
    """
    at = np.arange(len(tokens))
    assert (law[at, tokens] > 0).all()
    below = (np.cumsum(law, axis=1) - law)[at, tokens]
    places = below + np.random.default_rng(4).uniform(size=len(tokens)) * law[at, tokens]
    single = np.bincount(np.minimum(places * CELLS, CELLS - 1).astype(int), minlength=CELLS)
    coarse = np.minimum(places * 4, 3).astype(int)
    double = np.bincount(coarse[:-1] * 4 + coarse[1:], minlength=16)
    counts = np.bincount(tokens, minlength=law.shape[1])
    return max(deviation(single, np.ones(CELLS)), deviation(double, np.ones(16)), deviation(counts, law.sum(axis=0)))


@pytest.mark.parametrize("parameters", LAWS.values(), ids=LAWS)
def test_every_token_of_a_stream_follows_its_law(pair: Pair, model: nn.Module, parameters: dict[str, Any]) -> None:
    answer = generate(pair, PROMPT, max_tokens=TOKENS, seed=11, **parameters)
    assert len(answer.tokens) == TOKENS
    shares = answer.stats.acceptance_by_position
    assert 0.05 < shares[0] < 0.9, "a stream without acceptances or rejections tests nothing"
    assert worst_deviation(answer.tokens, exact_law(model, answer.tokens, parameters)) < FITS


def test_plain_decoding_follows_the_law(pair: Pair, model: nn.Module) -> None:
    parameters = LAWS["filters"]
    answer = generate(pair, PROMPT, max_tokens=TOKENS, seed=12, verify_mode="off", **parameters)
    assert worst_deviation(answer.tokens, exact_law(model, answer.tokens, parameters)) < FITS


@pytest.mark.parametrize("kind", ["dflash2", "dflash"])
def test_a_biased_engine_is_caught(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four tokens and a drafter that insists on the same ones, so that few draws suffice."""

    def biased(drafts: mx.array, log_law: mx.array, *proposal: mx.array, **keys: mx.array) -> Verdict:
        accepted = accept_sampled(drafts, log_law, *proposal, **keys).accepted
        return Verdict(accepted, mx.random.categorical(log_law[accepted], key=keys["residual_key"]))

    def found() -> float:
        answer = generate(stubborn, PROMPT, max_tokens=TOKENS, seed=11, **LAWS["T 1"])
        return worst_deviation(answer.tokens, exact_law(model, answer.tokens, LAWS["T 1"]))

    model = build_model(4)
    stubborn = paired(model, tmp_path, kind, candidates=2, stubborn=True)
    assert found() < FITS
    monkeypatch.setattr(cycle, "accept_sampled", biased)
    assert found() > FITS + 1


@pytest.mark.parametrize("verify_mode", ["dflash", "off"])
def test_a_seed_decides_the_text(pair: Pair, verify_mode: str) -> None:
    def text(seed: int | None) -> list[int]:
        answer = generate(pair, PROMPT, max_tokens=40, seed=seed, temperature=1.2, top_p=0.9, verify_mode=verify_mode)
        return answer.tokens

    assert text(7) == text(7)
    assert text(7) != text(8)
    assert text(0) != text((1 << 64) - 1)
    assert text(None) != text(None)


def test_the_global_random_state_is_neither_used_nor_changed(pair: Pair) -> None:
    mx.random.seed(1)
    expected = mx.random.uniform(shape=(3,)).tolist()
    mx.random.seed(1)
    one = generate(pair, PROMPT, max_tokens=20, seed=3, temperature=1.0).tokens
    assert mx.random.uniform(shape=(3,)).tolist() == expected
    assert generate(pair, PROMPT, max_tokens=20, seed=3, temperature=1.0).tokens == one


def test_streams_that_run_in_turn_do_not_disturb_each_other(pair: Pair) -> None:
    alone = [generate(pair, PROMPT, max_tokens=30, seed=seed, temperature=1.0).tokens for seed in (1, 2)]
    streams = [stream_generate(pair, PROMPT, max_tokens=30, seed=seed, temperature=1.0) for seed in (1, 2)]
    together: list[list[int]] = [[], []]
    for _ in range(30):
        for stream, tokens in zip(streams, together, strict=True):
            step = next(stream, None)
            tokens += step.tokens if step else []
    assert together == alone
