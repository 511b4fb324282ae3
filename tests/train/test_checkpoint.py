"""A run's state on disk: exact, whole or the one before, and clear words for what cannot be used."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.optimizers import AdamW
from mlx.utils import tree_flatten

from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.train.data import tokens
from dflash2_mlx.train.loop.checkpoint import State, load, load_weights, save, save_weights


class Killed(BaseException):
    """Stands for a kill: nothing of the program handles it."""


class Net(nn.Module):
    """Layers in a list, some without parameters, as a drafter has them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.RoPE(4), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2, bias=False)]
        self.scale = mx.array(1.5)

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def train(model: Net, optimizer: AdamW, steps: range) -> None:
    for step in steps:
        rows = mx.random.normal((3, 5, 4), key=mx.random.key(step))
        _, gradients = nn.value_and_grad(model, lambda model, x: mx.square(model(x) - 1).mean())(model, rows)
        optimizer.learning_rate = 0.01 / (step + 1)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)


def started() -> tuple[Net, AdamW]:
    mx.random.seed(5)
    return Net(), AdamW(learning_rate=0.01, weight_decay=0.1)


def flat(tree: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(tree))


def small(step: int) -> State:
    return State(step, {"w": mx.full((50,), step)}, {"step": mx.array(step, mx.uint64)})


def assert_equal(found: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array).item(), name


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, optimizer = started()
    train(model, optimizer, range(7))
    expected, expected_optimizer = flat(model.parameters()), flat(optimizer.state)

    model, optimizer = started()
    train(model, optimizer, range(3))
    save(tmp_path / "state", State(3, flat(model.parameters()), optimizer.state))

    mx.random.seed(99)
    model, optimizer = Net(), AdamW(learning_rate=0.5, weight_decay=0.1)
    state = load(tmp_path / "state")
    assert state is not None
    model.load_weights(list(state.weights.items()))
    optimizer.state = dict(state.optimizer)
    train(model, optimizer, range(state.step, 7))
    assert_equal(flat(model.parameters()), expected)
    assert_equal(flat(optimizer.state), expected_optimizer)
    assert optimizer.step.item() == 7


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    weights = {"a.b": mx.array([1.5, -2.25], mx.bfloat16), "c": mx.array(3.0)}
    optimizer = {"step": mx.array(2**40, mx.uint64), "a": {"b": {"m": mx.array([0.1]), "v": mx.array([1e-30])}}}
    save(tmp_path, State(12, weights, optimizer, {"step": 10, "tokens_per_cycle": 1.7}))
    state = load(tmp_path)
    assert state is not None
    assert (state.step, state.best) == (12, {"step": 10, "tokens_per_cycle": 1.7})
    assert_equal(dict(state.weights), weights)
    assert_equal(flat(state.optimizer), flat(optimizer))


def test_an_optimizer_that_has_not_begun_can_be_saved(tmp_path: Path) -> None:
    save(tmp_path, State(0, {"w": mx.zeros(2)}, {}))
    state = load(tmp_path)
    assert state is not None
    assert state.optimizer == {}


def test_a_loaded_state_outlives_its_file(tmp_path: Path) -> None:
    save(tmp_path, small(1))
    state = load(tmp_path)
    save(tmp_path, small(2))
    shutil.rmtree(tmp_path)
    assert state is not None
    assert state.weights["w"].tolist() == [1] * 50


def test_no_state_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "missing") is None
    assert load_weights(tmp_path) is None


@pytest.mark.parametrize("stage", ["save_safetensors", "fsync", "replace"])
@pytest.mark.parametrize("first", [True, False], ids=["first save", "later save"])
def test_a_kill_at_any_stage_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, first: bool
) -> None:
    if not first:
        save(tmp_path, small(1))

    def killed(path: Any, *rest: Any, **more: Any) -> None:
        if stage == "save_safetensors":
            Path(path).write_bytes(b"half of it")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(mx if stage == "save_safetensors" else os, stage, killed)
        with pytest.raises(Killed):
            save(tmp_path, small(2))
    assert any("unfinished" in path.name for path in tmp_path.iterdir())
    state = load(tmp_path)
    assert (state and state.step) == (None if first else 1)

    save(tmp_path, small(3))
    state = load(tmp_path)
    assert state is not None
    assert state.step == 3
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


_SAVING = """
import sys, itertools, mlx.core as mx
from pathlib import Path
from dflash2_mlx.train.loop.checkpoint import State, save
for step in itertools.count(1):
    save(Path(sys.argv[1]), State(step, {"w": mx.full((100_000,), step)}, {"step": mx.array(step, mx.uint64)}))
    print(step, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_one_whole_state(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _SAVING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(5)]
    child.send_signal(signal.SIGKILL)
    told += [int(line) for line in child.communicate()[0].split()]
    state = load(tmp_path)
    assert state is not None
    assert told[-1] <= state.step <= told[-1] + 1
    assert state.weights["w"].tolist() == [state.step] * 100_000
    assert state.optimizer["step"].item() == state.step


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("[write] Unable to write 8 bytes")]
)
def test_a_full_disk_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    save(tmp_path, small(1))

    def full(path: str, *rest: Any, **more: Any) -> None:
        Path(path).write_bytes(b"half of it")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(mx, "save_safetensors", full)
        with pytest.raises(CheckpointError, match=r"cannot be written.*make room"):
            save(tmp_path, small(2))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    state = load(tmp_path)
    assert state is not None
    assert state.step == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_told(tmp_path: Path) -> None:
    (tmp_path / ".state.unfinished.safetensors").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match="make room"):
        save(tmp_path, small(2))
    assert load(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made"):
        save(tmp_path / "file" / "state", small(1))


def test_a_file_cut_anywhere_is_told(tmp_path: Path) -> None:
    save(tmp_path, small(1))
    path = tmp_path / "state.safetensors"
    content = path.read_bytes()
    for size in (0, 5, 8, 100, len(content) - 100, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"is damaged.*remove .* to begin this run anew"):
            load(tmp_path)


def test_another_layout_is_told(tmp_path: Path) -> None:
    tokens.write_arrays(tmp_path / "state.safetensors", {"weights.w": mx.zeros(1)}, {"version": "1", "state": "{}"})
    with pytest.raises(CheckpointError, match=r"layout 1, this version of dflash2-mlx reads 2"):
        load(tmp_path)


@pytest.mark.parametrize("said", [{}, {"version": "2", "state": "[]"}, {"version": "2", "state": '{"step": null}'}])
def test_other_safetensors_files_are_no_state(tmp_path: Path, said: dict[str, str]) -> None:
    tokens.write_arrays(tmp_path / "state.safetensors", {"w": mx.zeros(1)}, said)
    with pytest.raises(CheckpointError, match=r"state\.safetensors"):
        load(tmp_path)


def test_a_state_of_anything_but_arrays_is_a_mistake_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"optimizer\.rate is a float"):
        save(tmp_path, State(1, {}, {"rate": 0.1}))


def test_the_best_weights_come_back(tmp_path: Path) -> None:
    weights = {"a": mx.array([1.0, 2.0]), "b.c": mx.array([3], mx.bfloat16)}
    save_weights(tmp_path, 20, weights)
    found = load_weights(tmp_path)
    assert found is not None
    assert found.step == 20
    assert_equal(found.weights, weights)
    (tmp_path / "weights.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_weights(tmp_path)
