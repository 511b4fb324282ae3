"""What is written loads as the source does when it is quantised at load, bit for bit, whatever its layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from dflash2_mlx.demo.paths import drafter_path
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.quantization import parse_spec
from dflash2_mlx.errors import CheckpointError, ModelNotFound
from dflash2_mlx.facts import INDEX, tensors
from dflash2_mlx.hub import shown_name
from dflash2_quantize.checkpoint import Written, write_checkpoint
from dflash2_quantize.packing import Packing, plan_for
from dflash2_quantize.source import open_source
from tests.drafting import outputs
from tests.quantize.subjects import (
    CANDIDATES,
    CODEBOOKS,
    DFLASH1,
    DFLASH2,
    FLAT,
    Config,
    module_packing,
    packed_weights,
    same,
    write,
    write_shards,
)
from tests.tiny_drafters import drafter_weights


def quantised(source: Path | str, out: Path, spec: str, **options: Any) -> Written:
    wanted = parse_spec(spec)
    assert wanted is not None
    opened = open_source(str(source))
    return write_checkpoint(opened, out, plan_for(opened.model(), wanted), wanted.dtype, **options)


def refused(source: Path, spec: str, *words: str) -> None:
    with pytest.raises(CheckpointError) as error:
        quantised(source, source.parent / "out", spec)
    assert [word for word in words if word not in str(error.value)] == []
    assert not (source.parent / "out").exists()


SPECS = ["w2a16:gs32", "w4a16:gs64", "w8a16:gs32", "w4a32:gs32", "w8a32:gs64"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32, mx.float16], ids=str)
def test_it_equals_quantisation_at_load(spec: str, dtype: mx.Dtype, tmp_path: Path) -> None:
    source = write(tmp_path / "source", dtype=dtype)
    quantised(source, tmp_path / "out", spec)
    ours, theirs = load_drafter(tmp_path / "out"), load_drafter(source, spec=spec)
    assert ours.quantization == spec
    assert same(ours, theirs)
    np.testing.assert_array_equal(outputs(ours), outputs(theirs))


def test_another_spec_would_be_seen(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    quantised(source, tmp_path / "out", "w4a16:gs64")
    assert not same(load_drafter(tmp_path / "out"), load_drafter(source, spec="w8a16:gs64"))
    assert not same(load_drafter(tmp_path / "out"), load_drafter(source, spec="w4a16:gs32"))


@pytest.mark.parametrize("config", [DFLASH1, FLAT], ids=["v1", "flat"])
def test_other_configs(config: Config, tmp_path: Path) -> None:
    source = write(tmp_path / "source", config)
    quantised(source, tmp_path / "out", "w4a16:gs64")
    assert same(load_drafter(tmp_path / "out"), load_drafter(source, spec="w4a16:gs64"))


def test_shards_are_read(tmp_path: Path) -> None:
    quantised(write_shards(tmp_path / "source"), tmp_path / "out", "w4a16:gs64")
    one = write(tmp_path / "one")
    assert same(load_drafter(tmp_path / "out"), load_drafter(one, spec="w4a16:gs64"))
    assert not (tmp_path / "out" / INDEX).exists()


def test_large_checkpoints_become_shards(tmp_path: Path) -> None:
    source, limit = write(tmp_path / "source"), 20_000
    quantised(source, tmp_path / "out", "w4a16:gs64", shard_bytes=limit)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) >= 3
    assert [file.name for file in files] == [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    assert all(sum(tensor.size for tensor in tensors_of(file).values()) <= limit for file in files)
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.size for t in tensors(tmp_path / "out").values())
    assert same(load_drafter(tmp_path / "out"), load_drafter(source, spec="w4a16:gs64"))


def tensors_of(file: Path) -> Any:
    folder = file.parent / f"only-{file.stem}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(file.read_bytes())
    return tensors(folder)


def test_another_reader_reads_it(tmp_path: Path) -> None:
    quantised(write(tmp_path / "source", dtype=mx.float32), tmp_path / "out", "w4a32:gs64")
    read: Any = mx.load(str(tmp_path / "out" / "model.safetensors"))
    with safe_open(tmp_path / "out" / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "mlx"}
        assert set(file.keys()) == set(read)
        for name in file.keys():  # noqa: SIM118 - no mapping
            np.testing.assert_array_equal(file.get_tensor(name), np.array(read[name]))


def test_the_config_keeps_every_key(tmp_path: Path) -> None:
    quantised(write(tmp_path / "source"), tmp_path / "out", "w4a16:gs64")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    packing = {"group_size": 64, "bits": 4}
    assert config == {**DFLASH2, "quantization": packing, "dflash2_quantized_from": "source"}
    quantised(tmp_path / "source", tmp_path / "wide", "w4a32:gs64")
    assert json.loads((tmp_path / "wide" / "config.json").read_text())["torch_dtype"] == "float32"


def test_the_source_is_recorded_without_its_disk(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--drafter--2" / "snapshots" / "0f1e"
    cached.mkdir(parents=True)
    assert shown_name(str(cached)) == "org/drafter--2"
    assert shown_name(str(tmp_path)) == tmp_path.name
    assert shown_name("org/drafter") == "org/drafter"


def test_unpacked_tensors_keep_their_names(tmp_path: Path) -> None:
    quantised(write(tmp_path / "source"), tmp_path / "out", "w4a16:gs64")
    found = tensors(tmp_path / "out")
    assert set(CODEBOOKS) <= set(found)
    modules = {f"{module}.weight" for module in CANDIDATES}
    assert {
        name: t for name, t in found.items() if name not in modules and "scales" not in name and "biases" not in name
    } == {name: t for name, t in tensors(tmp_path / "source").items() if name not in modules}


def test_modules_may_differ(tmp_path: Path) -> None:
    opened = open_source(str(write(tmp_path / "source", {**DFLASH2, "quantization_config": {"bits": 3}})))
    plan = {path: Packing(4, 64) for path in CANDIDATES}
    plan |= {"fc": Packing(8, 32), "layers.1.self_attn.v_proj": Packing(2, 64)}
    del plan["layers.0.mlp.up_proj"]
    write_checkpoint(opened, tmp_path / "out", plan, mx.bfloat16)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == config["quantization_config"]
    assert config["quantization"] == {
        "group_size": 64,
        "bits": 4,
        "fc": {"group_size": 32, "bits": 8},
        "layers.1.self_attn.v_proj": {"group_size": 64, "bits": 2},
    }
    drafter = load_drafter(tmp_path / "out")
    assert module_packing(drafter) == {path: (p.bits, p.group_size) for path, p in plan.items()}
    assert drafter.quantization == "mixed"
    assert np.isfinite(outputs(drafter)).all()


# Sources that are packed


def test_the_demo_drafter_stays_what_it_is(tmp_path: Path) -> None:
    written = quantised("demo", tmp_path / "out", "w4a16:gs64")
    assert written.errors == {}
    assert same(load_drafter(tmp_path / "out"), load_drafter(drafter_path()))
    assert module_packing(load_drafter(tmp_path / "out")).keys() >= set(CODEBOOKS)


def test_a_packed_source_is_not_packed_again(tmp_path: Path) -> None:
    modules = [*CANDIDATES[:9], CODEBOOKS[0]]
    weights = packed_weights(drafter_weights({**DFLASH2, "dflash_config": {**_wide()}}), modules, 4, 64)
    source = write(tmp_path / "source", {**DFLASH2, "dflash_config": _wide()}, weights=weights)
    refused(source, "w8a16:gs64", "packed already, at w4:gs64, not at w8:gs64", "fc", "5 more", "unpacked")
    refused(source, "w4a16:gs32", "not at w4:gs32")
    quantised(source, tmp_path / "fits", "w4a16:gs64")
    assert same(load_drafter(tmp_path / "fits"), load_drafter(source, spec="w4a16:gs64"))
    assert set(module_packing(load_drafter(tmp_path / "fits"))) == {*CANDIDATES, CODEBOOKS[0]}


def _wide() -> Config:
    return {**DFLASH2["dflash_config"], "selector_rank": 64}


def test_foreign_packing_is_refused(tmp_path: Path) -> None:
    config = {**DFLASH2, "quantization_config": {"quant_method": "awq"}}
    refused(write(tmp_path / "source", config), "w4a16:gs64", "'awq'", "only MLX packing")


def test_what_does_not_load_is_refused(tmp_path: Path) -> None:
    weights = drafter_weights(DFLASH2)
    del weights["layers.0.mlp.up_proj.weight"]
    refused(write(tmp_path / "source", weights=weights), "w4a16:gs64", "layers.0.mlp.up_proj.weight")
    with pytest.raises(ModelNotFound):
        open_source(str(tmp_path / "nothing"))


def test_a_group_size_that_does_not_divide_names_all_modules(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {**DFLASH2, "intermediate_size": 96})
    refused(source, "w4a16:gs64", "64", "layers.0.mlp.down_proj (96)", "layers.1.mlp.down_proj (96)", "[32]")
    quantised(source, tmp_path / "fits", "w4a16:gs32")


def test_no_group_size_may_fit(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {**DFLASH2, "intermediate_size": 72})
    refused(source, "w4a16:gs32", "layers.0.mlp.down_proj (72)", "none of (32, 64, 128)")
