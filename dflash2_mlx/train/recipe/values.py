"""What a training run is: the drafter's shape, what it learns from, and how. One object, one TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """The drafter. None: from the target, or the published checkpoints' way (see `design`)."""

    layers: int = 5
    block_size: int = 8
    window: int | None = 2048  # rows that a sliding layer sees; None: no layer slides
    full_layers: int = 0  # how many of the last layers see all of the context
    taps: tuple[int, ...] | None = None  # target layers; None: five, spread as in the published checkpoints
    intermediate_size: int | None = None
    convolution: bool = True
    conv_group_size: int = 16
    selector: bool = True
    selector_rank: int = 256
    selector_top_k: int = 16
    mask_token: int | None = None  # None: a token of the vocabulary that no text holds
    causal: bool = False  # whether a block's row sees earlier rows of its block only


@dataclass(frozen=True)
class Loss:
    """What is learnt from each block."""

    anchors: int = 32  # blocks of one conversation in one step
    decay: float = 4.0  # rows: the weight of drafted row i is exp(-i / decay)
    distill: float = 0.5  # share of the target's own law beside the token that it chose
    selector: float = 0.3  # weight of the selector's loss; at 1 it holds the rows back at first (docs/log.md)
    frequent: int = 6144  # columns of the vocabulary that every step has; 0: always all of it
    sampled: int = 2048  # further ones, drawn anew for each step
    full_steps: int = 0  # how many of the last steps see the whole vocabulary


@dataclass(frozen=True)
class Loop:
    """Steps and their size."""

    steps: int = 1000
    batch: int = 16  # conversations of one step
    micro_batch: int = 4  # of one forward; gradients are accumulated
    max_tokens: int = 2048  # a longer conversation is cut to a stretch of so many
    learning_rate: float = 1e-3
    warmup: int = 50  # steps
    final_share: float = 0.02  # of the learning rate at the last step
    weight_decay: float = 0.0  # of AdamW, on matrices
    clip: float = 1.0  # largest norm of the gradient
    precision: str = "auto"  # float32, bfloat16 (weights stay float32), auto: bfloat16 on a GPU
    checkpointing: bool = False  # recompute activations in the backward pass, for memory
    evaluate_every: int = 100
    save_every: int = 50
    patience: int = 0  # evaluations without a better one before it stops; 0: never
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """All of it. `target`, `data` and `start` are paths or ids as the commands take them."""

    target: str = "demo"
    data: str = "data"
    start: str = "warm"  # warm: from the target's own layers; random; or a drafter to go on from
    rows_gb: float = 20.0  # disk for the target's hidden rows; 0: computed anew each time
    held_out: str | None = None  # prompts for evaluation: a text or JSON Lines file; None: our own, a few of each kind
    shape: Shape = field(default_factory=Shape)
    loss: Loss = field(default_factory=Loss)
    loop: Loop = field(default_factory=Loop)
