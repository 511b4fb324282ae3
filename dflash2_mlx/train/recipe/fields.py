"""Every field of a recipe: where it stands, its range, and what its flag says. One table for file, flags and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .values import Recipe

Part = Literal["", "shape", "loss", "loop"]
Type = Literal["whole", "number", "switch", "text", "list"]

PARTS: tuple[Part, ...] = ("", "shape", "loss", "loop")
TITLES = {"": "what to train", "shape": "the drafter", "loss": "the loss", "loop": "the loop"}


@dataclass(frozen=True)
class Field:
    """One field. `part` is its table in the file, `empty` the word that stands for None there and on the command line.

    `flag` is the name on the command line where it is not `name`. Numbers lie in `low` … `high`, both included.
    """

    part: Part
    name: str
    type: Type
    help: str
    low: float = 0
    high: float = 1 << 31
    empty: str | None = None
    choices: Sequence[str] = ()
    flag: str | None = None

    @property
    def key(self) -> str:
        """Its name in messages and on the command line."""
        return self.flag or self.name

    def of(self, recipe: Recipe) -> Any:
        """Its value in a recipe."""
        return getattr(getattr(recipe, self.part) if self.part else recipe, self.name)


def _field(part: Part, type: Type) -> Callable[..., Field]:
    return lambda name, help, *range, **more: Field(part, name, type, help, *range, **more)


_text = _field("", "text")
_shape, _switch = _field("shape", "whole"), _field("shape", "switch")
_loss, _weight = _field("loss", "whole"), _field("loss", "number")
_loop, _rate = _field("loop", "whole"), _field("loop", "number")

FIELDS: tuple[Field, ...] = (
    _text("target", "target: a folder, a Hub id or demo", flag="model"),
    _text("data", "folder that `train data` has filled"),
    _text("start", "first weights: warm (from the target's own layers), random, or a drafter to go on from"),
    Field("", "rows_gb", "number", "disk for the target's hidden rows, GB; 0: computed anew each time", 0, 1e6),
    _text("held_out", "prompts for evaluation: a text file, one a line, or JSON Lines; own: our own", empty="own"),
    _shape("layers", "layers", 1, 64),
    _shape("block_size", "rows of a block, the anchor included", 2, 64),
    _shape("window", "tokens that a sliding layer sees; none: no layer slides", 2, 1 << 20, empty="none"),
    _shape("full_layers", "how many of the last layers see all of the context", 0, 64),
    Field("shape", "taps", "list", "tapped target layers, N,N,…; auto: five, spread", 0, 4096, empty="auto"),
    _shape("intermediate_size", "width of the MLPs; auto: the target's", 1, 1 << 20, empty="auto"),
    _switch("convolution", "grouped dynamic convolution at each sublayer"),
    _shape("conv_group_size", "channels that share a dynamic kernel", 1, 4096),
    _switch("selector", "path selector over the candidates"),
    _shape("selector_rank", "rank of the selector's codebooks", 1, 4096),
    _shape("selector_top_k", "candidates of a row", 2, 256),
    _shape("mask_token", "token id that stands for a row to draft; auto: an unused one", 0, 1 << 31, empty="auto"),
    _switch("causal", "a block's row sees earlier rows of its block only"),
    _loss("anchors", "blocks of one conversation in one step", 1, 1 << 16),
    _weight("decay", "drafted row i weighs exp(-i / X)", 1e-3, 1e6),
    _weight("distill", "share of the target's own law beside the token that it chose, 0 to 1", 0, 1),
    _weight("selector", "weight of the selector's loss", 0, 1e3, flag="selector_weight"),
    _loss("frequent", "frequent columns of the vocabulary that every step has; 0: all of it", 0, 1 << 24),
    _loss("sampled", "further columns, drawn anew for each step", 0, 1 << 24),
    _loss("full_steps", "last steps that see the whole vocabulary"),
    _loop("steps", "steps of the optimizer", 1),
    _loop("batch", "conversations of a step", 1, 1 << 20),
    _loop("micro_batch", "conversations of one forward; gradients are accumulated", 1, 1 << 20),
    _loop("max_tokens", "most tokens of a conversation; a longer one is cut to a stretch", 16, 1 << 20),
    _rate("learning_rate", "highest learning rate of AdamW", 1e-9, 1),
    _loop("warmup", "steps of linear warm-up"),
    _rate("final_share", "share of the learning rate that is left at the last step (cosine)", 0, 1),
    _rate("weight_decay", "weight decay of AdamW, on matrices", 0, 10),
    _rate("clip", "largest norm of the gradient", 1e-6, 1e6),
    Field(
        "loop",
        "precision",
        "text",
        "of the computation; weights stay float32; auto: bfloat16 on a GPU",
        choices=("auto", "float32", "bfloat16"),
    ),
    Field("loop", "checkpointing", "switch", "recompute activations in the backward pass, for memory"),
    _loop("evaluate_every", "steps between evaluations", 1),
    _loop("save_every", "steps between saved states", 1),
    _loop("patience", "evaluations without a better one before it stops; 0: never"),
    _loop("seed", "seed of weights, order and anchors"),
)
