"""The target that a drafter is measured with: loaded once, with its prompts, for every measurement of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash2_mlx import pairs
from dflash2_mlx.drafter.config import DrafterConfig
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import PairError, RequestError
from dflash2_mlx.prompts import digest, own

from .measure import Acceptance, Progress, acceptance
from .prompts import chosen, token_ids


@dataclass(frozen=True)
class Measuring:
    """How acceptance is measured: so many prompts, up to so many tokens each; block size None is the checkpoint's."""

    prompts: int = 7
    tokens: int = 64
    block_size: int | None = None

    def check(self, config: DrafterConfig) -> None:
        """Raises RequestError for numbers that cannot be, before a model is loaded."""
        most = len(own())
        if not 1 <= self.prompts <= most:
            raise RequestError(f"prompts {self.prompts}: there are {most} of them, use 1 to {most}", param="prompts")
        if self.tokens < 2:
            raise RequestError(
                f"tokens {self.tokens}: no cycle begins before the second, use 2 or more", param="tokens"
            )
        if self.block_size is not None and not 2 <= self.block_size <= config.block_size:
            raise RequestError(
                f"block size {self.block_size}: it must be from 2 to {config.block_size}, the checkpoint's",
                param="block_size",
            )


class MeasuredTarget:
    """A loaded target with prompts in its own token ids."""

    def __init__(self, pair: pairs.Pair, measuring: Measuring) -> None:
        self.pair = pair
        self.measuring = measuring
        prompts = chosen(measuring.prompts)
        self.digest = digest(prompts)
        self.prompts = token_ids(pair.tokenizer, prompts)
        self.eos = frozenset(pair.tokenizer.eos_token_ids) if pair.tokenizer else frozenset()

    def acceptance(self, drafter_folder: Path, progress: Progress) -> Acceptance:
        """Of the drafter in a folder, by real decoding, computing as `load` lets it compute."""
        drafter = load_drafter(drafter_folder, dtype=self.pair.target.drafter_dtype, dequantize=pairs.packed_is_slow())
        return acceptance(
            self.pair.target,
            drafter,
            self.prompts,
            tokens=self.measuring.tokens,
            block_size=self.measuring.block_size,
            eos_token_ids=self.eos,
            progress=progress,
        )


def load_measured(name: str, config: DrafterConfig, measuring: Measuring, progress: pairs.Progress) -> MeasuredTarget:
    """Load the target `name` (a folder, a Hub id or `demo`) for a drafter with that config.

    Raises PairError when they do not fit, besides what `pairs.load` raises.
    """
    pair = pairs.load(name, None, progress=progress)
    reasons = pairs.misfits(config, pair.facts)
    if reasons:
        raise PairError(f"{name} is not this drafter's target: {'; '.join(reasons)}")
    return MeasuredTarget(pair, measuring)
