"""A tiny random pair on disk whose drafter is often right, as repositories of the fake Hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import save_model

from tests.manager.fake_hub import DRAFTER, TARGET
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter
from tests.tiny_tokenizer import tokenizer

# The head's row of one is the other's turned round: one of them is always the likeliest.
_WORDS = (40, 41)
_CONFIDENCE = 30.0
# What the drafter's quantisation asks for: rows are made of groups of 64 weights.
_SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
_TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def agreeing_pair() -> dict[str, dict[str, bytes]]:
    """Target and drafter of block size 8. Both use the target's head, which knows two words only."""
    with tempfile.TemporaryDirectory() as name:
        target, drafter = Path(name) / "target", Path(name) / "drafter"
        model = write_target(target, tie_word_embeddings=False, **_SIZES)
        head = mx.zeros_like(model.lm_head.weight)
        for token, sign in zip(_WORDS, (1, -1), strict=True):
            head[token] = sign * _CONFIDENCE * model.lm_head.weight[_WORDS[0]]
        model.lm_head.weight = head
        save_model(target, model)
        words = tokenizer()
        words.chat_template = _TEMPLATE
        words.save_pretrained(str(target))
        write_drafter(drafter, tiny_drafter_config(model, block_size=8, **_SIZES))
        return {TARGET: _files(target), DRAFTER: _files(drafter)}


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
