"""`dflash2_mlx.load` on tiny checkpoints: pairs that fit, pairs that do not, folders that are something else."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import save_config

import dflash2_mlx
from dflash2_mlx import pairs
from dflash2_mlx.errors import CheckpointError, DFlashError, ModelNotFound, PairError, RequestError, TargetError
from dflash2_mlx.pairs import Pair, TargetFacts, published_drafter
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.tiny_checkpoints import VOCAB, write_defaults, write_target
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter

LAYERS = 4
HIDDEN = 32


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target`, `drafter` (DFlash 2) and `first` (DFlash)."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = write_target(folder / "target")
    write_drafter(folder / "drafter", tiny_drafter_config(model), dtype=mx.bfloat16)
    write_drafter(folder / "first", tiny_v1_config(model), dtype=mx.bfloat16)
    return folder


def load(folder: Path, drafter: str | None = "drafter", **parameters: Any) -> Pair:
    path = str(folder / drafter) if drafter else None
    return dflash2_mlx.load(str(folder / "target"), path, **parameters)


def changed_drafter(checkpoints: Path, folder: Path, **config: Any) -> Path:
    """A copy of the target beside a drafter with another config; gives the folder of both."""
    shutil.copytree(checkpoints / "target", folder / "target")
    model = tiny.build_config(json.loads((checkpoints / "target" / "config.json").read_text()))
    full = tiny_drafter_config(model)
    for name, value in config.items():
        place = full["dflash_config"] if name in full["dflash_config"] else full
        place[name] = value
    write_drafter(folder / "drafter", full)
    return folder


# Pairs that fit


@pytest.mark.parametrize(("drafter", "engine"), [("drafter", "dflash2"), ("first", "dflash"), (None, "plain")])
def test_a_pair_says_what_it_is(checkpoints: Path, drafter: str | None, engine: str) -> None:
    pair = load(checkpoints, drafter)
    assert pair.engine == engine
    assert pair.model_name == str(checkpoints / "target")
    assert pair.drafter_name == (str(checkpoints / drafter) if drafter else None)
    assert pair.block_size == (6 if drafter else 1)
    assert (pair.fallback_reason, pair.defaults) == (None, {})
    assert (pair.target.model_type, pair.target.vocab_size) == ("llama", VOCAB)
    answer = dflash2_mlx.generate(pair, "the stop", max_tokens=12, ignore_eos=True)
    assert answer.stats.engine == engine
    assert answer.stats.as_dict()["draft_quant"] == "off"
    assert len(answer.tokens) == 12


def test_text_is_that_of_mlx_lm(checkpoints: Path) -> None:
    pair = load(checkpoints)
    prompt = pair.tokenizer.encode("the € in a stop")
    expected = tiny.plain_greedy(tiny.build_config(pair.config), prompt, 40)
    for drafter in ("drafter", "first", None):
        answer = dflash2_mlx.generate(load(checkpoints, drafter), prompt, max_tokens=40, ignore_eos=True)
        assert answer.tokens == expected
        assert answer.text == pair.tokenizer.decode(expected)


def test_a_renamed_folder_is_recognised_by_its_config(checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "target", tmp_path / "My-DFlash2-Drafter")
    shutil.copytree(checkpoints / "drafter", tmp_path / "chat model (v1)")
    pair = dflash2_mlx.load(str(tmp_path / "My-DFlash2-Drafter"), str(tmp_path / "chat model (v1)"))
    assert pair.engine == "dflash2"


@pytest.mark.parametrize(
    ("dtype", "target", "drafter"),
    [
        (None, mx.float32, mx.float32),
        ("float32", mx.float32, mx.float32),
        ("bfloat16", mx.bfloat16, mx.bfloat16),
        ("float16", mx.float16, mx.bfloat16),
    ],
)
def test_the_drafter_computes_as_the_target_but_never_in_float16(
    checkpoints: Path, dtype: str | None, target: mx.Dtype, drafter: mx.Dtype
) -> None:
    pair = load(checkpoints, dtype=dtype)
    assert pair.target.dtype == target
    assert pair.drafter is not None
    assert pair.drafter.dtype == drafter


def test_progress_goes_from_target_to_drafter(checkpoints: Path) -> None:
    seen: list[tuple[str, float]] = []
    load(checkpoints, progress=lambda stage, share: seen.append((stage, share)))
    stages = [stage for stage, _ in seen]
    assert stages == sorted(stages, reverse=True)
    assert set(stages) == {"target", "drafter"}
    for stage in ("target", "drafter"):
        shares = [share for name, share in seen if name == stage]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


def test_defaults_come_from_the_checkpoint(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(checkpoints / "target", folder)
    write_defaults(folder, temperature=0.6, top_p=0.95, top_k=20, eos_token_id=[1], do_sample=True)
    assert load(tmp_path, None).defaults == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    write_defaults(folder, temperature=0.6, do_sample=False)
    assert load(tmp_path, None).defaults == {"temperature": 0.0}
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json is not valid JSON"):
        load(tmp_path, None)


def test_two_pairs_live_side_by_side(checkpoints: Path) -> None:
    one, other = load(checkpoints), load(checkpoints, "first")
    prompt = tiny.random_prompt(9)
    before = dflash2_mlx.generate(one, prompt, max_tokens=20, ignore_eos=True).tokens
    assert dflash2_mlx.generate(other, prompt, max_tokens=20, ignore_eos=True).tokens == before
    del other
    plain = load(checkpoints, None)
    assert dflash2_mlx.generate(plain, prompt, max_tokens=20, ignore_eos=True).tokens == before
    assert dflash2_mlx.generate(one, prompt, max_tokens=20, ignore_eos=True).tokens == before


# Pairs that do not


MISFITS = [
    ({"hidden_size": 64}, ("hidden size", "64", str(HIDDEN))),
    ({"num_target_layers": 7}, ("number of target layers", "7", str(LAYERS))),
    ({"vocab_size": 512}, ("vocabulary", "512", str(VOCAB))),
]


@pytest.mark.parametrize(("config", "words"), MISFITS, ids=lambda x: str(x)[:30])
def test_a_pair_that_does_not_fit_names_both_values(
    checkpoints: Path, tmp_path: Path, config: dict[str, Any], words: tuple[str, ...]
) -> None:
    folder = changed_drafter(checkpoints, tmp_path, **config)
    with pytest.raises(PairError) as error:
        load(folder)
    assert [word for word in words if word not in str(error.value)] == []
    pair = load(folder, allow_fallback=True)
    assert pair.engine == "plain"
    assert pair.fallback_reason is not None
    assert [word for word in words if word not in pair.fallback_reason] == []


def test_all_misfits_are_told_at_once(checkpoints: Path, tmp_path: Path) -> None:
    folder = changed_drafter(checkpoints, tmp_path, num_target_layers=7, vocab_size=512)
    with pytest.raises(PairError, match=r"7.*4.*512.*300"):
        load(folder)


def test_taps_past_the_target_are_refused(checkpoints: Path, tmp_path: Path) -> None:
    folder = changed_drafter(checkpoints, tmp_path, target_layer_ids=[0, LAYERS])
    with pytest.raises(CheckpointError, match=rf"target_layer_ids \[0, {LAYERS}\].*0 to {LAYERS - 1}"):
        load(folder)


def test_a_target_of_unknown_caches_is_refused_by_name(checkpoints: Path) -> None:
    drafter = load(checkpoints).drafter
    model = tiny.build("llama")
    stranger = tiny.with_unknown_cache()
    assert drafter is not None
    with pytest.raises(PairError, match="256"):
        Pair(Target(model), drafter)
    with pytest.raises(TargetError, match="UnknownCache"):
        Target(stranger).prepare([0])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no .safetensors"),
    ],
)
def test_a_damaged_drafter_fails_the_load_unless_a_fallback_was_asked_for(
    checkpoints: Path, tmp_path: Path, damage: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed_drafter(checkpoints, tmp_path)
    (folder / "drafter" / damage).unlink()
    with pytest.raises(CheckpointError, match=reason):
        load(folder)
    with caplog.at_level(logging.WARNING):
        pair = load(folder, allow_fallback=True)
    assert (pair.engine, pair.drafter_name, pair.block_size) == ("plain", None, 1)
    assert pair.fallback_reason is not None
    assert reason in pair.fallback_reason
    assert str(folder / "drafter") in pair.fallback_reason
    assert reason in caplog.text
    stats = dflash2_mlx.generate(pair, [1, 2], max_tokens=3).stats.as_dict()
    assert (stats["engine"], stats["fallback_reason"]) == ("plain", pair.fallback_reason)


@pytest.mark.parametrize("allow_fallback", [False, True])
@pytest.mark.parametrize(
    ("parameters", "param"), [({"quantize": "w5"}, "quantize"), ({"dtype": "int8"}, "dtype"), ({"dtype": 16}, "dtype")]
)
def test_wrong_parameters_fail_with_and_without_fallback(
    checkpoints: Path, parameters: dict[str, Any], param: str, allow_fallback: bool
) -> None:
    with pytest.raises(RequestError, match=str(*parameters.values())) as error:
        load(checkpoints, allow_fallback=allow_fallback, **parameters)
    assert error.value.param == param


# Folders that are something else


def test_a_drafter_given_as_the_model_says_how_to_use_it(checkpoints: Path) -> None:
    with pytest.raises(CheckpointError, match=r"drafter.*is a DFlash drafter.*--draft.*--model"):
        dflash2_mlx.load(str(checkpoints / "drafter"), None)


def test_a_target_given_as_the_drafter_says_so(checkpoints: Path) -> None:
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*no DFlash drafter.*--model"):
        load(checkpoints, "target")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "~/nowhere-at-all", "nowhere", "a/b/c", "a b/c"])
@pytest.mark.parametrize("side", ["model", "drafter"])
def test_an_unknown_folder_is_named(checkpoints: Path, side: str, name: str) -> None:
    wrong = {"model": str(checkpoints / "target"), "drafter": None, side: name}
    with pytest.raises(ModelNotFound, match="no folder") as error:
        dflash2_mlx.load(**wrong)
    assert repr(name) in str(error.value)
    assert isinstance(error.value, FileNotFoundError)


def test_a_hub_id_that_is_not_here_is_told_from_a_folder() -> None:
    """The tests are offline: the Hub cannot be reached, which is not the same as an unknown model."""
    with pytest.raises(ModelNotFound, match=r"nobody/nothing.*cannot be reached"):
        dflash2_mlx.load("nobody/nothing")


def test_a_file_is_no_folder(checkpoints: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"is a file.*config\.json"):
        dflash2_mlx.load(str(checkpoints / "target" / "config.json"))


def _unlink(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _halve(name: str) -> Any:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


def _config(**values: Any) -> Any:
    def change(folder: Path) -> None:
        config = {**json.loads((folder / "config.json").read_text()), **values}
        save_config({k: v for k, v in config.items() if v is not None}, folder / "config.json")

    return change


DAMAGE = {
    "no config": _unlink("config.json"),
    "half a config": _halve("config.json"),
    "unknown family": _config(model_type="no_such_family"),
    "no family": _config(model_type=None),
    "a key of the family is absent": _config(hidden_size=None),
    "other shapes": _config(hidden_size=64),
    "no weights": _unlink("model.safetensors"),
    "half the weights": _halve("model.safetensors"),
    "no tokenizer": _unlink("tokenizer.json"),
    "half a tokenizer": _halve("tokenizer.json"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_target_is_named(checkpoints: Path, tmp_path: Path, damage: Any) -> None:
    folder = tmp_path / "target"
    shutil.copytree(checkpoints / "target", folder)
    damage(folder)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, None)
    assert str(folder) in str(error.value)


# The table of published pairs


def test_no_known_drafter_means_plain_decoding_that_says_why(
    checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pair = dflash2_mlx.load(str(checkpoints / "target"))
    assert (pair.engine, pair.drafter_name) == ("plain", None)
    assert pair.fallback_reason is not None
    assert "no drafter is known" in pair.fallback_reason
    assert "no drafter is known" in caplog.text


def test_the_drafter_of_a_known_shape_is_taken(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = TargetFacts(HIDDEN, LAYERS, VOCAB)
    monkeypatch.setattr(pairs, "_PUBLISHED", [(facts, "x", str(checkpoints / "drafter"))])
    pair = dflash2_mlx.load(str(checkpoints / "target"))
    assert (pair.engine, pair.drafter_name) == ("dflash2", str(checkpoints / "drafter"))
    monkeypatch.setattr(pairs, "_PUBLISHED", [(facts, "x", "nobody/nothing")])
    with pytest.raises(ModelNotFound):
        dflash2_mlx.load(str(checkpoints / "target"))
    fallen = dflash2_mlx.load(str(checkpoints / "target"), allow_fallback=True)
    assert "nobody/nothing" in str(fallen.fallback_reason)


def test_published_pairs_by_shape_and_name() -> None:
    shape = TargetFacts(5120, 64, 248320)
    assert published_drafter(shape, "mlx-community/Qwen3.8-27B-4bit") == "incoai/Qwen3.8-27B-DFlash2"
    assert published_drafter(shape, "my finetune") == "incoai/Qwen3.8-27B-DFlash2"
    assert published_drafter(shape, "Qwen3.5-27B") == "z-lab/Qwen3.5-27B-DFlash"
    assert published_drafter(TargetFacts(6656, 52, 202048)) == "incoai/Muse-Glimmer-30B-DFlash2"
    assert published_drafter(TargetFacts(1, 2, 3), "qwen3") is None


def test_every_error_of_the_package_has_one_root() -> None:
    for error in (CheckpointError, ModelNotFound, PairError, RequestError, TargetError):
        assert issubclass(error, DFlashError)
