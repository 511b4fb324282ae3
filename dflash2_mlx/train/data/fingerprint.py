"""What a target computes, told from its files alone: a copy has the same fingerprint, a fine-tune another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ... import hub
from ...errors import CheckpointError
from ...facts import tensors, weight_files
from ...pairs import DEMO

# Of every weight file this many stretches are read, evenly spread: a fine-tune changes at least whole matrices.
_SAMPLES = 1024
_SAMPLE_BYTES = 256
# Keys of config.json that change nothing of what is computed.
_IDLE_KEYS = ("_name_or_path", "transformers_version")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)


def target_folder(name: str) -> Path:
    """The folder of a target as the commands name it: the embedded one, a path or a Hub id. Raises ModelNotFound."""
    if name != DEMO:
        return hub.resolve(name)
    from ...demo.paths import target_path

    return target_path()


def fingerprint(folder: Path) -> str:
    """64 hexadecimal digits for the config, the tensors and samples of the weights, whatever their place and times.

    Raises CheckpointError for a folder that is no whole checkpoint.
    """
    config = {key: value for key, value in _config(folder).items() if key not in _IDLE_KEYS}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, tensor in sorted(tensors(folder).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
    for file in weight_files(folder):
        _sample(file, digest)
    return digest.hexdigest()


def tokenizer_fingerprint(folder: Path) -> str:
    """64 hexadecimal digits for what decides of text and ids: vocabulary, chat template and end tokens."""
    digest = hashlib.sha256(json.dumps(_config(folder).get("eos_token_id")).encode())
    for name in _TOKENIZER_FILES:
        path = folder / name
        if path.exists():
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): the model is not there, or only in part") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no JSON object: download the model again")
    return found


def _sample(file: Path, digest: Any) -> None:
    """Feed stretches of the file to the digest; a small file is fed whole."""
    size = file.stat().st_size
    digest.update(f"{size}\n".encode())
    with file.open("rb", buffering=0) as stream:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(stream.read())
            return
        for i in range(_SAMPLES):
            stream.seek(i * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
