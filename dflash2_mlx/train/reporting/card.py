"""The model card of a trained drafter: for which target, from what, by which recipe, and what it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from huggingface_hub import ModelCardData

from ...demo.paths import HUB_ID
from ...drafter.config import DrafterConfig
from ...hub import shown_name
from ...pairs import DEMO
from ..recipe.values import Recipe
from ..wording import counted, several
from .history import EvaluationLine

RECIPE_FILE = "recipe.toml"


@dataclass(frozen=True)
class CardFacts:
    """What the card tells besides the config. The recipe's paths are shown by their last part.

    `digest`, `conversations`, `answer_tokens` and `kinds` are the dataset's; `step` those that were trained;
    `acceptance` is of `prompts` held-out prompts, up to `tokens` tokens each.
    """

    recipe: Recipe
    digest: str
    conversations: int
    answer_tokens: int
    step: int
    kinds: Mapping[str, int] = field(default_factory=dict)
    acceptance: EvaluationLine | None = None
    prompts: int = 0
    tokens: int = 0


def card(name: str, config: DrafterConfig, facts: CardFacts, size: int) -> str:
    """The card's text, metadata first, for a drafter in a folder of that name whose weights have `size` bytes."""
    target = shown_name(facts.recipe.target)
    kind = "DFlash 2" if config.is_dflash2 else "DFlash"
    about = (
        f"A {kind} drafter for `{target}`, trained with dflash2-mlx. It fits this target alone, whose hidden rows it "
        "reads and through whose head it writes."
    )
    parts = [
        _front_matter(facts.recipe.target),
        f"# {name}",
        about,
        f"```\ndflash2-mlx chat --model {target} --draft OWNER/NAME\n```",
        "OWNER/NAME is this drafter's id on the Hub, or the path of its folder.",
        _table(("", ""), _shape(config, size)),
        "## Training",
        _training(facts, target),
        "## Acceptance",
        _acceptance(config, facts),
    ]
    return "\n\n".join(parts) + "\n"


def public_recipe(recipe: Recipe) -> Recipe:
    """The recipe without what its paths tell of somebody's disk."""
    held_out = None if recipe.held_out is None else Path(recipe.held_out).name
    start = recipe.start if recipe.start in ("warm", "random") else shown_name(recipe.start)
    return replace(
        recipe, target=shown_name(recipe.target), data=Path(recipe.data).name, start=start, held_out=held_out
    )


def _front_matter(target: str) -> str:
    known = HUB_ID if target == DEMO else target if "/" in shown_name(target) else None
    data = ModelCardData(
        base_model=None if known is None else shown_name(known),
        library_name="mlx",
        tags=["mlx", "dflash", "speculative-decoding"],
    )
    return f"---\n{data.to_yaml().strip()}\n---"


def _shape(config: DrafterConfig, size: int) -> list[tuple[str, str]]:
    sliding = config.layer_types.count("sliding_attention")
    layers = f"{config.num_hidden_layers}" + (
        f", {sliding} of them see {config.sliding_window} tokens" if sliding else ""
    )
    selector = f"rank {config.selector_rank}, {config.selector_top_k} candidates" if config.has_selector else "none"
    return [
        ("block size", f"{config.block_size} (the anchor included)"),
        ("layers", layers),
        ("taps", f"{', '.join(map(str, config.target_layer_ids))} of {config.num_target_layers}"),
        ("mask token", str(config.mask_token_id)),
        ("convolution", "yes" if config.has_conv else "none"),
        ("path selector", selector),
        ("weights", f"{size / 1e6:,.1f} MB, bfloat16"),
    ]


def _training(facts: CardFacts, target: str) -> str:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in facts.kinds.items())
    return (
        f"{facts.step:,} steps of {facts.recipe.loop.batch} conversations, drawn from {facts.conversations:,} in which "
        f"`{target}` wrote {facts.answer_tokens:,} tokens (digest {facts.digest}{'; ' + kinds if kinds else ''}). "
        f"`{RECIPE_FILE}` beside this card has every setting: `dflash2-mlx train --recipe {RECIPE_FILE}` trains such a "
        "one anew, on data made by `dflash2-mlx train data`."
    )


def _acceptance(config: DrafterConfig, facts: CardFacts) -> str:
    line = facts.acceptance
    if line is None:
        return "Not measured."
    rows = [("all", f"{line.tokens_per_cycle:.3f}")]
    rows += [(kind, f"{rate:.3f}") for kind, rate in several(line.by_kind).items()]
    stands = [(str(i), f"{share:.3f}") for i, share in enumerate(line.accepted_by_position, start=1)]
    how = (
        f"Greedy decoding in blocks of {config.block_size} after step {line.step:,}: "
        f"{counted(facts.prompts, 'held-out prompt')}, up to {facts.tokens} tokens each. "
        f"Plain decoding has 1 token per cycle, {config.block_size} are the most."
    )
    return "\n\n".join([how, _table(("prompts", "tokens per cycle"), rows), _table(("draft", "accepted"), stands)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
