"""A trainer for a recipe: the data's rows on disk, the held-out texts' rows, the order of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..drafter.model import DraftModel
from ..target.adapter import Target
from .dataset import Dataset
from .held_out import HeldOut
from .history import EvaluationLine, StepLine
from .lanes import open_lanes
from .loop import Trainer
from .recipe import Recipe
from .replay import record
from .row_store import GB, RowStore


def make_trainer(
    recipe: Recipe,
    target: Target,
    data: Dataset,
    model: DraftModel,
    folder: Path,
    *,
    rows_folder: Path,
    held_out: Sequence[HeldOut] = (),
    on_rows: Callable[[int, int], None] = lambda done, total: None,
    on_step: Callable[[StepLine], None] = lambda line: None,
    on_evaluation: Callable[[EvaluationLine], None] = lambda line: None,
    cancelled: Callable[[], bool] = bool,
) -> Trainer:
    """A trainer that is ready to run, at the state in `folder` where there is one.

    The target's rows are computed first, up to the recipe's limit: `on_rows` is told (shards done, all).
    """
    target = target.tapped(model.config.target_layer_ids)
    lanes = open_lanes()
    shards = [data.conversations_of(number) for number in range(data.shards)]
    store = RowStore(target, shards, rows_folder, int(recipe.rows_gb * GB), lanes)
    store.prepare(on_rows, cancelled)
    return Trainer(
        recipe,
        target,
        store,
        np.argsort(-data.frequencies(), kind="stable"),
        model,
        folder,
        held_out=record(target, held_out, lanes) if held_out else (),
        lanes=lanes,
        on_step=on_step,
        on_evaluation=on_evaluation,
        cancelled=cancelled,
    )
