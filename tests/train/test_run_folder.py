"""A run's folder: for one run, one process, one recipe and its data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash2_mlx.errors import CheckpointError, DFlashError, RequestError
from dflash2_mlx.train.recipe.fields import FIELDS
from dflash2_mlx.train.recipe.file import read_recipe
from dflash2_mlx.train.recipe.values import Loop, Recipe, Shape
from dflash2_mlx.train.run import folder as run_folder
from dflash2_mlx.train.run.folder import MAY_CHANGE, is_run, open_run

RECIPE = Recipe(shape=Shape(layers=4, taps=(1, 5, 9)), loop=Loop(steps=10, warmup=2))
IDENTITY = {"target": "aa11", "data": "bb22"}


def begin(folder: Path, recipe: Recipe = RECIPE) -> None:
    with open_run(folder, recipe, IDENTITY):
        pass


def test_a_new_folder_becomes_a_run_and_is_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with open_run(folder, RECIPE, IDENTITY) as run:
        assert not run.begun
        assert {p.name for p in folder.iterdir()} == {".lock", "run.json", "recipe.toml"}
    assert is_run(folder)
    with open_run(folder, RECIPE, IDENTITY) as run:
        assert run.begun
        assert read_recipe(run.recipe) == RECIPE
        assert {run.state.parent, run.best.parent, run.drafter.parent, run.report.parent} == {folder}
        assert {run.history.parent, run.held_out.parent} == {folder}


def test_a_folder_of_something_else_is_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"holds something else \(thesis\.txt\)") as caught:
        begin(tmp_path)
    assert caught.value.param == "out"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RequestError, match=r"thesis\.txt is a file"):
        begin(tmp_path / "thesis.txt")


def test_hidden_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / ".lock").write_text("123")
    (tmp_path / ".run.json.new-abc").write_text('{"ver')  # a kill while the run began
    begin(tmp_path)
    assert is_run(tmp_path)


def test_a_run_that_was_killed_before_its_recipe_was_written_goes_on(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "recipe.toml").unlink()
    with open_run(tmp_path, RECIPE, IDENTITY) as run:
        assert read_recipe(run.recipe) == RECIPE


def test_a_folder_that_cannot_be_made_or_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DFlashError, match="cannot be used"):
        begin(tmp_path / "file" / "run")

    def full(path: Path, text: str) -> None:
        raise DFlashError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(run_folder, "write_whole", full)
    with pytest.raises(DFlashError, match="No space left"):
        begin(tmp_path / "run")
    assert not is_run(tmp_path / "run")
    monkeypatch.undo()
    begin(tmp_path / "run")


def test_two_trainings_never_write_one_folder(tmp_path: Path) -> None:
    with (
        open_run(tmp_path, RECIPE, IDENTITY),
        pytest.raises(RequestError, match=rf"another training \(process {os.getpid()}\) writes to"),
    ):
        begin(tmp_path)
    begin(tmp_path)


_HOLDING = """
import sys, time
from pathlib import Path
from dflash2_mlx.train.recipe.values import Recipe
from dflash2_mlx.train.run.folder import open_run
with open_run(Path(sys.argv[1]), Recipe(), {}):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with (
        pytest.raises(RequestError, match=rf"process {child.pid}\) writes to"),
        open_run(tmp_path, Recipe(), {}),
    ):
        pass
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with open_run(tmp_path, Recipe(), {}) as run:
        assert run.begun


def test_another_recipe_is_refused_by_the_names_of_its_fields(tmp_path: Path) -> None:
    begin(tmp_path)
    other = replace(RECIPE, start="random", shape=replace(RECIPE.shape, layers=5, taps=None))
    with pytest.raises(RequestError) as caught:
        begin(tmp_path, other)
    words = str(caught.value)
    assert "start is warm there and random here" in words
    assert "layers is 4 there and 5 here" in words
    assert "taps is 1,5,9 there and auto here" in words
    assert str(tmp_path / "recipe.toml") in words
    assert caught.value.param == "out"
    assert read_recipe(tmp_path / "recipe.toml") == RECIPE


def test_when_to_stop_and_what_the_machine_gives_may_change(tmp_path: Path) -> None:
    begin(tmp_path)
    loop = replace(RECIPE.loop, steps=50, patience=3, evaluate_every=5, save_every=7, micro_batch=2, checkpointing=True)
    other = replace(RECIPE, target="moved", data="moved", rows_gb=0.0, loop=loop)
    begin(tmp_path, other)
    assert read_recipe(tmp_path / "recipe.toml") == other
    begin(tmp_path, other)


def test_what_may_change_are_fields_of_a_recipe() -> None:
    assert {(field.part, field.name) for field in FIELDS} > MAY_CHANGE


def test_other_content_is_refused_though_its_name_is_the_same(tmp_path: Path) -> None:
    begin(tmp_path)
    with (
        pytest.raises(RequestError, match=r"the data was bb22 and is cc33\. Give what it began with") as caught,
        open_run(tmp_path, RECIPE, {"target": "aa11", "data": "cc33"}),
    ):
        pass
    assert "the target was" not in str(caught.value)


def test_a_field_that_an_older_run_lacks_is_at_its_default(tmp_path: Path) -> None:
    begin(tmp_path, Recipe())
    path = tmp_path / "run.json"
    content = json.loads(path.read_text())
    del content["recipe"]["shape"]["causal"], content["recipe"]["loss"]
    path.write_text(json.dumps(content))
    begin(tmp_path, Recipe())


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1}', '{"version": 1, "recipe": [], "identity": {}}'])
def test_a_damaged_record_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"run\.json is damaged.*give another --out"):
        begin(tmp_path)


def test_another_layout_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"version": 9}')
    with pytest.raises(CheckpointError, match="layout 9, this version of dflash2-mlx reads 1"):
        begin(tmp_path)
