"""The tokenizer files of a llama-family GGUF file, from its metadata: byte-level BPE with single digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError

# ggml's token type of control tokens, which text never spells.
_CONTROL = 3


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of tokenizer.json (the `tokenizers` library's format)."""
    model, splitter = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if (model, splitter) != ("gpt2", "smollm"):
        raise CheckpointError(f"the GGUF tokenizer is {model!r} with {splitter!r}, not 'gpt2' with 'smollm'")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(index, tokens[index]) for index in _control_ids(metadata)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The content of tokenizer_config.json, the chat template included."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]

    def token(kind: str) -> str:
        index: int = metadata[f"tokenizer.ggml.{kind}_token_id"].item()
        return tokens[index]

    return {
        # The plain class takes tokenizer.json as it is. GPT2Tokenizer, which the model's own files name,
        # puts its own splitter in, and the digits are no longer single.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "additional_special_tokens": [tokens[index] for index in _control_ids(metadata)],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"].item(),
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _control_ids(metadata: Mapping[str, Any]) -> list[int]:
    kinds: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    return [index for index, kind in enumerate(kinds) if kind == _CONTROL]


def _added_token(index: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, **flags, "special": True}
