"""All that can be told before weights are read: the data, its target, the drafter's config, the held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.utils import load_tokenizer

from ...drafter.config import DrafterConfig, read_config
from ...errors import CheckpointError, PairError
from ...facts import embedding_rows, tensors
from ...pairs import TargetFacts, target_facts
from ...prompts import Prompt, digest
from ..data.dataset import Dataset, check_target, open_dataset
from ..data.fingerprint import fingerprint, target_folder, tokenizer_fingerprint
from ..data.held_out import held_out_prompts, prompt_ids
from ..loop.trainer import compute_dtype
from ..recipe.values import Recipe
from ..rows.store import rows_folder
from ..start.design import design
from .content import content_of

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class Prepared:
    """A checked run. `folder` is the target's, `fingerprint` stands for what it computes."""

    recipe: Recipe
    data: Dataset
    folder: Path
    fingerprint: str
    target_config: dict[str, Any]
    facts: TargetFacts
    config: DrafterConfig
    prompts: list[Prompt]
    leaked: int  # held-out prompts that are in the data
    masks: int  # how often the mask token stands in the data's answers

    @property
    def target_dtype(self) -> str | None:
        """The target's compute type: float32 where the drafter's is, as on a CPU, so that nothing hangs on rounding."""
        return "float32" if compute_dtype(self.recipe.loop.precision) == mx.float32 else None

    @property
    def rows(self) -> Path:
        """Where the target's rows for this data and these taps are kept."""
        computed = f"{self.fingerprint} {self.data.digest} {self.target_dtype}"
        return rows_folder(self.data.folder, computed, self.config.target_layer_ids)

    @property
    def reasoning(self) -> str | None:
        """The mode in which the data's answers were written."""
        return (self.data.options or {}).get("reasoning")

    @property
    def identity(self) -> dict[str, str]:
        """What a run must keep from its begin to its end, by name."""
        return {"target": self.fingerprint, "data": self.data.digest, "held_out": digest(self.prompts)}


def prepare(recipe: Recipe) -> Prepared:
    """Check a recipe against the files that it names; no weights are loaded.

    Raises RequestError, CheckpointError (also for data that teaches nothing), ModelNotFound, or PairError where the
    data is another target's.
    """
    prompts = held_out_prompts(None if recipe.held_out is None else Path(recipe.held_out).expanduser())
    data = open_dataset(Path(recipe.data).expanduser())
    folder = target_folder(recipe.target)
    raw = read_config(folder)
    facts = target_facts(raw, embedding_rows(tensors(folder)))
    stands_for = fingerprint(folder)
    check_target(data, recipe.target, stands_for, facts)
    if tokenizer_fingerprint(folder) != data.tokenizer_fingerprint:
        raise PairError(
            f"the data in {data.folder} was prepared with another tokenizer or chat template than {recipe.target} has "
            "now: prepare it again, or put the tokenizer's files back"
        )
    tokenizer = _tokenizer(folder, raw)
    config = design(recipe.shape, raw, facts, tokenizer)
    reasoning = (data.options or {}).get("reasoning")
    held_out = {prompt_ids(tokenizer, prompt.messages, reasoning) for prompt in prompts}
    content = content_of(data, held_out, config.mask_token_id)
    return Prepared(
        recipe=recipe,
        data=data,
        folder=folder,
        fingerprint=stands_for,
        target_config=raw,
        facts=facts,
        config=config,
        prompts=prompts,
        leaked=content.leaked,
        masks=content.masks,
    )


def _tokenizer(folder: Path, raw: dict[str, Any]) -> TokenizerWrapper:
    try:
        found: TokenizerWrapper = load_tokenizer(folder, eos_token_ids=raw.get("eos_token_id"))
        return found
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {error}") from None
