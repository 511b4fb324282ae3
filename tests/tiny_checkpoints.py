"""Tiny pairs on disk, what `load` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlx import nn
from mlx_lm.utils import save_config, save_model

from tests import tiny
from tests.tiny_families import llama
from tests.tiny_tokenizer import tokenizer

VOCAB = 300


def write_tokenizer(folder: Path) -> None:
    tokenizer().save_pretrained(str(folder))


def write_target(folder: Path, *, seed: int = 0, window: int = 16, **config: Any) -> nn.Module:
    """Writes a target of the llama family with a tokenizer, and gives the model back."""
    full = {**llama(window), "vocab_size": VOCAB, "architectures": ["LlamaForCausalLM"], **config}
    model = tiny.build_config(full, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    save_config(dict(full), folder / "config.json")
    write_tokenizer(folder)
    return model


def write_defaults(folder: Path, **values: Any) -> None:
    """The sampling parameters that the checkpoint suggests."""
    (folder / "generation_config.json").write_text(json.dumps(values))
