"""Whether a training fits into the memory and the disk of this machine, told before weights are loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

from ... import machine, pairs
from ...errors import CheckpointError
from ...facts import target_bytes, tensors
from ...pairs import DEMO
from ..lanes import lane_count
from ..loop.trainer import compute_dtype
from . import memory
from .prepared import Prepared

_KEPT_COPIES = 2  # of a file that is replaced whole: the old one is there until the new one is


def check_room(prepared: Prepared, out: Path) -> memory.MemoryEstimate:
    """What a training in the folder `out` will need.

    Raises RequestError for memory, and for the rows' disk, CheckpointError for that of the run itself.
    """
    recipe, dtype = prepared.recipe, prepared.target_dtype
    unpacked = recipe.target == DEMO and pairs.packed_is_slow()
    size = target_bytes(tensors(prepared.folder), prepared.target_config, dtype=dtype, unpacked=unpacked)
    estimate = memory.estimate(
        prepared.config,
        size,
        recipe,
        tokens=prepared.data.tokens,
        mean_length=prepared.data.tokens // max(1, prepared.data.conversations),
        lanes=lane_count(),
        item=compute_dtype(recipe.loop.precision).size,
        target_item=4 if dtype == "float32" else 2,
    )
    rows = sum(path.stat().st_size for path in prepared.rows.glob("*.safetensors"))  # of a run before
    memory.check(estimate, machine.memory().available, _free(prepared.rows) + rows)
    state = _KEPT_COPIES * (estimate.optimizer + estimate.optimizer // 2) + estimate.optimizer
    if state > _free(out):
        raise CheckpointError(
            f"{out} needs {state / 1e9:.2f} GB for the run's state and its drafter and there are "
            f"{_free(out) / 1e9:.2f} GB: make room, or give another --out"
        )
    return estimate


def _free(path: Path) -> int:
    """Bytes that are free where `path` is, or will be."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
