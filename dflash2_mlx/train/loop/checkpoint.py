"""A training run's state on disk, all of it in one file: a kill at any point leaves the old one or the new one.

A run that goes on from a loaded state computes what it would have computed without the break, bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ...errors import CheckpointError, DFlashError
from ..data.tokens import write_arrays

VERSION = "2"
_WEIGHTS, _OPTIMIZER = "weights.", "optimizer."


@dataclass(frozen=True)
class State:
    """A run after `step` steps.

    `weights` are the drafter's by name, `optimizer` is mlx's `Optimizer.state` (a tree of arrays). `best` is JSON:
    what is known of the best evaluation so far. What is drawn hangs on the seed and the step alone (see `batches`).
    """

    step: int
    weights: Mapping[str, mx.array]
    optimizer: Mapping[str, Any]
    best: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """The drafter's weights alone, as they were after `step` steps."""

    step: int
    weights: dict[str, mx.array]


def save(folder: Path, state: State) -> None:
    """Replace the state that the folder holds; there must be room for both.

    Raises CheckpointError where it cannot be written, as on a full disk: the old state is still there.
    """
    arrays = {f"{_WEIGHTS}{name}": array for name, array in state.weights.items()}
    arrays |= tree_flatten(state.optimizer, prefix=f".{_OPTIMIZER[:-1]}", destination={})
    for name, array in arrays.items():
        if not isinstance(array, mx.array):
            raise TypeError(f"{name} is a {type(array).__name__}: a state holds arrays")
    said = {"step": state.step, "best": dict(state.best)}
    _write(_state_path(folder), arrays, said)


def exists(folder: Path) -> bool:
    """Whether the folder holds a state; it is not read."""
    return _state_path(folder).exists()


def steps_done(folder: Path) -> int | None:
    """After how many steps the state in the folder was saved; None without one. The arrays are not read.

    Raises CheckpointError as `load` does.
    """
    found = _read(_state_path(folder), _begin_anew(folder), arrays_too=False)
    return None if found is None else _step_of(found[1], _state_path(folder), _begin_anew(folder))


def load(folder: Path) -> State | None:
    """The state in the folder, its arrays evaluated; None where no save came to its end.

    Raises CheckpointError for a file that is damaged or was written in another version's layout.
    """
    path = _state_path(folder)
    remedy = _begin_anew(folder)
    found = _read(path, remedy)
    if found is None:
        return None
    arrays, said = found
    weights = _under(_WEIGHTS, arrays)
    optimizer: Any = tree_unflatten(_under(_OPTIMIZER, arrays))
    try:
        return State(int(said["step"]), weights, optimizer or {}, dict(said["best"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no state of a training run ({error!r}): {remedy}") from None


def save_weights(folder: Path, step: int, weights: Mapping[str, mx.array]) -> None:
    """Replace the weights that the folder holds, such as those of the best evaluation. Raises CheckpointError."""
    _write(_weights_path(folder), dict(weights), {"step": step})


def load_weights(folder: Path) -> Weights | None:
    """The weights in the folder, evaluated; None where there are none. Raises CheckpointError for a damaged file."""
    path = _weights_path(folder)
    remedy = f"remove {folder}; going on with the run writes it at the next best evaluation"
    found = _read(path, remedy)
    if found is None:
        return None
    arrays, said = found
    try:
        return Weights(int(said["step"]), arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds no weights of a training run ({error!r}): {remedy}") from None


def _begin_anew(folder: Path) -> str:
    return f"remove {folder} to begin this run anew, or give another --out"


def _step_of(said: Mapping[str, Any], path: Path, remedy: str) -> int:
    try:
        return int(said["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no state of a training run ({error!r}): {remedy}") from None


def _state_path(folder: Path) -> Path:
    return folder / "state.safetensors"


def _weights_path(folder: Path) -> Path:
    return folder / "weights.safetensors"


def _write(path: Path, arrays: dict[str, mx.array], said: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path.parent} cannot be made ({error.strerror}): give another --out") from None
    write_arrays(path, arrays, {"version": VERSION, "state": json.dumps(said)})


def _read(path: Path, remedy: str, *, arrays_too: bool = True) -> tuple[dict[str, mx.array], dict[str, Any]] | None:
    """The arrays by name, and what is said beside them. Unless `arrays_too`, the arrays must not be used."""
    if not path.exists():
        return None
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        if arrays_too:
            mx.eval(arrays)  # the file may be replaced from now on
        version = metadata.get("version")
        if version != VERSION:
            raise CheckpointError(
                f"{path} was written in layout {version}, this version of dflash2-mlx reads {VERSION}: "
                f"go on with the version that wrote it, or {remedy}"
            )
        said = json.loads(metadata["state"])
        if not isinstance(said, dict):
            raise ValueError("it says nothing of its run")
        return arrays, said
    except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
        if isinstance(error, DFlashError):
            raise
        raise CheckpointError(f"{path} is damaged ({error}): {remedy}") from None


def _under(prefix: str, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
