"""Folders as people have them, with weight files that are all header and no data on disk."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tiny_families import llama

Config = dict[str, Any]

TARGET: Config = {**llama(16), "architectures": ["LlamaForCausalLM"]}
DRAFTER: Config = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": TARGET["hidden_size"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": TARGET["vocab_size"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "num_target_layers": TARGET["num_hidden_layers"],
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
MATRIX = {"model.embed_tokens.weight": ("BF16", (256, 32))}
_BYTES = {"F32": 4, "BF16": 2, "U32": 4}

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def write_weights(file: Path, shapes: Shapes = MATRIX, *, lacking: int = 0) -> Path:
    """A safetensors file; the data is a hole, and its last `lacking` bytes are not there."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        size = _BYTES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end - lacking)
    return file


def write_json(file: Path, content: object) -> Path:
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def write_model(folder: Path, config: Config | None = None, shapes: Shapes = MATRIX) -> Path:
    """A complete model, or drafter by its config."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", TARGET if config is None else config)
    write_json(folder / "tokenizer.json", {})
    write_weights(folder / "model.safetensors", shapes)
    return folder


def write_drafter(folder: Path, **changes: Any) -> Path:
    return write_model(folder, DRAFTER | changes)


def write_shards(folder: Path, count: int, *, missing: Sequence[int] = ()) -> Path:
    """A model in shards with an index; those of `missing` are not there."""
    write_model(folder)
    (folder / "model.safetensors").unlink()
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    write_json(folder / "model.safetensors.index.json", {"weight_map": {f"{name}.w": name for name in names}})
    for i, name in enumerate(names, start=1):
        if i not in missing:
            write_weights(folder / name, {f"{name}.w": ("BF16", (10,))})
    return folder


def write_repository(cache: Path, repo_id: str, config: Config | None = None, *, commit: str = "a" * 40) -> Path:
    """A repository in a Hub cache: blobs, a snapshot of links to them, refs/main. Gives the snapshot back."""
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot, blobs, refs = repository / "snapshots" / commit, repository / "blobs", repository / "refs"
    for folder in (blobs, refs):
        folder.mkdir(parents=True, exist_ok=True)
    write_model(snapshot, config)
    for file in sorted(snapshot.iterdir()):
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        file.replace(blob)
        file.symlink_to(Path("../../blobs") / blob.name)
    (refs / "main").write_text(commit)
    return snapshot


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
