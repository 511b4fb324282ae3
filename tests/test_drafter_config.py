"""A drafter's config: both layouts; what is missing, unknown or impossible is named; the published ones fit."""

from __future__ import annotations

import copy
import json
import re
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.config import is_drafter, parse_config, read_config
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.errors import CheckpointError
from tests.published_drafters import MUSE, PUBLISHED, QWEN3_4B, QWEN38, reduced
from tests.tiny_drafters import drafter_shapes

BYTES = {"qwen38": 3_848_808_960, "muse": 5_544_319_488}
TENSORS = {"qwen38": 81, "muse": 81, "qwen3-4b": 58}


def changed(config: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy in which fields have other values, in the place where they stand; None removes one."""
    out = copy.deepcopy(config)
    for name, value in values.items():
        place = out["dflash_config"] if name in out.get("dflash_config", ()) else out
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return out


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """The same config with all keys at the top level."""
    out = copy.deepcopy(config)
    inner = [out.pop(name, {}) for name in ("rope_parameters", "dflash_config")]
    return {**out, **inner[0], **inner[1]}


def refused(config: dict[str, Any], *words: str) -> None:
    """Refused, with every word in the message."""
    with pytest.raises(CheckpointError) as error:
        parse_config(config)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_nested_and_flat_keys_say_the_same(name: str) -> None:
    raw = PUBLISHED[name]
    assert parse_config(flat(raw)) == parse_config(raw)


def test_the_published_values_are_read() -> None:
    config = parse_config(MUSE)
    assert config.engine == "dflash2"
    assert (config.block_size, config.mask_token_id, config.num_target_layers) == (16, 201818, 52)
    assert config.target_layer_ids == (1, 13, 25, 37, 49)
    assert config.output_multiplier == 0.19611613513818404
    assert (config.final_logit_softcapping, config.input_embedding_scale) == (20.0, 1.0)
    assert (config.rope_theta, config.rope_scaling, config.rms_norm_eps) == (500000.0, None, 1e-5)
    assert (config.sliding_window, config.is_causal, config.context_rows) == (2048, False, 2047)
    plain = parse_config(QWEN38)
    assert (plain.output_multiplier, plain.final_logit_softcapping) == (1.0, None)


def test_the_first_generation_is_full_attention_without_selector() -> None:
    config = parse_config(QWEN3_4B)
    assert config.engine == "dflash"
    assert not config.is_dflash2
    assert config.layer_types == ("full_attention",) * 5
    assert (config.block_size, config.context_rows, config.sliding_window) == (16, None, None)
    assert not config.causal("full_attention")


@pytest.mark.parametrize(
    ("is_causal", "sliding", "full"), [(None, True, False), (False, False, False), (True, True, True)]
)
def test_causality_by_key_and_layer(is_causal: bool | None, sliding: bool, full: bool) -> None:
    config = parse_config(changed(QWEN38, is_causal=is_causal))
    assert (config.causal("sliding_attention"), config.causal("full_attention")) == (sliding, full)


def test_whole_numbers_may_be_floats_and_the_other_way_round() -> None:
    as_floats = changed(
        QWEN38,
        **{name: float(QWEN38[name]) for name in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size")},
        block_size=8.0,
        target_layer_ids=[5.0, 19.0, 33, 47, 61],
        selector_top_k=16.0,
        rope_parameters={"rope_theta": 1e7},
    )
    assert parse_config(as_floats) == parse_config(QWEN38)
    assert parse_config(changed(MUSE, final_logit_softcapping=20)) == parse_config(MUSE)


REQUIRED = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "num_target_layers",
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "sliding_window",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name: str) -> None:
    for config in (QWEN38, flat(QWEN38)):
        refused(changed(config, **{name: None}), name)


@pytest.mark.parametrize("rope", [None, {}, {"rope_type": "default"}, {"rope_theta": None}])
def test_a_missing_theta_is_named(rope: Any) -> None:
    refused(changed(QWEN38, rope_parameters=rope), "rope_theta", "long contexts")


@pytest.mark.parametrize("key", ["output_multiplyer", "logit_scale", "head_dim"])
def test_an_unknown_key_of_the_method_is_refused(key: str) -> None:
    config = copy.deepcopy(QWEN38)
    config["dflash_config"][key] = 0.5
    refused(config, "dflash_config", key)


@pytest.mark.parametrize(
    "ids", [[-1, 3], [3, 3], [5, 64], [1.5], [], None, "5", [True], ["5"], 5, [float("nan")], [[1]]]
)
def test_tap_ids_that_cannot_be(ids: Any) -> None:
    config = copy.deepcopy(QWEN38)
    config["dflash_config"]["target_layer_ids"] = ids
    refused(config, "target_layer_ids")


def test_tap_ids_past_the_end_name_the_last_layer() -> None:
    refused(changed(QWEN38, target_layer_ids=[5, 64]), "64", "63")


@pytest.mark.parametrize("value", ["8", True, 8.5, 0, -8, float("nan"), float("inf"), [8]])
@pytest.mark.parametrize("name", ["hidden_size", "block_size", "num_target_layers", "selector_top_k"])
def test_sizes_that_cannot_be(name: str, value: Any) -> None:
    refused(changed(QWEN38, **{name: value}), name, repr(value) if isinstance(value, str) else "")


BAD = [
    ({"block_size": 1}, "block_size is 1"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"output_multiplier": "0.5"}, "output_multiplier is '0.5'"),
    ({"is_causal": "false"}, "is_causal is 'false'"),
    ({"num_key_value_heads": 5}, "num_key_value_heads"),
    ({"mask_token_id": 248320}, "mask_token_id 248320 is past vocab_size 248320"),
    ({"mask_token_id": -1}, "mask_token_id"),
    ({"conv_group_size": 3}, "conv_group_size 3"),
    ({"selector_top_k": 248321}, "selector_top_k"),
    ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ({"layer_types": ["sliding_attention"] * 4 + ["chunked_attention"]}, "layer_types"),
    ({"sliding_window": 1}, "sliding_window"),
    ({"attention_bias": True}, "attention_bias"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0"),
    ({"rope_parameters": {"rope_theta": "1e7"}}, "rope_theta is '1e7'"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message for _, message in BAD])
def test_values_that_cannot_be(values: dict[str, Any], message: str) -> None:
    refused(changed(QWEN38, **values), message)


def test_a_window_without_sliding_layers_is_not_needed() -> None:
    config = parse_config(changed(QWEN38, layer_types=["full_attention"] * 5, sliding_window=None))
    assert config.context_rows is None
    mixed = ["sliding_attention"] * 4 + ["full_attention"]
    assert parse_config(changed(QWEN38, layer_types=mixed)).context_rows is None


def test_rope_scaling_is_read_in_both_layouts_and_an_unknown_kind_is_refused() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    nested = changed(reduced(QWEN38), rope_parameters={"rope_theta": 1e6, **yarn}, max_position_embeddings=512)
    top = changed(reduced(QWEN38), rope_parameters=None, rope_theta=1e6, rope_scaling=yarn, max_position_embeddings=512)
    for raw in (nested, top):
        config = parse_config(raw)
        assert config.rope_scaling is not None
        assert config.rope_scaling["factor"] == 4.0
        x = mx.random.normal((1, 2, 3, 16))
        plain = DraftModel(parse_config(reduced(QWEN38))).rope(x, offset=100)
        assert not mx.allclose(DraftModel(config).rope(x, offset=100), plain)
    odd = changed(nested, rope_parameters={"rope_theta": 1e6, "rope_type": "spiral"})
    with pytest.raises(CheckpointError, match="spiral"):
        DraftModel(parse_config(odd))


def test_recognised_by_config_not_by_name() -> None:
    assert is_drafter({"dflash_config": {}})
    assert is_drafter({"architectures": ["DFlashDraftModel"]})
    assert not is_drafter({"architectures": ["Qwen3ForCausalLM"], "_name_or_path": "x/Qwen3-DFlash"})
    refused({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM", "--model")


def test_a_drafter_without_architectures_is_told_by_its_selector() -> None:
    assert parse_config(changed(QWEN38, architectures=None)).engine == "dflash2"
    assert parse_config(changed(QWEN3_4B, architectures=None)).engine == "dflash"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no config.json"), ("{", "not valid JSON"), ("[1]", "holds list"), ("\xff", "config.json")],
)
def test_a_config_file_that_cannot_be_read(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_config(tmp_path)


def test_a_config_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MUSE))
    assert read_config(tmp_path) == MUSE


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_full_size_checkpoint_has_the_published_tensors(name: str) -> None:
    """Names and shapes alone: nothing is evaluated, so that gigabytes cost nothing."""
    raw = PUBLISHED[name]
    before = mx.get_active_memory()
    model = DraftModel(parse_config(raw))
    shapes = {path: value.shape for path, value in tree_flatten(model.parameters())}
    stored = dict.fromkeys(drafter_shapes(raw), mx.zeros((1,)))
    assert shapes == dict(zip(DraftModel.sanitize(stored), drafter_shapes(raw).values(), strict=True))
    assert len(shapes) == TENSORS[name]
    if name in BYTES:
        assert 2 * sum(prod(shape) for shape in shapes.values()) == BYTES[name]
    assert mx.get_active_memory() - before < 1 << 24
