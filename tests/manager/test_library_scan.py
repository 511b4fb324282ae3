"""What is listed, under which id, and what is not: incomplete, damaged, foreign. Nothing on disk breaks the scan."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import facts
from dflash2_mlx.errors import ModelNotFound
from dflash2_server.library.library import Library
from dflash2_server.library.models import LocalModel
from tests.manager import trees
from tests.manager.trees import write_drafter, write_json, write_model, write_repository, write_weights

EMBEDDED = ["demo", "demo-drafter"]


def library(*folders: Path, hub: Path | None = None, **options: Any) -> Library:
    return Library(folders, hub, **options)


def listed(found: Library) -> list[str]:
    return [model.id for model in found.models() if model.source != "embedded"]


def only(found: Library) -> LocalModel:
    (model,) = (model for model in found.models() if model.source != "embedded")
    return model


def test_flat_owned_and_hub_layouts_in_several_folders(tmp_path: Path) -> None:
    one, two, hub = tmp_path / "one", tmp_path / "two", tmp_path / "hub"
    write_model(one / "Flat-4bit")
    write_model(one / "some-org" / "Owned-4bit")
    write_repository(two, "other/InFolder")
    write_repository(hub, "mlx-community/Cached-4bit")
    write_drafter(hub.parent / "two" / "A-Drafter")
    found = library(one, two, hub=hub)
    assert listed(found) == ["Cached-4bit", "Flat-4bit", "InFolder", "Owned-4bit", "A-Drafter"]
    assert [model.id for model in found.models()][4:] == ["demo", "A-Drafter", "demo-drafter"]
    about = {model.id: (model.repo_id, model.source, model.kind) for model in found.models()}
    assert about["Flat-4bit"] == (None, "folder", "model")
    assert about["Owned-4bit"] == ("some-org/Owned-4bit", "folder", "model")
    assert about["InFolder"] == ("other/InFolder", "hub", "model")
    assert about["Cached-4bit"] == ("mlx-community/Cached-4bit", "hub", "model")
    assert about["A-Drafter"] == (None, "folder", "drafter")
    assert found.problems == []


def test_what_is_told_of_a_model(tmp_path: Path) -> None:
    quantised = trees.TARGET | {"quantization": {"group_size": 64, "bits": 4}}
    folder = write_model(tmp_path / "m", quantised)
    model = only(library(tmp_path))
    assert model.path == folder
    assert model.size == trees.size_of(folder)
    assert (model.model_type, model.quantization, model.context_length) == ("llama", "4-bit, group 64", 4096)
    assert tuple(model.facts or ()) == (32, 4, 256)
    assert (model.problem, model.dflash_compatible, model.dflash_reason, model.deletable) == (None, True, None, True)
    assert model.config == quantised
    assert model.load_name == str(folder)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, None),
        ({"quantization": {"bits": 8, "group_size": 32}}, "8-bit, group 32"),
        (
            {"quantization": {"bits": 4, "group_size": 32, "a.b": {"bits": 8, "group_size": 32}, "a.c": False}},
            "mixed 4/8-bit, group 32",
        ),
        ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "4-bit mxfp4, group 32"),
        ({"text_config": {"quantization": {"bits": 2, "group_size": 128}}}, "2-bit, group 128"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "gptq, 4-bit, group 128"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ],
)
def test_quantisation_in_words(config: dict[str, Any], text: str | None, tmp_path: Path) -> None:
    write_model(tmp_path / "m", trees.TARGET | config)
    assert only(library(tmp_path)).quantization == text


def test_a_vision_models_sizes_are_nested(tmp_path: Path) -> None:
    text = {key: value for key, value in trees.TARGET.items() if key != "architectures"}
    config = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "text_config": text}
    write_model(tmp_path / "nested", config)
    model = only(library(tmp_path))
    assert (model.model_type, model.context_length, tuple(model.facts or ())) == ("gemma4", 4096, (32, 4, 256))


def test_a_vocabulary_that_the_config_leaves_out_is_read_from_the_embedding(tmp_path: Path) -> None:
    config = {key: value for key, value in trees.TARGET.items() if key != "vocab_size"}
    write_model(tmp_path / "m", config, {"model.embed_tokens.weight": ("BF16", (777, 32))})
    assert tuple(only(library(tmp_path)).facts or ()) == (32, 4, 777)


def test_sizes_that_nobody_tells_leave_the_model_without_a_drafter(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {key: value for key, value in trees.TARGET.items() if key != "hidden_size"})
    model = only(library(tmp_path))
    assert (model.facts, model.problem, model.dflash_compatible) == (None, None, False)
    assert "hidden_size" in (model.dflash_reason or "")


def test_drafters_are_told_by_their_config_and_never_by_name(tmp_path: Path) -> None:
    write_model(tmp_path / "Something-DFlash")
    write_drafter(tmp_path / "renamed")
    kinds = {model.id: model.kind for model in library(tmp_path).models() if model.source == "folder"}
    assert kinds == {"Something-DFlash": "model", "renamed": "drafter"}


def test_a_drafter_with_a_wrong_config_is_listed_with_its_problem(tmp_path: Path) -> None:
    write_drafter(tmp_path / "d", rope_theta=None)
    write_drafter(tmp_path / "e", layer_types=5)
    one, two = (model for model in library(tmp_path).models() if model.source == "folder")
    assert (one.kind, one.drafter) == ("drafter", None)
    assert "rope_theta" in (one.problem or "")
    assert (two.kind, two.drafter) == ("drafter", None)
    assert two.problem


def test_a_packed_drafter_whose_config_is_silent(tmp_path: Path) -> None:
    packed = {
        "layers.0.self_attn.q_proj.weight": ("U32", (64, 32 * 4 // 32)),
        "layers.0.self_attn.q_proj.scales": ("BF16", (64, 1)),
    }
    write_model(tmp_path / "d", trees.DRAFTER, packed)
    assert only(library(tmp_path)).quantization == "4-bit, group 32"


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, []),
        ({"model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"]}, []),
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, []),
        (trees.TARGET | {"architectures": ["LlamaForSequenceClassification"]}, []),
        (trees.TARGET | {"architectures": ["LlamaModel"]}, []),
        (trees.TARGET, ["modules.json"]),
        ({"num_layers": 3}, []),
    ],
)
def test_models_that_do_not_chat_are_not_listed(config: dict[str, Any], extra: list[str], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", config)
    for name in extra:
        write_json(folder / name, [])
    assert listed(library(tmp_path)) == []
    assert library(tmp_path).problems == []


def test_folders_without_safetensors_are_no_models(tmp_path: Path) -> None:
    for name, file in (("gguf", "model.gguf"), ("torch", "pytorch_model.bin"), ("tokenizer-only", "tokenizer.json")):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", trees.TARGET)
        (tmp_path / name / file).write_bytes(b"GGUF")
    (tmp_path / "weights-only").mkdir()
    write_weights(tmp_path / "weights-only" / "model.safetensors")
    (tmp_path / "notes.txt").write_text("a file")
    assert listed(library(tmp_path)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "newer_than_mlx", "architectures": ["NewerForCausalLM"]}, "has no family 'newer_than_mlx'"),
        ({"model_type": "cache"}, "has no family 'cache'"),
        ({"model_type": "olmo.x"}, "has no family 'olmo.x'"),
        ({"model_type": None}, "names no model_type"),
        ({"model_file": "own.py"}, "code of its own (own.py)"),
    ],
)
def test_a_family_that_mlx_lm_lacks_is_a_problem(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m", trees.TARGET | change)
    model = only(library(tmp_path))
    assert problem in (model.problem or "")
    assert not model.dflash_compatible
    assert model.deletable


def test_what_mlx_lm_takes_for_another_family_is_no_problem(tmp_path: Path) -> None:
    write_model(tmp_path / "m", trees.TARGET | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]})
    assert (only(library(tmp_path)).problem, only(library(tmp_path)).dflash_compatible) == (None, True)


@pytest.mark.parametrize(("lacking", "problem"), [("tokenizer.json", "no tokenizer"), ("", "model*.safetensors")])
def test_what_loading_needs_beside_weights(lacking: str, problem: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    if lacking:
        (folder / lacking).unlink()
    else:
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert problem in (only(library(tmp_path)).problem or "")


@pytest.mark.parametrize("text", ["{", "[]", "", "\xff"])
def test_a_config_that_is_no_object_is_told(text: str, tmp_path: Path) -> None:
    (write_model(tmp_path / "m") / "config.json").write_bytes(text.encode("latin-1"))
    model = only(library(tmp_path))
    assert (model.kind, model.model_type) == ("model", "unknown")
    assert "config.json cannot be read" in (model.problem or "")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": 7, "model_type": "llama"},
        {"architectures": [3], "model_type": "llama", "hidden_size": "x", "num_hidden_layers": {}, "vocab_size": []},
        trees.TARGET | {"text_config": [], "layer_types": "x", "quantization": 4},
        trees.TARGET | {"max_position_embeddings": "many", "full_attention_interval": []},
        trees.DRAFTER | {"dflash_config": 3, "architectures": "DFlash2DraftModel"},
        trees.DRAFTER | {"architectures": 3},
        trees.TARGET | {"max_position_embeddings": float("inf")},
    ],
)
def test_no_config_breaks_the_scan(config: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path / "odd", config)
    write_model(tmp_path / "sound")
    assert "sound" in listed(library(tmp_path))


def test_refs_main_decides_the_snapshot(tmp_path: Path) -> None:
    old = write_repository(tmp_path, "org/m", commit="a" * 40)
    new = write_repository(tmp_path, "org/m", trees.TARGET | {"max_position_embeddings": 99}, commit="b" * 40)
    found = library(hub=tmp_path)
    assert (only(found).path, only(found).context_length) == (new, 99)
    main = new.parents[1] / "refs" / "main"
    main.write_text("a" * 40 + "\n")
    found.refresh()
    assert (only(found).path, only(found).context_length) == (old, 4096)
    main.unlink()
    os.utime(old, (1, 1))
    found.refresh()
    assert only(found).path == new
    for nowhere in ("c" * 40, "../../../../etc", "", ".."):
        main.write_text(nowhere)
        found.refresh()
        assert listed(found) == []


def test_blobs_are_counted_once(tmp_path: Path) -> None:
    snapshot = write_repository(tmp_path, "org/m")
    (snapshot / "copy.json").symlink_to((snapshot / "tokenizer.json").readlink())
    blobs = snapshot.parents[1] / "blobs"
    assert only(library(hub=tmp_path)).size == trees.size_of(blobs)


def test_each_folder_is_listed_once_whatever_leads_to_it(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "org" / "m")
    (tmp_path / "models" / "loop").symlink_to(tmp_path / "models")
    (tmp_path / "models" / "self").symlink_to("self")
    (tmp_path / "models" / "again").symlink_to(tmp_path / "models" / "org" / "m")
    (tmp_path / "models" / "nowhere").symlink_to(tmp_path / "absent")
    found = library(tmp_path / "models", tmp_path / "models" / "org", tmp_path / "models")
    assert only(found).path == tmp_path / "models" / "org" / "m"


def test_links_to_models_elsewhere_are_read(tmp_path: Path) -> None:
    write_model(tmp_path / "outside" / "real")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "outside" / "real")
    model = only(library(tmp_path / "models"))
    assert (model.id, model.deletable) == ("linked", False)


def test_a_folder_that_is_a_model_itself(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    assert (only(library(folder)).id, only(library(folder)).deletable) == ("m", False)


def test_single_models_given_from_outside(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "elsewhere" / "given")
    snapshot = write_repository(tmp_path / "cache", "org/cached")
    found = library(tmp_path, extra=[folder, snapshot, tmp_path / "absent"])
    about = {model.id: (model.repo_id, model.deletable) for model in found.models() if model.source != "embedded"}
    assert about == {"given": ("elsewhere/given", False), "cached": ("org/cached", False)}
    assert any("absent" in problem for problem in found.problems)


def test_folders_that_are_not_there_or_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "models" / "sound")
    for locked in ("locked-model", "locked-org"):
        (tmp_path / "models" / locked).mkdir()
    write_model(tmp_path / "models" / "locked-model")
    really = os.scandir

    def scandir(path: Any = ".") -> Any:
        if "locked" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (tmp_path / "a-file").touch()
    found = library(tmp_path / "models", tmp_path / "gone", tmp_path / "a-file", hub=tmp_path / "no-cache")
    assert listed(found) == ["sound"]
    told = found.problems
    assert len(told) == 4
    assert [
        name for name in ("gone", "a-file", "locked-org", "locked-model") if any(name in each for each in told)
    ] == [
        "gone",
        "a-file",
        "locked-org",
        "locked-model",
    ]
    monkeypatch.undo()
    found.refresh()
    assert listed(found) == ["locked-model", "sound"]


def test_a_folder_that_goes_away_during_use(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    found = library(tmp_path / "models")
    assert listed(found) == ["m"]
    (tmp_path / "models").rename(tmp_path / "moved")
    found.refresh()
    assert listed(found) == []
    with pytest.raises(ModelNotFound):
        found.get(str(folder))


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(30):
        write_model(tmp_path / f"m{i:02}")
    read: list[Path] = []
    really = facts.tensors
    monkeypatch.setattr(facts, "tensors", lambda folder: read.append(folder) or really(folder))
    found = library(tmp_path)
    assert len(found.models()) == 32
    assert len(read) == 30
    read.clear()
    found.models()
    found.refresh()
    assert read == []
    write_json(tmp_path / "m07" / "config.json", trees.TARGET | {"max_position_embeddings": 77})
    found.refresh()
    assert [folder.name for folder in read] == ["m07"]
    assert found.get("m07").context_length == 77


def test_a_change_is_seen_by_size_even_where_the_time_stands(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    found = library(tmp_path)
    assert listed(found) == ["m"]
    before = (folder / "model.safetensors").stat()
    write_weights(folder / "model.safetensors", lacking=2)
    os.utime(folder / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    found.refresh()
    assert listed(found) == []


def test_the_embedded_pair_is_listed_without_converting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "cache"))
    target, drafter = library().models()
    assert [target.id, drafter.id] == EMBEDDED
    assert (target.source, target.kind, target.problem, target.deletable) == ("embedded", "model", None, False)
    assert (target.model_type, target.quantization) == ("llama", "mixed 4/8-bit, group 32")
    assert (target.context_length, target.dflash_compatible, target.load_name) == (8192, True, "demo")
    assert drafter.drafter is not None
    assert (drafter.drafter.engine, drafter.quantization, drafter.load_name) == ("dflash2", "4-bit, group 64", "demo")
    assert not (tmp_path / "cache").exists()


def test_a_header_with_odd_entries_hides_only_its_own_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "odd")
    text = json.dumps({"model.embed_tokens.weight": {"dtype": 3, "shape": ["x"], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    write_model(tmp_path / "sound")
    assert "sound" in listed(library(tmp_path))
