"""The training loop: steps, evaluations and saves, and where it goes on after a kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ...drafter.model import DraftModel
from ...errors import CheckpointError
from ...target.adapter import Target
from ..data.tokens import Conversation
from ..lanes import Lanes
from ..learning.anchors import Blocks, sample_blocks
from ..learning.batches import conversations_of, micro_batches, step_generator
from ..learning.head import Columns, choose_ids, head_columns
from ..learning.loss import BlockBatch, LossParts
from ..learning.step import gradients, make_batch, position_weights, wanted_tokens
from ..recipe.values import Recipe
from ..reporting.history import EvaluationLine, StepLine
from ..rows.hidden import Rows
from ..rows.store import RowStore
from . import checkpoint
from .optimizer import DraftOptimizer
from .replay import Recorded, replay
from .schedule import learning_rate


@dataclass(frozen=True)
class Outcome:
    """After `step` steps: the best evaluation, and why it ended: "steps", "patience" or "cancelled"."""

    step: int
    best: EvaluationLine | None
    stopped: str


class Trainer:
    """Trains `model` on the conversations of `store`; goes on from the state in `folder` where there is one (`step`).

    `target` is prepared for the drafter's taps, `order` (V,) are the vocabulary's tokens from the most frequent on.
    """

    def __init__(
        self,
        recipe: Recipe,
        target: Target,
        store: RowStore,
        order: Any,
        model: DraftModel,
        folder: Path,
        *,
        held_out: Sequence[Recorded] = (),
        lanes: Lanes,
        on_step: Callable[[StepLine], None] = lambda line: None,
        on_evaluation: Callable[[EvaluationLine], None] = lambda line: None,
        cancelled: Callable[[], bool] = bool,
    ) -> None:
        self.recipe, self.target, self.store, self.order, self.model = recipe, target, store, order, model
        self.held_out, self.lanes = held_out, lanes
        self._state_folder, self._best_folder = folder / "state", folder / "best"
        self._on_step, self._on_evaluation, self._cancelled = on_step, on_evaluation, cancelled
        self._rate = learning_rate(recipe.loop)
        self._optimizer = DraftOptimizer(recipe.loop)
        self._places = [(i, j) for i, shard in enumerate(store.shards) for j in range(len(shard))]
        self._dtype = compute_dtype(recipe.loop.precision)
        self.step = 0
        self.best: EvaluationLine | None = None
        self._since_best = 0
        self._restore()

    def run(self) -> Outcome:
        """Train until the last step, until nothing gets better, or until cancelled; the state is saved then.

        Raises CheckpointError where a state cannot be written, and for a gradient that is not finite: before it reaches
        the weights, so that the state saved last is a good one.
        """
        loop = self.recipe.loop
        while self.step < loop.steps:
            if loop.patience and self._since_best >= loop.patience:
                return Outcome(self.step, self.best, "patience")
            if self._cancelled():
                self.save()
                return Outcome(self.step, self.best, "cancelled")
            line = self._one_step()
            self._on_step(line)
            last = self.step == loop.steps
            evaluate = bool(self.held_out) and (last or self.step % loop.evaluate_every == 0)
            if evaluate:
                self._evaluate()
            if evaluate or last or self.step % loop.save_every == 0:
                self.save()
        return Outcome(self.step, self.best, "steps")

    def save(self) -> None:
        """Keep the state, from which a run goes on as if it had not stopped."""
        best = None if self.best is None else vars(self.best)
        checkpoint.save(
            self._state_folder,
            checkpoint.State(
                step=self.step,
                weights=self._weights(),
                optimizer=self._optimizer.state,
                best={"line": best, "since": self._since_best},
            ),
        )

    def _restore(self) -> None:
        self._optimizer.init(self.model.trainable_parameters())
        state = checkpoint.load(self._state_folder)
        if state is None:
            return
        self.step = state.step
        self.model.load_weights(list(state.weights.items()))
        self._optimizer.state = dict(state.optimizer)
        if state.best.get("line"):
            self.best = EvaluationLine(**state.best["line"])
        self._since_best = int(state.best.get("since", 0))

    def _weights(self) -> dict[str, mx.array]:
        return dict(tree_flatten(self.model.trainable_parameters()))

    def _one_step(self) -> StepLine:
        begun = time.monotonic()
        recipe, generator = self.recipe, step_generator(self.step, self.recipe.loop.seed)
        conversations, rows = self._conversations(generator)
        blocks = [
            sample_blocks([one], recipe.loss.anchors, self.model.config.block_size, generator) for one in conversations
        ]
        weights = [position_weights(one, recipe.loss.decay) for one in blocks]
        total = max(float(sum(one.sum() for one in weights)), 1e-9)
        groups = micro_batches([len(one) for one in conversations], recipe.loop.micro_batch)
        batches = [
            make_batch(
                joined([blocks[i] for i in group]),
                [rows[i] for i in group],
                (np.concatenate([weights[i] for i in group]) / total).astype(np.float32),
            )
            for group in groups
        ]
        mx.eval(batches)
        rate = self._rate(self.step)
        parts, norm = self._update(batches, self._columns(batches, generator), rate)
        self.step += 1
        return step_line(
            self.step,
            parts,
            seconds=time.monotonic() - begun,
            tokens=sum(map(len, conversations)),
            learning_rate=rate,
            grad_norm=norm,
        )

    def _update(self, batches: Sequence[Any], columns: Columns, rate: float) -> tuple[LossParts, float]:
        loop = self.recipe.loop
        parts, gradient = gradients(
            self.model,
            self.target,
            batches,
            columns,
            self.recipe.loss,
            self.lanes,
            dtype=self._dtype,
            checkpointing=loop.checkpointing,
        )
        gradient, size = self._optimizer.clipped(gradient, loop.clip)
        norm = _number(size)
        if not math.isfinite(norm):
            raise CheckpointError(
                f"step {self.step + 1}: the gradient is not finite (loss {_number(parts.loss):.3g}). "
                "What was saved last is kept; train with a lower --learning-rate in another --out"
            )
        self._optimizer.set_rate(rate)
        self._optimizer.update(self.model, gradient)
        mx.eval(self.model.parameters(), self._optimizer.state)
        return parts, norm

    def _conversations(self, generator: np.random.Generator) -> tuple[list[Conversation], list[Rows]]:
        """Those of this step with their rows, cut to a stretch where they are too long."""
        loop = self.recipe.loop
        numbers = conversations_of(self.step, loop.batch, len(self._places), loop.seed)
        places = [self._places[i] for i in numbers]
        pairs = zip([self.store.shards[i][j] for i, j in places], self.store.rows(places), strict=True)
        cut = [stretch(one, rows, loop.max_tokens, generator) for one, rows in pairs]
        return [one for one, _ in cut], [rows for _, rows in cut]

    def _columns(self, batches: Sequence[BlockBatch], generator: np.random.Generator) -> Columns:
        loss = self.recipe.loss
        whole = self.step >= self.recipe.loop.steps - loss.full_steps
        wanted = np.unique(np.concatenate([wanted_tokens(batch) for batch in batches]))
        ids, correction = choose_ids(self.order, wanted, 0 if whole else loss.frequent, loss.sampled, generator)
        return head_columns(self.target, ids, correction, self._dtype)

    def _evaluate(self) -> None:
        line = replay(self.model, self.target, self.held_out, self.step, self.lanes)
        if self.best is None or line.tokens_per_cycle > self.best.tokens_per_cycle:
            self.best, self._since_best = line, 0
            checkpoint.save_weights(self._best_folder, self.step, self._weights())
        else:
            self._since_best += 1
        self._on_evaluation(line)


def compute_dtype(precision: str) -> mx.Dtype:
    """What the forward runs in: `auto` is bfloat16 on a GPU and float32 on a CPU, where bfloat16 is slow."""
    if precision == "auto":
        precision = "float32" if mx.default_device().type == mx.DeviceType.cpu else "bfloat16"
    return mx.bfloat16 if precision == "bfloat16" else mx.float32


def stretch(
    conversation: Conversation, rows: Rows, most: int, generator: np.random.Generator
) -> tuple[Conversation, Rows]:
    """A conversation of at most `most` tokens; of a longer one some part that the target wrote in."""
    if len(conversation) <= most:
        return conversation, rows
    written = np.flatnonzero(conversation.mask)
    middle = int(generator.choice(written)) if len(written) else 0
    first = min(max(0, middle - most // 2), len(conversation) - most)
    part = slice(first, first + most)
    cut = Conversation(conversation.tokens[part], conversation.mask[part], conversation.temperature)
    return cut, Rows(rows.taps[part], rows.ids[part], rows.logits[part])


def joined(blocks: Sequence[Blocks]) -> Blocks:
    """Blocks of some conversations as one, padded to the longest, in steps so that shapes change seldom."""
    longest = max(one.tokens.shape[1] for one in blocks)
    longest += -longest % _LENGTHS
    padded = [np.pad(one.tokens, ((0, 0), (0, longest - one.tokens.shape[1]))) for one in blocks]
    return Blocks(np.concatenate(padded), *(np.concatenate([getattr(one, name) for one in blocks]) for name in _REST))


_LENGTHS = 32
_REST = ("anchors", "truth", "learnt")


def step_line(
    step: int, parts: LossParts, *, seconds: float, tokens: int, learning_rate: float, grad_norm: float
) -> StepLine:
    """A step's figures: shares by position of the rows that were learnt."""
    best, within, counted = (np.array(array) for array in (parts.best, parts.within, parts.counted))
    rows = np.maximum(counted, 1)
    return StepLine(
        step=step,
        seconds=seconds,
        tokens=tokens,
        blocks=int(counted[0]),
        loss=_number(parts.loss),
        ce=_number(parts.ce),
        selector=_number(parts.selector),
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        top1=[float(x) for x in best / rows],
        recall=[float(x) for x in within / rows],
    )


def _number(scalar: mx.array) -> float:
    return float(np.array(scalar))
