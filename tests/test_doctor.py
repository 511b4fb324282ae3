"""The doctor: facts from configs and file headers, memory, verdicts on pairs. Nothing is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import cli, facts, machine
from dflash2_mlx.chat import doctor
from dflash2_mlx.drafter.config import parse_config
from dflash2_mlx.drafter.quantization import parse_spec
from dflash2_mlx.errors import CheckpointError, ModelNotFound

TARGET = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "num_target_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 32,
    "dflash_config": {
        "block_size": 8,
        "target_layer_ids": [0, 2],
        "mask_token_id": 99,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}


def write_weights(file: Path, tensors: dict[str, tuple[str, tuple[int, ...], int]], *, lacking: int = 0) -> None:
    """A safetensors file of zeros; `lacking` bytes are cut off."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end - lacking))


def write_model(folder: Path, config: dict[str, Any], size: int = 1000) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_weights(folder / "model.safetensors", {"a.weight": ("BF16", (size // 2,), size)})
    return str(folder)


def test_sizes_come_from_the_headers_of_all_files(tmp_path: Path) -> None:
    write_weights(tmp_path / "model-1.safetensors", {"a": ("BF16", (3, 5), 30), "b": ("F32", (2,), 8)})
    write_weights(tmp_path / "model-2.safetensors", {"c": ("U32", (4,), 16)})
    assert facts.target_bytes(facts.tensors(tmp_path), {}) == 54
    assert facts.tensors(tmp_path)["a"] == facts.Tensor("BF16", (3, 5), 30)


def test_a_header_of_mlx_is_read(tmp_path: Path) -> None:
    import mlx.core as mx

    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"a": mx.zeros((4, 8), dtype=mx.float32)})
    assert facts.tensors(tmp_path) == {"a": facts.Tensor("F32", (4, 8), 128)}


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 8, struct.pack("<Q", 4) + b"nope", b"\x02" + bytes(7) + b"[]"]
)
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is no readable"):
        facts.tensors(tmp_path)


def test_a_short_file_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \.safetensors file"):
        facts.tensors(tmp_path)
    write_weights(tmp_path / "model.safetensors", {"a": ("BF16", (8,), 16)}, lacking=3)
    with pytest.raises(CheckpointError, match="3 bytes too short"):
        facts.tensors(tmp_path)


def test_quantising_packs_attention_mlp_and_fc_alone(tmp_path: Path) -> None:
    tensors = {
        "layers.0.self_attn.q_proj.weight": ("BF16", (64, 128), 64 * 128 * 2),
        "layers.0.mlp.up_proj.weight": ("U32", (64, 16), 64 * 16 * 4),
        "fc.weight": ("BF16", (64, 64), 64 * 64 * 2),
        "norm.weight": ("BF16", (64,), 128),
        "layers.0.mlp_conv.kernel_projection.weight": ("BF16", (4, 64), 512),
    }
    write_weights(tmp_path / "model.safetensors", tensors)
    packed = (64 * 128 + 64 * 64) * (4 / 8 + 4 / 64)
    found = facts.tensors(tmp_path)
    assert facts.drafter_bytes(found, parse_spec("w4a16:gs64")) == packed + 64 * 16 * 4 + 128 + 512
    assert facts.drafter_bytes(found) == 2 * (64 * 128 + 64 * 64) + 64 * 16 * 4 + 128 + 512
    assert facts.drafter_bytes(found, item=4) == 4 * (64 * 128 + 64 * 64) + 64 * 16 * 4 + 256 + 1024


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, 2 * 2 * 64 * 2 * 8192),
        ({**TARGET, "head_dim": 8}, 4 * 2 * 16 * 2 * 8192),
        ({"text_config": {**TARGET, "head_dim": 8}}, 4 * 2 * 16 * 2 * 8192),
        (
            {**TARGET, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 128},
            2 * 32 * 2 * (3 * 128 + 8192),
        ),
        (
            {
                **TARGET,
                "full_attention_interval": 4,
                "linear_num_value_heads": 3,
                "linear_key_head_dim": 5,
                "linear_value_head_dim": 7,
            },
            2 * 32 * 2 * 8192 + 3 * (3 * 5 * 7) * 4,
        ),
        ({}, 0),
    ],
)
def test_caches_by_the_kind_of_each_layer(config: dict[str, Any], size: int) -> None:
    assert facts.cache_bytes(config) == size


def test_the_estimate_is_what_mlx_lm_allocates() -> None:
    """A family of full and sliding layers: caches filled past the window hold what was estimated."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from tests import tiny
    from tests.tiny_families import NAMED

    config = NAMED["gpt_oss"](16)
    model = tiny.build("gpt_oss")
    caches = make_prompt_cache(model)
    context = 512  # whole steps of a growing cache
    model(mx.zeros((1, context - 1), dtype=mx.int32), cache=caches)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)  # a rotating cache lets go of a chunk with the next row
    held = sum(array.nbytes for cache in caches for array in (cache.keys, cache.values))
    float32 = 2
    assert facts.cache_bytes(config, context) * float32 == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(None, "fits"), (0.79, "fits"), (0.81, "tight"), (1.0, "tight"), (1.01, "does not fit")],
)
def test_verdicts_on_memory(share: float | None, verdict: str, tmp_path: Path) -> None:
    needed = 100_000 + facts.cache_bytes(TARGET)
    available = None if share is None else round(needed / share)
    found = doctor.pair(write_model(tmp_path / "t", TARGET, 100_000), None, None, available)
    assert (found["needed"], found["verdict"]) == (needed, verdict)


def test_a_pair_that_fits(tmp_path: Path) -> None:
    target, drafter = write_model(tmp_path / "t", TARGET, 5000), write_model(tmp_path / "d", DRAFTER, 300)
    found = doctor.pair(target, drafter, None, 10**9)
    assert (found["verdict"], found["reasons"]) == ("fits", [])
    assert found["needed"] == 5300 + facts.cache_bytes(TARGET) + facts.context_bytes(parse_config(DRAFTER))
    assert (found["drafter"]["engine"], found["drafter"]["block_size"]) == ("dflash2", 8)
    assert found["target"]["layers"] == {"full_attention": 4}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": 128}, "hidden size: drafter 64, target 128"),
        ({"num_hidden_layers": 6}, "number of target layers: drafter 4, target 6"),
        ({"vocab_size": 101}, "vocabulary: drafter 100, target 101"),
    ],
)
def test_a_mismatch_names_both_values(change: dict[str, int], reason: str, tmp_path: Path) -> None:
    target = write_model(tmp_path / "t", {**TARGET, **change})
    found = doctor.pair(target, write_model(tmp_path / "d", DRAFTER), None, 10**9)
    assert (found["verdict"], found["reasons"]) == ("mismatch", [reason])
    assert any(reason in line for line in doctor.lines(whole(found)))


def test_what_is_not_usable_is_said(tmp_path: Path) -> None:
    target, drafter = write_model(tmp_path / "t", TARGET), write_model(tmp_path / "d", DRAFTER)
    no_theta = write_model(tmp_path / "n", {key: v for key, v in DRAFTER.items() if key != "rope_theta"})
    cases = [
        (str(tmp_path / "absent"), None, "is no folder and not in the Hub cache"),
        ("someone/something", None, "hf download someone/something"),
        (drafter, None, "this is a drafter, no chat model"),
        (target, no_theta, "rope_theta"),
        (target, target, "no DFlash drafter"),
        (write_model(tmp_path / "v", {"model_type": "llama"}), None, "does not tell 'hidden_size'"),
    ]
    for model, draft, message in cases:
        found = doctor.pair(model, draft, None, 10**9)
        assert found["verdict"] == "not usable"
        assert message in found["error"]


def test_an_unknown_target_decodes_plainly(tmp_path: Path) -> None:
    found = doctor.pair(write_model(tmp_path / "t", TARGET), "auto", None, 10**9)
    assert found["verdict"] == "fits"
    assert any("none is known" in line for line in doctor.lines(whole(found)))


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def connect(*args: object, **options: object) -> None:
        raise AssertionError("the doctor went to the network")

    monkeypatch.setattr("socket.socket.connect", connect)
    with pytest.raises(ModelNotFound):
        doctor.local_folder("someone/something")


def whole(pair: dict[str, Any]) -> dict[str, Any]:
    """A report with that pair; the rest is made up."""
    return {
        "versions": {"python": "3"},
        "system": "any",
        "blas": "any",
        "device": {"backend": "CPU", "memory_limit": 10**9},
        "memory": {"total": None, "available": 10**9},
        "folders": {"cache": "there"},
        "demo": "installed",
        "pair": pair,
        "exactness": {"verdict": None, "summary": "not checked"},
    }


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_model(tmp_path / "t", TARGET)
    assert cli.main(["doctor", "--json", "--model", target, "--draft", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["versions", "system", "blas", "device", "memory", "folders", "demo", "pair", "exactness"]
    assert found["versions"]["mlx"] != "not installed"
    assert found["device"]["backend"] in ("CPU", "GPU", "Metal")
    assert found["memory"]["total"] >= found["memory"]["available"] > 0
    assert cli.main(["doctor", "--model", target, "--draft", "none"]) == 0
    text = capsys.readouterr().out
    assert "verdict       fits" in text
    assert "drafter       none asked for" in text


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, drafter = (
        write_model(tmp_path / "t", {**TARGET, "vocab_size": 7}),
        write_model(tmp_path / "d", DRAFTER),
    )
    assert cli.main(["doctor", "--model", str(tmp_path / "absent")]) == cli.EXIT_ERROR
    assert cli.main(["doctor", "--model", target, "--draft", drafter]) == cli.EXIT_ERROR
    assert cli.main(["doctor", "--model", target, "--draft-quant", "w3"]) == cli.EXIT_USAGE
    assert "error: weight bits 3" in capsys.readouterr().err


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(machine, "_CGROUPS", ((str(limit), str(usage)),))
    machine_memory = machine.memory()
    limit.write_text("max", encoding="ascii")
    usage.write_text("1000000", encoding="ascii")
    assert machine.memory().total == machine_memory.total
    limit.write_text("5000000", encoding="ascii")
    assert machine.memory() == machine.Memory(5_000_000, 4_000_000)


def test_what_macos_can_hand_out() -> None:
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\n"
        "Pages active:                            500.\n"
        "Pages inactive:                           20.\n"
        "Pages speculative:                         3.\n"
        "Pages purgeable:                           4.\n"
    )
    assert machine.pages_available(text) == 37 * 16384
    assert machine.pages_available("") is None


def test_metal_limits_the_budget() -> None:
    memory = machine.Memory(64, 48)
    assert doctor.budget(memory, {}) == 48
    assert doctor.budget(memory, {"max_recommended_working_set_size": 40}) == 40
    assert doctor.budget(machine.Memory(None, None), {}) is None
