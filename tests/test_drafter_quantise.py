"""Quantisation at load: every spec, exactly the modules it is meant for, and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.drafter.quantization import QuantSpec, parse_spec
from dflash2_mlx.errors import CheckpointError, RequestError
from tests.drafting import outputs
from tests.tiny_drafters import drafter_weights

CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "vocab_size": 96,
    "rms_norm_eps": 2e-5,
    "rope_theta": 5000.0,
    "num_target_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 16,
    "dflash_config": {
        "block_size": 4,
        "target_layer_ids": [0, 4],
        "mask_token_id": 60,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 128,
        "selector_top_k": 4,
    },
}
PACKED = {
    "fc",
    *(f"layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "qkvo"),
    *(f"layers.{i}.mlp.{name}_proj" for i in range(2) for name in ("gate", "up", "down")),
}
SPECS = [f"w{bits}a{activation}:gs{group}" for bits in (2, 4, 8) for activation in (16, 32) for group in (32, 64, 128)]


def write(folder: Path, config: dict[str, Any] = CONFIG, dtype: mx.Dtype = mx.float32) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), drafter_weights(config, dtype=dtype))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("drafter"))


def packed_modules(drafter: Drafter) -> set[str]:
    named = tree_flatten(drafter.model.leaf_modules(), is_leaf=nn.Module.is_module)
    return {name for name, module in named if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)}


@pytest.mark.parametrize("spec", SPECS)
def test_every_spec_packs_attention_mlp_and_fc(spec: str, folder: Path) -> None:
    drafter = load_drafter(folder, spec=spec)
    wanted = parse_spec(spec)
    assert wanted is not None
    assert packed_modules(drafter) == PACKED
    assert drafter.quantization == spec == str(wanted)
    fc = drafter.model.fc
    assert (fc.bits, fc.group_size) == (wanted.weight_bits, wanted.group_size)
    dtype = mx.float32 if wanted.activation_bits == 32 else mx.bfloat16
    floats = {a.dtype for _, a in tree_flatten(drafter.model.parameters()) if mx.issubdtype(a.dtype, mx.floating)}
    assert floats == {dtype}
    assert drafter.dtype == dtype
    assert np.isfinite(outputs(drafter)).all()


@pytest.mark.parametrize("spec", ["w8a32:gs64", "w4a32:gs32"])
def test_packed_weights_are_those_of_mlx(spec: str, folder: Path, tmp_path: Path) -> None:
    """The drafter equals one whose weights were rounded to what the packing can say."""
    wanted = parse_spec(spec)
    assert wanted is not None
    packing = {"bits": wanted.weight_bits, "group_size": wanted.group_size}
    weights = drafter_weights(CONFIG)
    for name in PACKED:
        weights[f"{name}.weight"] = mx.dequantize(*mx.quantize(weights[f"{name}.weight"], **packing), **packing)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    ours, rounded = outputs(load_drafter(folder, spec=spec)), outputs(load_drafter(tmp_path))
    np.testing.assert_allclose(ours, rounded, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("w4", QuantSpec(4, 16, 64)),
        ("w8:gs32", QuantSpec(8, 16, 32)),
        ("w2a32", QuantSpec(2, 32, 64)),
        ("w4a16:gs128", QuantSpec(4, 16, 128)),
    ],
)
def test_parts_left_out_have_their_defaults(short: str, full: QuantSpec) -> None:
    assert parse_spec(short) == full


@pytest.mark.parametrize("off", [None, "off", "none"])
def test_off_keeps_the_weights(off: str | None, folder: Path) -> None:
    drafter = load_drafter(folder, spec=off)
    assert packed_modules(drafter) == set()
    assert drafter.quantization == "off"
    assert drafter.dtype == mx.float32


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("w3a16:gs64", ("w3a16:gs64", "weight bits 3", "(2, 4, 8)")),
        ("w16", ("weight bits 16",)),
        ("w4a8", ("activation bits 8", "bfloat16")),
        ("w4a16:gs16", ("group size 16", "(32, 64, 128)")),
        ("4bit", ("4bit", "w4a16:gs64")),
        ("", ("w4a16:gs64",)),
        ("w4a16:gs64 ", ("w4a16:gs64 ",)),
        ("W4", ("W4",)),
        ("w4:64", ("w4:64",)),
    ],
)
def test_a_spec_that_is_none_names_the_part_at_fault(spec: str, words: tuple[str, ...], folder: Path) -> None:
    with pytest.raises(RequestError) as error:
        load_drafter(folder, spec=spec)
    assert error.value.param == "quantize"
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("dtype", ["float16", mx.float16])
def test_float16_is_refused_with_the_reason(dtype: Any, folder: Path) -> None:
    with pytest.raises(RequestError, match=r"114,000.*65,504.*bfloat16 or float32"):
        load_drafter(folder, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "half", mx.int32])
def test_other_dtypes_are_refused(dtype: Any, folder: Path) -> None:
    with pytest.raises(RequestError, match="use bfloat16 or float32"):
        load_drafter(folder, dtype=dtype)


@pytest.mark.parametrize(
    ("stored", "asked", "used"),
    [
        (mx.float32, None, mx.float32),
        (mx.bfloat16, None, mx.bfloat16),
        (mx.float16, None, mx.bfloat16),
        (mx.bfloat16, "float32", mx.float32),
        (mx.float32, "bfloat16", mx.bfloat16),
    ],
)
def test_the_dtype_in_force(stored: mx.Dtype, asked: str | None, used: mx.Dtype, tmp_path: Path) -> None:
    drafter = load_drafter(write(tmp_path, dtype=stored), dtype=asked)
    assert drafter.dtype == used
    assert {a.dtype for _, a in tree_flatten(drafter.model.parameters())} == {used}


def test_a_group_size_that_does_not_divide_names_module_and_sizes(tmp_path: Path) -> None:
    folder = write(tmp_path, {**CONFIG, "intermediate_size": 160})
    with pytest.raises(CheckpointError) as error:
        load_drafter(folder, spec="w4a16:gs64")
    message = str(error.value)
    assert [word for word in ("64", "mlp.down_proj", "160", "[32]") if word not in message] == []
    assert load_drafter(folder, spec="w4a16:gs32").quantization == "w4a16:gs32"


def test_a_spec_on_a_packed_checkpoint_must_agree_with_it(folder: Path, tmp_path: Path) -> None:
    drafter = load_drafter(folder, spec="w4a32:gs64")
    stored = dict(tree_flatten(drafter.model.parameters()))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    same = load_drafter(tmp_path, spec="w4a32:gs64")
    assert packed_modules(same) == PACKED
    np.testing.assert_array_equal(outputs(same), outputs(drafter))
    assert load_drafter(tmp_path).quantization == "w4a32:gs64"
    with pytest.raises(CheckpointError, match=r"packed already, at w4:gs64, not at w8a32:gs64.*bfloat16 checkpoint"):
        load_drafter(tmp_path, spec="w8a32:gs64")


def test_a_spec_packs_the_rest_of_a_partly_packed_checkpoint(tmp_path: Path) -> None:
    weights = drafter_weights(CONFIG)
    parts = mx.quantize(weights.pop("fc.weight"), bits=4, group_size=64)
    weights.update({f"fc.{name}": a for name, a in zip(("weight", "scales", "biases"), parts, strict=True)})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    assert load_drafter(tmp_path).quantization == "mixed"
    assert packed_modules(load_drafter(tmp_path, spec="w4a16:gs64")) == PACKED


def test_eight_bits_are_nearer_than_four_and_four_than_two(folder: Path) -> None:
    exact = outputs(load_drafter(folder))
    scale = np.abs(exact).mean()
    gaps = [np.abs(outputs(load_drafter(folder, spec=f"w{bits}a32:gs32")) - exact).mean() / scale for bits in (8, 4, 2)]
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[0] < 0.1
