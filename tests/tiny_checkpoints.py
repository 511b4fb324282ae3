"""Tiny pairs on disk, with a tokenizer of single bytes and a few words: what `load` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlx import nn
from mlx_lm.utils import save_config, save_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests import tiny
from tests.tiny_families import llama

END = "<|end|>"
SPECIAL = (END, "<|user|>")
# in the order of their merges; the last two end inside a character
WORDS = ("Ġt", "Ġs", "he", "Ġthe", "Ġa", "in", "er", "op", "Ġst", "Ġstop", "âĤ", "ðŁ")
VOCAB = 300


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, a few merges, two special tokens."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in WORDS:
        head, tail = _split(word, vocab)
        merges.append((head, tail))
        vocab[word] = len(vocab)
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, clean_up_tokenization_spaces=False)


def _split(word: str, vocab: dict[str, int]) -> tuple[str, str]:
    """The longest known start of a word, and the rest, which must be known too."""
    at = max(i for i in range(1, len(word)) if word[:i] in vocab and word[i:] in vocab)
    return word[:at], word[at:]


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
