"""A drafter's weights: strict both ways, in every layout that is published, and none of them without effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.load import load_drafter, read_weights
from dflash2_mlx.errors import CheckpointError
from tests.drafting import ANCHOR, ends_for, filled, outputs
from tests.published_drafters import PUBLISHED, reduced
from tests.tiny_drafters import drafter_shapes, drafter_weights

Config = dict[str, Any]
Weights = dict[str, mx.array]

HIDDEN = 32
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")

DFLASH2: Config = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 64,
    "rms_norm_eps": 2e-5,
    "rope_theta": 5000.0,
    "num_target_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "is_causal": False,
    "dflash_config": {
        "block_size": 5,
        "target_layer_ids": [0, 4],
        "mask_token_id": 60,
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_rank": 32,
        "selector_top_k": 4,
        "output_multiplier": 0.7,
    },
}
DFLASH1: Config = {
    **{name: value for name, value in DFLASH2.items() if name not in ("layer_types", "sliding_window")},
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"block_size": 5, "target_layer_ids": [0, 4], "mask_token_id": 60},
}
CONFIGS = {"dflash2": DFLASH2, "dflash": DFLASH1}


def write(folder: Path, config: Config, weights: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def write_shards(folder: Path, config: Config, weights: Weights) -> Path:
    """In three shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    index = {}
    for i in range(3):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in names[i::3]})
        index.update(dict.fromkeys(names[i::3], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def packed(weights: Weights, modules: set[str], **packing: int) -> Weights:
    """The weights with some modules packed as MLX packs them."""
    out: Weights = {}
    for name, value in weights.items():
        module = name.removesuffix(".weight")
        if module not in modules:
            out[name] = value
            continue
        parts = mx.quantize(value, **packing)
        out.update({f"{module}.{part}": a for part, a in zip(("weight", "scales", "biases"), parts, strict=True)})
    return out


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as error:
        load_drafter(folder)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What each drafter computes, loaded from the published layout."""
    folder = tmp_path_factory.mktemp("published")
    return {
        name: outputs(load_drafter(write(folder / name, config, drafter_weights(config))))
        for name, config in CONFIGS.items()
    }


# Nothing without effect, nothing too much


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, config in CONFIGS.items() for name in drafter_shapes(config)]
)
def test_every_tensor_changes_what_is_computed(
    kind: str, name: str, expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    weights = drafter_weights(CONFIGS[kind])
    weights[name] = weights[name] + 0.1 * mx.random.normal(weights[name].shape, key=mx.random.key(1))
    found = outputs(load_drafter(write(tmp_path, CONFIGS[kind], weights)))
    assert not np.allclose(found, expected[kind], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, config in CONFIGS.items() for name in list(drafter_shapes(config))[::3]]
)
def test_a_missing_tensor_is_named(kind: str, name: str, tmp_path: Path) -> None:
    weights = drafter_weights(CONFIGS[kind])
    del weights[name]
    refused(write(tmp_path, CONFIGS[kind], weights), name, "do not fit")


EXTRA = ("layers.2.mlp.up_proj.weight", "lm_head.weight", "layers.0.self_attn.q_proj.bias", "model.norm.weight")


@pytest.mark.parametrize("name", EXTRA)
def test_a_tensor_too_many_is_named(name: str, tmp_path: Path) -> None:
    weights = {**drafter_weights(DFLASH2), name: mx.zeros((HIDDEN,))}
    refused(write(tmp_path, DFLASH2, weights), name)


def test_the_parts_of_the_second_generation_are_refused_by_the_first(tmp_path: Path) -> None:
    refused(write(tmp_path, DFLASH1, drafter_weights(DFLASH2)), "candidate_selector")


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.mlp_conv.base_kernel", "norm.weight", *CODEBOOKS])
def test_a_wrong_shape_is_named(name: str, tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    weights[name] = weights[name][:-1]
    refused(write(tmp_path, DFLASH2, weights), name)


# Layouts


def test_codebooks_may_be_named_as_modules(expected: dict[str, np.ndarray], tmp_path: Path) -> None:
    weights = {(f"{n}.weight" if n in CODEBOOKS else n): w for n, w in drafter_weights(DFLASH2).items()}
    np.testing.assert_array_equal(outputs(load_drafter(write(tmp_path, DFLASH2, weights))), expected["dflash2"])


def test_a_codebook_under_both_names_is_refused(tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    weights[f"{CODEBOOKS[0]}.weight"] = weights[CODEBOOKS[0]] + 1
    refused(write(tmp_path, DFLASH2, weights), CODEBOOKS[0], "twice")


def test_shards_give_the_same_drafter(expected: dict[str, np.ndarray], tmp_path: Path) -> None:
    folder = write_shards(tmp_path, DFLASH2, drafter_weights(DFLASH2))
    mx.save_safetensors(str(folder / "leftover.safetensors"), {"norm.weight": mx.zeros((1,))})
    np.testing.assert_array_equal(outputs(load_drafter(folder)), expected["dflash2"])


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, DFLASH2, drafter_weights(DFLASH2))
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "incomplete")


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, DFLASH2, drafter_weights(DFLASH2))
    mx.save_safetensors(str(folder / "other.safetensors"), {"norm.weight": mx.zeros((HIDDEN,))})
    refused(folder, "norm.weight", "other.safetensors")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 1}'])
def test_a_damaged_index_is_named(content: str, tmp_path: Path) -> None:
    folder = write_shards(tmp_path, DFLASH2, drafter_weights(DFLASH2))
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "model.safetensors.index.json")


def test_a_folder_without_weights_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DFLASH2))
    refused(tmp_path, "safetensors", "incomplete")


@pytest.mark.parametrize("kept", [0, 4, 200, 0.5, -1])
def test_a_truncated_file_is_refused(kept: float, tmp_path: Path) -> None:
    file = write(tmp_path, DFLASH2, drafter_weights(DFLASH2)) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    refused(tmp_path, "model.safetensors", "fetch it again")


@pytest.mark.parametrize("name", [*PUBLISHED, "glm"])
def test_published_configs_run_at_reduced_width(name: str, tmp_path: Path) -> None:
    config = reduced(PUBLISHED.get(name, PUBLISHED["qwen38"]))
    if name == "glm":
        config["num_target_layers"] = 45
        config["dflash_config"]["target_layer_ids"] = [5, 14, 24, 33, 42]
    drafter = load_drafter(write(tmp_path, config, drafter_weights(config, dtype=mx.bfloat16)))
    assert drafter.dtype == mx.bfloat16
    assert drafter.engine == ("dflash" if name == "qwen3-4b" else "dflash2")
    ends, context, width = ends_for(drafter), filled(drafter, 40), drafter.config.block_size
    for temperature in (0.0, 1.0):
        proposal = drafter.propose(
            ends, context, mx.array([ANCHOR]), width, temperature=temperature, key=mx.random.key(2)
        )
        tokens = np.array(proposal.tokens)
        assert bool(proposal.finite.item())
        assert tokens.shape == (width - 1,)
        assert ((tokens >= 0) & (tokens < config["vocab_size"])).all()
        if proposal.law is not None:
            assert proposal.candidates is not None
            np.testing.assert_allclose(np.array(proposal.law.sum(axis=-1)), 1.0, rtol=1e-5)
            assert (np.array(proposal.candidates) == tokens[:, None]).sum(axis=1).tolist() == [1] * (width - 1)


# Packed checkpoints

PACKABLE = {
    "everything": {n.removesuffix(".weight") for n, shape in drafter_shapes(DFLASH2).items() if len(shape) == 2},
    "some": {"fc", "layers.0.mlp.down_proj", "layers.1.self_attn.k_proj", "layers.0.attention_conv.kernel_projection"},
    "codebooks": set(CODEBOOKS),
    "one codebook": {CODEBOOKS[1]},
}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("modules", PACKABLE.values(), ids=PACKABLE)
def test_exactly_the_packed_modules_are_packed(modules: set[str], bits: int, tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    config = {**DFLASH2, "quantization": {"group_size": 32, "bits": bits}}
    config["quantization_config"] = config["quantization"]
    drafter = load_drafter(write(tmp_path / "packed", config, packed(weights, modules, bits=bits, group_size=32)))
    names = {name.removesuffix(".scales") for name, _ in tree_flatten(drafter.model.parameters()) if "scales" in name}
    assert names == modules

    unpacked = {
        name: mx.dequantize(*mx.quantize(w, bits=bits, group_size=32), bits=bits, group_size=32)
        if name.removesuffix(".weight") in modules
        else w
        for name, w in weights.items()
    }
    plain = load_drafter(write(tmp_path / "plain", DFLASH2, unpacked))
    np.testing.assert_allclose(outputs(drafter), outputs(plain), rtol=2e-4, atol=2e-4)


def test_modules_may_be_packed_differently(tmp_path: Path) -> None:
    weights = packed(drafter_weights(DFLASH2), {"layers.0.self_attn.k_proj"}, bits=8, group_size=32)
    weights = packed(weights, {"layers.0.self_attn.v_proj", "layers.1.self_attn.q_proj"}, bits=4, group_size=32)
    drafter = load_drafter(write(tmp_path, DFLASH2, weights))
    attention = drafter.model.layers[0].self_attn
    assert (attention.k_proj.bits, attention.v_proj.bits, drafter.quantization) == (8, 4, "mixed")
    assert np.isfinite(outputs(drafter)).all()


def test_a_packed_checkpoint_may_be_unpacked_at_load(tmp_path: Path) -> None:
    weights = packed(drafter_weights(DFLASH2), PACKABLE["everything"], bits=4, group_size=32)
    folder = write(tmp_path, DFLASH2, weights)
    drafter = load_drafter(folder, dequantize=True)
    assert not [name for name, _ in tree_flatten(drafter.model.parameters()) if "scales" in name]
    assert drafter.quantization == "off"
    np.testing.assert_allclose(outputs(drafter), outputs(load_drafter(folder)), rtol=2e-4, atol=2e-4)


def test_scales_without_a_packed_module_are_refused(tmp_path: Path) -> None:
    weights = packed(drafter_weights(DFLASH2), {"fc"}, bits=4, group_size=32)
    no_weight = {name: w for name, w in weights.items() if name != "fc.weight"}
    refused(write(tmp_path / "a", DFLASH2, no_weight), "fc.scales")
    norm = {**weights, "norm.scales": mx.ones((1,))}
    refused(write(tmp_path / "b", DFLASH2, norm), "norm.scales")
    integers = {**weights}
    del integers["fc.scales"], integers["fc.biases"]
    refused(write(tmp_path / "c", DFLASH2, integers), "fc.weight")


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8"])
def test_foreign_packing_is_refused(method: str, tmp_path: Path) -> None:
    config = {**DFLASH2, "quantization_config": {"quant_method": method, "bits": 4}}
    refused(write(tmp_path, config, drafter_weights(DFLASH2)), repr(method), "MLX")


def test_a_packing_that_mlx_does_not_know_is_refused(tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    weights["fc.scales"] = mx.ones((HIDDEN, 1), mx.uint8)
    refused(write(tmp_path, DFLASH2, weights), "fc")


def test_read_weights_gives_names_and_values(tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    for folder in (write(tmp_path / "one", DFLASH2, weights), write_shards(tmp_path / "more", DFLASH2, weights)):
        read = read_weights(folder)
        assert {name: a.shape for name, a in read.items()} == {name: a.shape for name, a in weights.items()}
        assert all(mx.array_equal(read[name], weights[name]) for name in weights)
