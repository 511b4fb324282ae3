"""A tiny target with its own greedy text, and what a training run needs of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.config import DrafterConfig, parse_config
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.train.data.tokens import Conversation
from dflash2_mlx.train.lanes import Lanes, open_lanes
from dflash2_mlx.train.learning.anchors import Blocks, sample_blocks
from dflash2_mlx.train.learning.head import Columns, choose_ids, head_columns
from dflash2_mlx.train.learning.loss import BlockBatch
from dflash2_mlx.train.learning.step import make_batch, position_weights
from dflash2_mlx.train.rows.hidden import Rows, compute_rows
from tests.tiny import build, plain_greedy, random_prompt
from tests.tiny_drafters import drafter_weights, tiny_drafter_config

PROMPT = 6


@dataclass(frozen=True)
class Subject:
    """A target, some of its greedy text, and a random drafter for it."""

    model: Any
    target: Target
    raw: dict[str, Any]  # the drafter's config.json
    config: DrafterConfig
    drafter: DraftModel
    conversations: list[Conversation]
    rows: list[Rows]
    lanes: Lanes


def greedy_text(model: Any, count: int, tokens: int) -> list[Conversation]:
    """`count` conversations with random prompts, each of `tokens` tokens that the target wrote."""
    found = []
    for seed in range(count):
        prompt = random_prompt(PROMPT + seed % 3, seed=seed + 1)
        text = [*prompt, *plain_greedy(model, prompt, tokens)]
        found.append(Conversation(np.array(text, np.int32), np.arange(len(text)) >= len(prompt)))
    return found


def subject(family: str = "llama", *, count: int = 3, tokens: int = 24, seed: int = 0, **config: Any) -> Subject:
    """Everything of one family; `config` overrides the drafter's config.json."""
    model = build(family)
    raw = tiny_drafter_config(model, **config)
    parsed = parse_config(raw)
    target = Target(model).tapped(parsed.target_layer_ids)
    drafter = drafter_model(parsed, raw, seed)
    lanes = open_lanes(2)
    conversations = greedy_text(model, count, tokens)
    rows = compute_rows(target, conversations, lanes)
    return Subject(model, target, raw, parsed, drafter, conversations, rows, lanes)


def drafter_model(config: DrafterConfig, raw: dict[str, Any], seed: int = 0) -> DraftModel:
    """With random float32 weights of a sensible size."""
    model = DraftModel(config)
    names = dict(tree_flatten(model.parameters()))
    weights = DraftModel.sanitize(drafter_weights(raw, seed))
    model.load_weights([(name, array) for name, array in weights.items() if name in names])
    mx.eval(model.parameters())
    return model


def whole_columns(target: Target) -> Columns:
    """The whole vocabulary."""
    ids, correction = choose_ids(np.arange(target.vocab_size), np.array([], np.int32), 0, 0, np.random.default_rng(0))
    return head_columns(target, ids, correction, mx.float32)


def batch_of(one: Subject, anchors: int = 4, seed: int = 0) -> tuple[BlockBatch, Blocks]:
    """Random blocks of all conversations."""
    blocks = sample_blocks(one.conversations, anchors, one.config.block_size, np.random.default_rng(seed))
    weights = position_weights(blocks, 4.0)
    return make_batch(blocks, one.rows, (weights / weights.sum()).astype(np.float32)), blocks


def with_tokens(conversation: Conversation, tokens: Any) -> Conversation:
    """The same mask over other tokens."""
    return replace(conversation, tokens=np.asarray(tokens, np.int32))


def data_folder(path: Path) -> Path:
    """A place for shards."""
    path.mkdir(parents=True, exist_ok=True)
    return path
