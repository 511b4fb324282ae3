"""Going on with a run, beginning none by mistake, and what is told of the data, before the target is loaded."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from dflash2_mlx import cli, pairs
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.train import folder_lock
from dflash2_mlx.train.data.tokens import Conversation
from dflash2_mlx.train.folder_lock import held
from dflash2_mlx.train.recipe.file import read_recipe
from dflash2_mlx.train.rows import kept as rows_kept
from dflash2_mlx.train.run.export import clean
from tests.train.commands import HELD_OUT, SMALL, Double, refused, train, write_data


def go_on(out: Path, *more: str) -> int:
    return cli.main(["train", "--out", str(out), *more])


@pytest.fixture
def run(place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of 6 steps."""
    assert train(place, tmp_path / "run") == 0
    capsys.readouterr()
    return tmp_path / "run"


@pytest.fixture
def unloaded(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run, and no target is to be loaded any more."""
    monkeypatch.setattr(pairs, "load", lambda *_, **__: pytest.fail("the target was loaded"))
    return run


def test_held_out_prompts_may_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    (tmp_path / "moved.txt").write_text(HELD_OUT)
    assert go_on(run, "--held-out", str(tmp_path / "moved.txt"), "--steps", "7") == 0
    assert read_recipe(run / "recipe.toml").held_out == str(tmp_path / "moved.txt")


def test_other_held_out_prompts_are_refused(unloaded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "others.txt").write_text("his hat\n")
    assert go_on(unloaded, "--held-out", str(tmp_path / "others.txt")) == cli.EXIT_USAGE
    told = refused(capsys)
    assert "the content of --held-out was " in told
    assert "Give what it began with, or another --out" in told


def test_a_run_that_does_not_tell_its_prompts_goes_on(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    assert content["identity"].pop("held_out")
    (run / "run.json").write_text(json.dumps(content))
    assert go_on(run, "--steps", "7") == 0
    assert json.loads((run / "run.json").read_text())["identity"]["held_out"]


@pytest.mark.parametrize("written", [[], [23], [9, 11, 13]])
def test_data_without_anything_to_learn_is_refused(
    written: list[int], place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = np.isin(np.arange(24), written)
    write_data(tmp_path / "data", place / "target", said=[Conversation(np.arange(24, dtype=np.int32), mask)])
    assert train(place, tmp_path / "run", data=str(tmp_path / "data")) == cli.EXIT_ERROR
    assert "has nothing to learn from" in refused(capsys)
    assert double.made == []


def test_a_mask_token_in_the_answers_is_told(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = np.array([299, 1, 2, 3, 299, 4, 299, 5], dtype=np.int32)
    write_data(tmp_path / "data", place / "target", said=[Conversation(tokens, np.arange(8) > 2)])
    assert train(place, tmp_path / "run", data=str(tmp_path / "data")) == 0
    assert "the mask token 299 is in the data's answers, 2 times" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], SMALL, ["--evaluate-only"]])
def test_a_mistyped_run_begins_none(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert go_on(Path("rum"), *more) == cli.EXIT_USAGE
    assert refused(capsys).endswith("rum holds no run; to begin one give --data (or --recipe)\n")
    assert list(tmp_path.iterdir()) == []


def test_packing_is_told_again_when_it_stops(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    double.on_begin = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert train(place, tmp_path / "run", "--quantize", "w4a16:gs32", "--decode", "2") == cli.EXIT_INTERRUPTED
    assert f"train --out {tmp_path / 'run'} --quantize w4a16:gs32 --decode 2 goes on" in capsys.readouterr().err


def test_fewer_steps_than_are_done_are_refused(unloaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go_on(unloaded, "--steps", "5") == cli.EXIT_USAGE
    assert f"steps is 5: 6 are done in {unloaded} already" in refused(capsys)


def test_a_damaged_history_is_told_at_once(unloaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (unloaded / "history.jsonl").write_text("{}\n")
    assert go_on(unloaded) == cli.EXIT_ERROR
    assert "history.jsonl:1 is no line of a training run" in refused(capsys)


def test_what_a_kill_while_exporting_has_left_is_taken_away(run: Path) -> None:
    shutil.copytree(run / "drafter", run / ".drafter.former-1")
    (run / ".drafter.partial-2").mkdir()
    (run / ".drafter.partial-2" / "model.safetensors").write_text("half")
    assert go_on(run, "--evaluate-only") == 0
    assert [path.name for path in run.iterdir() if "drafter" in path.name] == ["drafter"]


def test_a_drafter_that_was_moved_away_is_put_back(run: Path) -> None:
    (run / "drafter").rename(run / ".drafter.former-1")
    (run / ".drafter.partial-2").mkdir()
    clean(run / "drafter")
    assert [path.name for path in run.iterdir() if "drafter" in path.name] == ["drafter"]
    assert load_drafter(run / "drafter").config.num_hidden_layers == 2


def test_rows_of_data_that_has_changed_are_told_and_kept(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(tmp_path / "data", place / "target")
    (data / "rows-other").mkdir()  # of other taps, or of a version that made no note
    rows_kept.mark(data / "rows-0ld", "another")
    (data / "rows-0ld" / "rows-00000.safetensors").write_bytes(bytes(10**7))
    assert train(place, tmp_path / "run", data=str(data)) == 0
    told = capsys.readouterr().err
    assert told.count("no longer in use") == 1
    assert told.count("rows-") == 1
    assert f"{data / 'rows-0ld'} (0.01 GB)" in told
    assert (data / "rows-0ld" / "rows-00000.safetensors").exists()
    (current,) = (path for path in data.glob("rows-*") if path.name not in ("rows-0ld", "rows-other"))
    assert {path for path, _ in rows_kept.outdated(data, "one more")} == {current, data / "rows-0ld"}


def test_waiting_for_anothers_rows_is_told_once(
    run: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (rows,) = (place / "data").glob("rows-*")
    other = held(rows, "another training")
    other.__enter__()
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            other.__exit__(None, None, None)

    monkeypatch.setattr(folder_lock.time, "sleep", wait)
    assert go_on(run, "--steps", "7") == 0
    assert capsys.readouterr().err.count("another training computes the target's rows: waiting for it") == 1
    assert len(looks) == 3
