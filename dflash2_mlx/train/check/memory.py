"""What a training run will need, from the shapes alone: before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlx.utils import tree_flatten

from ...drafter.config import DrafterConfig
from ...drafter.model import DraftModel
from ...errors import RequestError
from ..data.tokens import SHARD
from ..recipe.values import Recipe
from ..rows.hidden import BATCH_TOKENS, LIKELIEST

_FLOAT = 4  # bytes of a weight, of its gradient and of each of AdamW's two moments, whatever the forward's precision
_HALF = 2  # bytes of a kept row's number
# What of an activation's size is there at once: itself, the gradient that comes back, and what lies between.
_BACKWARD = 2
# Of the logits of a micro batch, in float32: exponentials, law, gradients. Measured at 20,000 columns: 15.5 with
# the quick exponential on a CPU, 6.3 with mlx's own functions (AMD EPYC, 2026-11-30).
_LOGIT_COPIES = 16


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes. `weights` with their copies in the forward's precision, `summed` the gradient of a whole step.

    Of all micro batches that run at once: `gradients`, `activations`, and `columns` of the head with the logits on
    them. `rows` of the target's own forward where rows are computed; `disk` for the rows that are kept.
    """

    target: int
    weights: int
    optimizer: int
    summed: int
    gradients: int
    activations: int
    columns: int
    rows: int
    disk: int = 0

    @property
    def total(self) -> int:
        """Of memory: activations go as gradients come, and the target's forward runs before a step."""
        passing = max(self.gradients, self.activations + self.columns, self.rows)
        return self.target + self.weights + self.optimizer + self.summed + passing

    def lines(self) -> list[tuple[str, int]]:
        """Name and bytes of each part, for a table."""
        names = ("target", "weights", "optimizer", "summed", "gradients", "activations", "columns", "rows")
        return [(name, getattr(self, name)) for name in names]


def estimate(
    config: DrafterConfig,
    target_bytes: int,
    recipe: Recipe,
    *,
    tokens: int = 0,
    mean_length: int = 0,
    lanes: int = 1,
    item: int = _FLOAT,
    target_item: int = _HALF,
) -> MemoryEstimate:
    """Of a run on data of so many `tokens`, with `lanes` micro batches at once, its forward in numbers of `item` bytes.

    `mean_length` is that of a conversation, in tokens: the rows of a shard of them are written together.
    `target_bytes` are those of the loaded target, which computes in numbers of `target_item` bytes. An estimate: an
    allocator keeps some more.
    """
    count = parameters(config)
    copies = 0 if item == _FLOAT else lanes * count * item
    running = min(lanes, -(-recipe.loop.batch // recipe.loop.micro_batch))
    row = 2 * len(config.target_layer_ids) * config.hidden_size + 8 * LIKELIEST
    limit = int(recipe.rows_gb * 1e9)
    logits = BATCH_TOKENS * config.vocab_size * (target_item + _FLOAT)
    width = len(config.target_layer_ids) * config.hidden_size
    taps = BATCH_TOKENS * width * (target_item + _HALF)
    shard = 2 * SHARD * mean_length * width * _HALF  # as computed, and as written
    return MemoryEstimate(
        target=target_bytes,
        weights=count * _FLOAT + copies,
        optimizer=2 * count * _FLOAT,
        summed=count * _FLOAT,
        gradients=running * count * _FLOAT,
        activations=running * _activations(config, recipe, item),
        columns=_columns(config, recipe, running, item),
        rows=lanes * (logits + taps) + shard,
        disk=min(limit, tokens * row),
    )


def parameters(config: DrafterConfig) -> int:
    """How many numbers a drafter of that config has."""
    arrays: Any = tree_flatten(DraftModel(config).parameters())  # not computed until they are used
    return sum(int(array.size) for _, array in arrays)


def check(estimate: MemoryEstimate, available: int | None, free_disk: int | None = None) -> None:
    """Raises RequestError, with the figures and what makes them smaller, for what does not fit; None: not known."""
    if available is not None and estimate.total > available:
        largest, param, remedy = _largest(estimate)
        parts = ", ".join(f"{name} {_gb(size)}" for name, size in estimate.lines())
        raise RequestError(
            f"training needs about {_gb(estimate.total)} of memory and {_gb(available)} are free ({parts}). "
            f"Most is {largest}: {remedy}",
            param=param,
        )
    if free_disk is not None and estimate.disk > free_disk:
        raise RequestError(
            f"the target's rows take {_gb(estimate.disk)} of disk and {_gb(free_disk)} are free: use a smaller "
            f"--rows-gb (0 computes them anew each time) or make room",
            param="rows_gb",
        )


def _largest(estimate: MemoryEstimate) -> tuple[str, str, str]:
    """What weighs most: its name, the option that matters most for it, and what to do."""
    model = estimate.weights + estimate.optimizer + estimate.summed + estimate.gradients
    groups = [
        (estimate.target, "the target", "model", "give a quantised copy of it with --model"),
        (model, "the drafter", "layers", "use fewer --layers, a smaller --intermediate-size or --selector-rank"),
        (
            estimate.activations,
            "activations",
            "micro_batch",
            "use a smaller --micro-batch, fewer --anchors, smaller --max-tokens, or --checkpointing",
        ),
        (
            estimate.columns,
            "the head's columns",
            "frequent",
            "use fewer --frequent columns (not 0), no --full-steps, a smaller --micro-batch or fewer --anchors",
        ),
        (estimate.rows, "the target's rows", "model", "give a smaller target"),
    ]
    _, name, param, remedy = max(groups)
    return name, param, remedy


def _activations(config: DrafterConfig, recipe: Recipe, item: int) -> int:
    """Of one micro batch, forward and backward."""
    hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    context = recipe.loop.micro_batch * recipe.loop.max_tokens
    rows = recipe.loop.micro_batch * recipe.loss.anchors * config.block_size
    projected = (heads + 2 * kv_heads) * config.head_dim
    kernels = 8 * hidden + 4 * config.conv_kernel_size * hidden if config.has_conv else 0
    seen = recipe.loop.max_tokens + config.block_size
    # Residuals and norms, projections with norm and rope, scores and weights, the MLP's three products.
    of_row = 6 * hidden + 3 * projected + 3 * heads * seen + 4 * config.intermediate_size + kernels
    of_context = 6 * kv_heads * config.head_dim
    layer = rows * of_row + context * of_context
    if recipe.loop.checkpointing:  # one layer's, and the rows between layers
        layers = layer + config.num_hidden_layers * rows * hidden
    else:
        layers = config.num_hidden_layers * layer
    features = context * (len(config.target_layer_ids) + 2) * hidden
    return item * (_BACKWARD * layers + features)


def _columns(config: DrafterConfig, recipe: Recipe, running: int, item: int) -> int:
    loss = recipe.loss
    whole = loss.frequent <= 0 or loss.full_steps > 0
    count = config.vocab_size if whole else min(config.vocab_size, loss.frequent + loss.sampled)
    rows = recipe.loop.micro_batch * loss.anchors * (config.block_size - 1)
    return count * config.hidden_size * item + running * rows * count * _LOGIT_COPIES * _FLOAT


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
