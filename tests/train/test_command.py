"""The command `train`: what it checks before weights are loaded, what a run leaves, and how it stops."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx import cli, machine, pairs
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.train.check import room
from dflash2_mlx.train.loop import checkpoint
from dflash2_mlx.train.recipe.file import read_recipe
from dflash2_mlx.train.reporting.history import History
from dflash2_mlx.train.run import job
from dflash2_mlx.train.run.stopping import Stopper
from tests.tiny_checkpoints import VOCAB, write_target
from tests.train.commands import Double, refused, train, write_data


def test_a_whole_run_leaves_a_drafter_that_loads(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(place, out) == 0
    assert "Loss over steps" in capsys.readouterr().out
    made = double.made[0]
    assert [len(one.text.answer) for one in made["held_out"]] == [6, 6]
    assert made["store"].kept == 1
    assert made["store"].folder.parent == place / "data"
    assert sorted(made["order"].tolist()) == list(range(VOCAB))
    assert made["folder"] == out
    drafter = load_drafter(out / "drafter")
    assert (drafter.config.num_hidden_layers, drafter.config.block_size) == (2, 4)
    assert "tokens per cycle" in (out / "drafter" / "README.md").read_text()
    assert "tokens per cycle" in (out / "report.html").read_text()
    history = History.open(out / "history.jsonl")
    assert [line.step for line in history.steps] == [1, 2, 3, 4, 5, 6]
    assert len((out / "held_out.jsonl").read_text().splitlines()) == 2


def test_the_run_alone_is_enough_to_go_on(place: Path, tmp_path: Path, double: Double) -> None:
    out = tmp_path / "run"
    assert train(place, out) == 0
    assert cli.main(["train", "--out", str(out), "--steps", "8"]) == 0
    assert double.made[1]["recipe"].loop.steps == 8
    assert double.made[1]["recipe"].shape == double.made[0]["recipe"].shape
    assert [line.step for line in History.open(out / "history.jsonl").steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read_recipe(out / "recipe.toml").loop.steps == 8


def test_lines_after_the_state_are_made_anew(place: Path, tmp_path: Path, double: Double) -> None:
    out = tmp_path / "run"
    assert train(place, out) == 0
    (out / "state" / "state.safetensors").unlink()  # killed before the first save
    assert train(place, out) == 0
    assert [line.step for line in History.open(out / "history.jsonl").steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    number: signal.Signals, place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my run"
    before = signal.getsignal(number)
    double.on_begin = lambda: os.kill(os.getpid(), number)
    assert train(place, out) == cli.EXIT_INTERRUPTED
    assert signal.getsignal(number) is before
    assert f"not finished: dflash2-mlx train --out '{out}' goes on" in capsys.readouterr().err
    assert checkpoint.load(out / "state") is not None
    assert not (out / "drafter").exists()
    double.on_begin = lambda: None
    assert cli.main(["train", "--out", str(out)]) == 0
    assert (out / "drafter").exists()


def test_ctrl_c_in_the_last_step_does_not_decode_for_minutes(
    place: Path, tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.save_weights

    def interrupted(*args: Any) -> None:  # the last thing of a run
        os.kill(os.getpid(), signal.SIGINT)
        real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_weights", interrupted)
        assert train(place, tmp_path / "run") == cli.EXIT_INTERRUPTED
    assert not (tmp_path / "run" / "drafter").exists()
    assert cli.main(["train", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "drafter").exists()


def test_ctrl_c_before_the_run_began_leaves_nothing(
    place: Path, tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_checked", interrupted)
    assert train(place, tmp_path / "run") == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_time_that_is_over_is_no_error(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(place, tmp_path / "run", "--minutes", "1e-9") == 0
    assert "goes on" in capsys.readouterr().err


def test_a_second_ctrl_c_interrupts_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Stopper() as stopper:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopper()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "stopping after this step" in capsys.readouterr().err


def test_minutes_are_minutes() -> None:
    now = [0.0]
    stopper = Stopper(2, clock=lambda: now[0])
    now[0] = 119.9
    assert not stopper()
    now[0] = 120.0
    assert stopper()
    assert not stopper.interrupted


def test_evaluate_only_exports_the_best_weights(place: Path, tmp_path: Path, double: Double) -> None:
    out = tmp_path / "run"
    assert train(place, out) == 0
    (out / "drafter" / "config.json").unlink()
    for path in (out / "drafter").iterdir():
        path.unlink()
    assert cli.main(["train", "--out", str(out), "--evaluate-only", "--quantize", "w4a16:gs32"]) == 0
    assert len(double.made) == 1, "nothing was trained"
    assert load_drafter(out / "drafter").config.num_hidden_layers == 2
    assert (out / "drafter-w4a16-gs32" / "config.json").exists()


def test_some_of_the_prompts_are_decoded_where_that_is_asked_for(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(place, out, "--decode", "1") == 0
    said = capsys.readouterr().err
    prompts = len((out / "held_out.jsonl").read_text().splitlines())
    assert prompts > 1
    assert f", 1 of {prompts} prompts" in said
    assert f", 1 of {prompts} prompts" in (out / "report.html").read_text()
    assert "1 held-out prompt" in (out / "drafter" / "README.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layers", "0"], "layers is 0: it must be from 1 to 64"),
        (["--minutes", "0"], "--minutes 0: give more than 0"),
        (["--decode", "0"], "--decode 0: give 1 or more"),
        (["--quantize", "w5"], "w5"),
        (["--quantize", "w4a16:gs128"], "group size 128 does not divide"),
        (["--evaluate-only"], "holds no training run"),
        (["--recipe", "gone.toml"], "gone.toml cannot be read"),
        (["--data", "gone"], "gone holds no training data"),
        (["--model", "./gone"], "no folder './gone'"),
        (["--held-out", "gone.txt"], "gone.txt cannot be read"),
        (["--taps", "0,77"], "77"),
        (["--start", "./gone"], "no folder './gone'"),
        (["--start", "demo"], "demo cannot be gone on from, its config is another"),
    ],
)
def test_what_is_refused_before_the_target_is_loaded(
    more: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "load", lambda *_, **__: pytest.fail("the target was loaded"))
    assert train(place, tmp_path / "run", *more) != 0
    assert message in refused(capsys)
    assert not (tmp_path / "run").exists(), "nothing was begun"


def test_a_drafter_that_was_gone_on_from_is_needed_once(place: Path, tmp_path: Path, double: Double) -> None:
    assert train(place, tmp_path / "first") == 0
    shutil.move(tmp_path / "first" / "drafter", tmp_path / "start")
    start = ["--start", str(tmp_path / "start")]
    assert train(place, tmp_path / "run", *start) == 0
    begun = load_drafter(tmp_path / "start").model.fc.weight
    assert mx.allclose(double.made[1]["model"].fc.weight, begun.astype(mx.float32))
    shutil.rmtree(tmp_path / "start")
    assert train(place, tmp_path / "run", *start, "--steps", "8") == 0


def test_a_file_beside_the_drafter_is_told_before_hours_of_training(
    place: Path, tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(place, tmp_path / "run") == 0
    (tmp_path / "run" / "drafter" / "notes.txt").write_text("mine")
    capsys.readouterr()
    monkeypatch.setattr(pairs, "load", lambda *_, **__: pytest.fail("the target was loaded"))
    assert train(place, tmp_path / "run", "--steps", "8") == cli.EXIT_USAGE
    assert "holds something else than a trained drafter" in refused(capsys)
    assert (tmp_path / "run" / "drafter" / "notes.txt").read_text() == "mine"


def test_a_target_that_has_changed_is_refused(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    write_target(tmp_path / "target", seed=5)
    assert train(place, tmp_path / "run", "--model", str(tmp_path / "target")) == cli.EXIT_ERROR
    assert "was prepared with tiny" in refused(capsys)


def test_another_chat_template_is_refused(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    write_target(tmp_path / "target")
    (tmp_path / "target" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert train(place, tmp_path / "run", "--model", str(tmp_path / "target")) == cli.EXIT_ERROR
    assert "another tokenizer or chat template" in refused(capsys)


def test_another_recipe_in_the_same_folder_is_refused(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(place, tmp_path / "run") == 0
    capsys.readouterr()
    assert train(place, tmp_path / "run", "--layers", "1") == cli.EXIT_USAGE
    assert "layers is 2 there and 1 here" in refused(capsys)


@pytest.mark.parametrize(
    ("name", "fake", "message"),
    [
        ("memory", lambda: machine.Memory(1, 1), "training needs about"),
        ("disk", lambda path: type("Usage", (), {"free": 10})(), "make room"),
    ],
)
def test_what_does_not_fit_is_told_before_the_target_is_loaded(
    name: str,
    fake: Callable[..., Any],
    message: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pairs, "load", lambda *_, **__: pytest.fail("the target was loaded"))
    if name == "memory":
        monkeypatch.setattr(machine, "memory", fake)
    else:
        monkeypatch.setattr(room.shutil, "disk_usage", fake)
    assert train(place, tmp_path / "run") != 0
    assert message in refused(capsys)


def test_held_out_prompts_in_the_data_are_told(
    place: Path, tmp_path: Path, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny_tokenizer import tokenizer_wrapper

    write_data(tmp_path / "leaky", place / "target", prompt=tokenizer_wrapper().encode("the stop"))
    assert train(place, tmp_path / "run", data=str(tmp_path / "leaky")) == 0
    assert "1 of 2 held-out prompts are in the data" in capsys.readouterr().err


def test_a_full_disk_ends_with_one_line(
    place: Path, tmp_path: Path, double: Double, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise DFlashError("state cannot be written: make room")

    double.on_begin = full
    assert train(place, tmp_path / "run") == cli.EXIT_ERROR
    assert capsys.readouterr().err.splitlines()[-1] == "dflash2-mlx: error: state cannot be written: make room"


def test_help_names_the_way_to_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "dflash2-mlx train data" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        cli.main(["train", "data", "--help"])
    assert capsys.readouterr().out.startswith("usage: dflash2-mlx train data ")


def test_the_commands_that_two_words_name() -> None:
    assert cli._command(["train", "data", "--out", "x"]) == "train data"
    assert cli._command(["train", "--out", "data"]) == "train"
    assert cli._command([]) == ""
