"""The pair that comes with the package, listed without unpacking or converting anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash2_mlx.demo import paths
from dflash2_mlx.drafter.config import DrafterConfig, parse_config, read_config
from dflash2_mlx.errors import CheckpointError

from .listing import bytes_on_disk
from .models import DEMO, DEMO_DRAFTER, LocalModel
from .packing import describe

# Of SmolLM2-135M-Instruct, for as long as it is not converted; sizes as measured after a load.
_PACKED_BYTES = 115_156_224
_UNPACKED_BYTES = 538_060_032
_UNCONVERTED: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "torch_dtype": "float32",
    "quantization": {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}},
}


def pair() -> list[LocalModel]:
    """The embedded target and its drafter. The target's path is where it will be converted to."""
    from dflash2_mlx.pairs import target_facts  # imports mlx

    folder, config = paths.converted_path(), _target_config()
    target = LocalModel(
        id=DEMO,
        path=folder,
        source="embedded",
        repo_id=None,
        size=_target_size(folder),
        kind="model",
        model_type=str(config["model_type"]),
        quantization=describe(config),
        context_length=config.get("max_position_embeddings"),
        facts=target_facts(config),
        dflash_compatible=True,
        config=config,
    )
    return [target, _drafter()]


def unconverted_bytes(*, unpacked: bool) -> int:
    """Bytes of the target's weights before there are headers to read."""
    return _UNPACKED_BYTES if unpacked else _PACKED_BYTES


def _drafter() -> LocalModel:
    folder = paths.drafter_path()
    raw: dict[str, Any] = {}
    parsed: DrafterConfig | None = None
    problem = None
    try:
        raw = read_config(folder)
        parsed = parse_config(raw)
    except CheckpointError as error:
        problem = f"{error}; install this package again"
    return LocalModel(
        id=DEMO_DRAFTER,
        path=folder,
        source="embedded",
        repo_id=None,
        size=bytes_on_disk(folder),
        kind="drafter",
        model_type=str(raw.get("model_type", "unknown")),
        quantization=describe(raw),
        drafter=parsed,
        problem=problem,
        config=raw,
    )


def _target_config() -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((paths.converted_path() / "config.json").read_text(encoding="utf-8"))
        return _UNCONVERTED | config
    except (OSError, ValueError, TypeError):
        return dict(_UNCONVERTED)


def _target_size(folder: Path) -> int:
    """Of the converted target, else of the package that it is converted from; 0 where it has to be downloaded."""
    packaged = paths.packaged_gguf()
    return bytes_on_disk(folder) or (packaged.stat().st_size if packaged is not None else 0)
