"""Memory told before a load against memory measured after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_config, save_model

from dflash2_mlx import facts, load
from dflash2_mlx.errors import CheckpointError, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.copies import arrays_in
from dflash2_mlx.target.rollback import flatten
from dflash2_server.library.estimate import estimate
from dflash2_server.library.library import Library
from dflash2_server.library.models import LocalModel
from tests import tiny
from tests.manager import trees
from tests.tiny_checkpoints import write_target, write_tokenizer
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter
from tests.tiny_families import NAMED, OTHERS

CONTEXT = 512  # whole steps of the caches that grow
CLOSE = 0.05


def weights_of(model: nn.Module) -> int:
    arrays: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for _, array in arrays)


def caches_of(pair: Pair, tokens: int) -> int:
    """What the caches of a target hold after so many tokens, the last of them alone as in decoding."""
    caches = pair.target.new_cache()
    pair.target(mx.zeros((1, tokens - 1), dtype=mx.int32), caches)
    pair.target(mx.zeros((1, 1), dtype=mx.int32), caches)
    return sum(array.nbytes for cache in flatten(caches) for array in held(cache))


def held(cache: Any) -> list[mx.array]:
    """Buffers, with the room in them, not only the rows that are used."""
    buffers = [getattr(cache, name, None) for name in ("keys", "values")]
    return arrays_in([b for b in buffers if b is not None]) or arrays_in([a for a in cache.state if a is not None])


def context_of(pair: Pair, tokens: int) -> int:
    assert pair.drafter is not None
    context = pair.drafter.new_context()
    config = pair.drafter.config
    rows = mx.zeros((1, tokens, config.hidden_size), dtype=pair.target.dtype)
    context.append([rows] * len(config.target_layer_ids), 0)
    return sum(array.nbytes for array in context.arrays())


def write_family(folder: Path, config: dict[str, Any], dtype: mx.Dtype = mx.float32) -> nn.Module:
    model = tiny.build_config(config)
    model.set_dtype(dtype)
    folder.mkdir(parents=True)
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    write_tokenizer(folder)
    return model


def only(folder: Path, kind: str = "model") -> LocalModel:
    found = Library([folder], None).models()
    (model,) = (model for model in found if model.kind == kind and model.source != "embedded")
    return model


@pytest.mark.parametrize("name", [*NAMED, *OTHERS])
def test_a_target_of_every_family_and_its_caches(name: str, tmp_path: Path) -> None:
    config = (NAMED | OTHERS)[name](16)
    if name == "lfm2":
        config.pop("head_dim")  # published ones have none, and the family ignores it
    write_family(tmp_path / "m", config)
    pair = load(str(tmp_path / "m"), None)
    told = estimate(only(tmp_path), None, context=CONTEXT)
    assert told.target_bytes == pytest.approx(weights_of(pair.target.model), rel=CLOSE)
    assert told.cache_bytes == pytest.approx(caches_of(pair, CONTEXT), rel=CLOSE)
    assert (told.drafter_bytes, told.context, told.verdict) == (0, CONTEXT, "unknown")


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
def test_a_forced_compute_dtype(stored: str, dtype: str | None, tmp_path: Path) -> None:
    write_family(tmp_path / "m", NAMED["llama"](16), getattr(mx, stored))
    pair = load(str(tmp_path / "m"), None, dtype=dtype)
    told = estimate(only(tmp_path), None, context=CONTEXT, dtype=dtype)
    assert told.target_bytes == pytest.approx(weights_of(pair.target.model), rel=CLOSE)
    assert told.cache_bytes == pytest.approx(caches_of(pair, CONTEXT), rel=CLOSE)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_packed_target(dtype: str | None, tmp_path: Path) -> None:
    config = NAMED["llama"](16) | {"intermediate_size": 64}
    model = tiny.build_config(config)
    model.set_dtype(mx.bfloat16)
    model, packed = quantize_model(model, dict(config), 32, 4)
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", model)
    save_config(packed, tmp_path / "m" / "config.json")
    write_tokenizer(tmp_path / "m")
    pair = load(str(tmp_path / "m"), None, dtype=dtype)
    told = estimate(only(tmp_path), None, context=CONTEXT, dtype=dtype)
    assert told.target_bytes == pytest.approx(weights_of(pair.target.model), rel=CLOSE)
    assert told.cache_bytes == pytest.approx(caches_of(pair, CONTEXT), rel=CLOSE)


# Sizes that every group size of the specs divides.
_EVEN = {"head_dim": 16, "intermediate_size": 64, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize("spec", [None, "w4a16:gs32", "w8a32:gs32", "w2:gs32"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [tiny_drafter_config, tiny_v1_config])
def test_a_drafter_and_its_context(make: Any, stored: str, spec: str | None, tmp_path: Path) -> None:
    model = write_family(tmp_path / "t", NAMED["llama"](16), getattr(mx, stored))
    write_drafter(tmp_path / "d", make(model, **_EVEN), dtype=mx.bfloat16)
    pair = load(str(tmp_path / "t"), str(tmp_path / "d"), quantize=spec)
    assert pair.drafter is not None
    target, drafter = only(tmp_path), only(tmp_path, "drafter")
    told = estimate(target, drafter, spec=spec, context=CONTEXT)
    alone = estimate(target, None, context=CONTEXT)
    assert told.drafter_bytes == pytest.approx(weights_of(pair.drafter.model), rel=CLOSE)
    assert told.cache_bytes - alone.cache_bytes == pytest.approx(context_of(pair, CONTEXT), rel=CLOSE)
    assert told.target_bytes == alone.target_bytes


def test_a_context_that_is_no_power_of_two_takes_its_room(tmp_path: Path) -> None:
    model = write_family(tmp_path / "t", NAMED["llama"](16))
    write_drafter(tmp_path / "d", tiny_drafter_config(model))
    pair = load(str(tmp_path / "t"), str(tmp_path / "d"))
    drafter = only(tmp_path, "drafter").drafter
    assert drafter is not None
    assert facts.context_bytes(drafter, 600, 4) == context_of(pair, 600)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded target is converted to, once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("unpacked", [False, True])
def test_the_embedded_pair_before_and_after_it_is_converted(
    unpacked: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH2_CACHE", str(cache))
    monkeypatch.setattr("dflash2_mlx.pairs.packed_is_slow", lambda: unpacked)
    pair = load()
    library = Library([], None)
    after = estimate(library.get("demo"), library.get("demo-drafter"), context=CONTEXT)
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path))
    library = Library([], None)
    told = estimate(library.get("demo"), library.get("demo-drafter"), context=CONTEXT)
    assert told == after
    assert pair.drafter is not None
    assert told.target_bytes == pytest.approx(weights_of(pair.target.model), rel=CLOSE)
    assert told.drafter_bytes == pytest.approx(weights_of(pair.drafter.model), rel=CLOSE)


def test_parts_that_a_text_model_leaves_out_are_not_counted() -> None:
    found = {
        "language_model.model.embed_tokens.weight": facts.Tensor("BF16", (10, 4), 80),
        "lm_head.weight": facts.Tensor("BF16", (10, 4), 80),
        "vision_tower.blocks.0.weight": facts.Tensor("BF16", (1000,), 2000),
        "model.visual.merger.weight": facts.Tensor("BF16", (1000,), 2000),
        "mtp.layers.0.weight": facts.Tensor("BF16", (1000,), 2000),
        "model.layers.0.rotary_emb.inv_freq": facts.Tensor("F32", (8,), 32),
        "model.layers.0.q_proj.weight": facts.Tensor("F8_E4M3", (6, 5), 30),
        "model.layers.0.q_proj.weight_scale_inv": facts.Tensor("F32", (1, 1), 4),
    }
    assert facts.target_bytes(found, {}) == 80 + 80 + 60
    assert facts.target_bytes(found, {"text_config": {"tie_word_embeddings": True}}) == 80 + 60
    assert facts.embedding_rows(found) == 10


@pytest.mark.parametrize(
    ("config", "row"),
    [
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 576),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}, 832),
        (
            {"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
             "v_head_dim": 128},
            8 * 320,
        ),
    ],
)  # fmt: skip
def test_latent_attention_keeps_short_rows(config: dict[str, Any], row: int) -> None:
    text = {"num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 64, **config}
    assert facts.cache_bytes(text, 100, 2) == 3 * 100 * 2 * row


def test_layers_by_a_pattern() -> None:
    config = {"hybrid_override_pattern": "M-M*", "num_hidden_layers": 4}
    assert facts.layer_kinds(config) == ["mamba", "mlp", "mamba", "full_attention"]


def test_the_context_is_the_models_at_most(tmp_path: Path) -> None:
    trees.write_model(tmp_path / "short", trees.TARGET | {"max_position_embeddings": 100})
    assert estimate(only(tmp_path), None).context == 100
    trees.write_model(tmp_path / "short", trees.TARGET | {"max_position_embeddings": 10**6})
    assert estimate(only(tmp_path), None).context == facts.CONTEXT


def test_kept_prefixes_count_up_to_their_limit(tmp_path: Path) -> None:
    trees.write_model(tmp_path / "m")
    model = only(tmp_path)
    once = estimate(model, None, context=CONTEXT).cache_bytes
    assert estimate(model, None, context=CONTEXT, cache_limit=1000).cache_bytes == once + 1000
    assert estimate(model, None, context=CONTEXT, cache_limit=10**12).cache_bytes == 2 * once


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(None, "unknown"), (0.79, "fits"), (0.8, "fits"), (0.81, "tight"), (1.0, "tight"), (1.01, "does not fit")],
)
def test_verdicts(share: float | None, verdict: str, tmp_path: Path) -> None:
    trees.write_model(tmp_path / "m")
    needed = estimate(only(tmp_path), None).needed
    available = None if share is None else int(needed / share) + (share in (0.8, 1.0))
    assert estimate(only(tmp_path), None, available=available).verdict == verdict


def test_what_cannot_be_estimated_is_told(tmp_path: Path) -> None:
    model = trees.write_model(tmp_path / "m")
    drafter = trees.write_drafter(tmp_path / "d")
    with pytest.raises(RequestError, match="w5"):
        estimate(only(tmp_path), only(tmp_path, "drafter"), spec="w5")
    found = only(tmp_path)
    for folder in (model, drafter):
        (folder / "model.safetensors").unlink()
    facts_of = Library([tmp_path], None)
    assert [each.source for each in facts_of.models()] == ["embedded", "embedded"]
    from dflash2_server.library import estimate as module

    module._read.cache_clear()
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        estimate(found, None)


def test_the_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_target(tmp_path / "m")
    model = only(tmp_path)
    read: list[Path] = []
    really = facts.tensors
    monkeypatch.setattr(facts, "tensors", lambda folder: read.append(folder) or really(folder))
    first = estimate(model, None, context=CONTEXT)
    assert estimate(model, None, context=CONTEXT) == first
    assert len(read) == 1
