"""Any shape: what divides round-trips within the error that the bits allow, what does not is refused by name."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.quantization import GROUP_SIZES, WEIGHT_BITS, QuantSpec
from dflash2_mlx.errors import CheckpointError
from dflash2_quantize.error import relative_error
from dflash2_quantize.packing import Packing, weight_bytes
from dflash2_quantize.safetensors_file import Layout, header, shards
from tests.quantize.subjects import CANDIDATES, DFLASH2, Config, parameters, write
from tests.quantize.test_round_trip import quantised
from tests.tiny_drafters import drafter_weights


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Widths that some group sizes divide and some do not."""
    return {
        **DFLASH2,
        "hidden_size": 32 * draw(st.integers(1, 4)),
        "num_attention_heads": 2 * draw(st.integers(1, 3)),
        "head_dim": draw(st.sampled_from([8, 16, 32])),
        "intermediate_size": draw(st.integers(1, 12)) * draw(st.sampled_from([8, 32, 128])),
    }


def widths(config: Config) -> dict[str, int]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    attention = config["num_attention_heads"] * config["head_dim"]
    special = {"fc": 2 * hidden, "o_proj": attention, "down_proj": inner}
    return {path: special.get(path.rpartition(".")[2], hidden) for path in CANDIDATES}


@settings(max_examples=25, deadline=None)
@given(configs(), st.sampled_from(GROUP_SIZES), st.sampled_from(WEIGHT_BITS))
def test_any_shape(config: Config, group_size: int, bits: int) -> None:
    spec = str(QuantSpec(bits, 32, group_size))
    bad = {path for path, width in widths(config).items() if width % group_size}
    with tempfile.TemporaryDirectory() as place:
        source = write(Path(place) / "source", config, dtype=mx.float32)
        if bad:
            with pytest.raises(CheckpointError) as error:
                quantised(source, Path(place) / "out", spec)
            named = {path for path in CANDIDATES if f"{path} (" in str(error.value)}
            assert named == bad
            return
        written = quantised(source, Path(place) / "out", spec)
        unpacked = parameters(load_drafter(written.folder, dequantize=True))
    weights = drafter_weights(config, dtype=mx.float32)
    assert set(written.errors) == set(CANDIDATES)
    for path in CANDIDATES:
        check_error(np.array(weights[f"{path}.weight"]), np.array(unpacked[f"{path}.weight"]), bits, group_size)


def check_error(wanted: np.ndarray, got: np.ndarray, bits: int, group_size: int) -> None:
    """No number moves by more than one step of its group's scale."""
    groups, moved = (a.reshape(-1, group_size) for a in (wanted, got))
    step = (groups.max(axis=1) - groups.min(axis=1)) / (2**bits - 1)
    assert (np.abs(moved - groups).max(axis=1) <= step * 1.01 + 1e-6).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 3), st.sampled_from(GROUP_SIZES), st.sampled_from(WEIGHT_BITS))
def test_errors_and_sizes_are_those_of_the_whole_matrix(rows: int, groups: int, group_size: int, bits: int) -> None:
    weight = mx.random.normal((rows, groups * group_size))
    integers, scales, biases = mx.quantize(weight, bits=bits, group_size=group_size)
    got = np.array(mx.dequantize(integers, scales, biases, bits=bits, group_size=group_size))
    exact = float(np.sqrt(((got - np.array(weight)) ** 2).sum() / (np.array(weight) ** 2).sum()))
    assert relative_error(weight, integers, scales, biases, bits=bits, group_size=group_size) == pytest.approx(
        exact, rel=1e-4
    )


def test_a_large_matrix_is_compared_in_parts() -> None:
    weight = mx.random.normal((130, 1 << 16))  # two parts and a rest
    weight[-1] = mx.where(mx.arange(1 << 16) % 64 == 0, 1000.0, weight[-1])  # where most of the error is
    integers, scales, biases = mx.quantize(weight, bits=4, group_size=64)
    got, wanted = np.array(mx.dequantize(integers, scales, biases, bits=4, group_size=64)), np.array(weight)
    exact = np.sqrt(((got - wanted) ** 2).sum(dtype=np.float64) / (wanted**2).sum(dtype=np.float64))
    assert relative_error(weight, integers, scales, biases, bits=4, group_size=64) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("bits", WEIGHT_BITS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_bytes_are_told_before(bits: int, group_size: int) -> None:
    weight = mx.zeros((6, 256), mx.bfloat16)
    parts = mx.quantize(weight, bits=bits, group_size=group_size)
    assert weight_bytes(weight.size, Packing(bits, group_size), 2) == sum(part.nbytes for part in parts)
    assert weight_bytes(weight.size, None, 2) == weight.nbytes


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100))
def test_shards_hold_everything_once_in_order_and_within_the_limit(sizes: list[int], limit: int) -> None:
    layouts = {str(i): Layout(mx.uint8, (size,), size) for i, size in enumerate(sizes)}
    parts = shards(layouts, limit)
    assert [name for part in parts for name in part] == list(layouts)
    assert all(part for part in parts)
    assert all(len(part) == 1 or sum(one.bytes for one in part.values()) <= limit for part in parts)
    assert len(header(layouts)) % 8 == 0
