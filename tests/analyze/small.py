"""A tiny pair with so small a vocabulary that a random drafter is right now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import numpy as np

from dflash2_mlx.analyze.text import RecordedText
from dflash2_mlx.analyze.writing import write_text
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.analyze.dense import Dense
from tests.tiny_drafters import drafter_weights, tiny_drafter_config, tiny_v1_config, write_drafter
from tests.tiny_families import NAMED

WINDOW = 16
# With these the random drafter's accepted prefixes have every length.
VOCAB, SEED = 6, 6


@dataclass(frozen=True, eq=False)
class Small:
    """A pair, its drafter's config, and an untouched model of the target's weights."""

    pair: Pair
    config: dict[str, Any]
    plain: Any

    @property
    def table(self) -> np.ndarray:
        return np.array(self.plain.model.embed_tokens.weight)

    def dense(self, **switches: bool) -> Dense:
        weights = {name: np.array(value, np.float64) for name, value in drafter_weights(self.config, SEED).items()}
        return Dense(self.config, weights, **switches)

    def taps(self, ids: Sequence[int]) -> list[np.ndarray]:
        """Of an unbroken forward, (n, H) each."""
        _, taps = self.pair.target.with_taps(mx.array([list(ids)]), self.pair.target.new_cache())
        return [np.array(tap[0], np.float64) for tap in taps]

    def embedded(self, anchor: int) -> np.ndarray:
        dflash = self.config["dflash_config"]
        return self.table[[anchor, *[dflash["mask_token_id"]] * (dflash["block_size"] - 1)]].astype(np.float64)

    def log_laws(self, ids: Sequence[int]) -> np.ndarray:
        """The target's log-probabilities (n, V) after each token."""
        logits = np.array(self.plain(mx.array([list(ids)]))[0], np.float64)
        shifted = logits - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@cache
def small(*, vocab: int = VOCAB, block_size: int = 5, first_generation: bool = False) -> Small:
    """The pair; block size 5 drafts four tokens of four candidates each."""
    config = {**NAMED["llama"](WINDOW), "vocab_size": vocab, "tie_word_embeddings": False}
    plain, tapped = (tiny.build_config(config) for _ in range(2))
    make = tiny_v1_config if first_generation else tiny_drafter_config
    drafter_config = make(plain, block_size=block_size)
    with TemporaryDirectory() as folder:
        drafter = load_drafter(write_drafter(Path(folder), drafter_config, SEED), dtype="float32")
        mx.eval(drafter.model.parameters())
    return Small(Pair(Target(tapped), drafter, config=config), drafter_config, plain)


@cache
def written(
    of: Small, *, tokens: int = 40, temperature: float = 0.0, kind: str = "prose", seed: int = 0, length: int = 9
) -> RecordedText:
    prompt = tiny.random_prompt(length + seed, seed=seed, vocab=of.pair.target.vocab_size)
    return write_text(of.pair, prompt, kind, tokens=tokens, temperature=temperature, seed=seed)
