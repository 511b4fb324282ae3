"""What a training run says: plain lines in a log, a bar in a terminal, plots at the end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from dflash2_mlx.train.recipe.values import Recipe
from dflash2_mlx.train.reporting.blocks import training_report
from dflash2_mlx.train.reporting.history import History
from dflash2_mlx.train.reporting.terminal import Console
from tests.train.test_history import evaluation_line, step_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_tell_loss_speed_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(1000, every=0)
    with console.running():
        console.step(step_line(1, loss=4.0, seconds=2.0, tokens=100))
        console.evaluation(evaluation_line(1, 1.5))
        console.step(step_line(2, loss=5.0, seconds=2.0, tokens=100))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 1/1,000 · loss 4.000 · 33 min 18 s left · 50 tokens/s · top-1 0.50",
        "step 1: 1.500 tokens per cycle (code 2.50, chat 1.25)",
        "step 2/1,000 · loss 4.500 · 1.50 per cycle · 33 min 16 s left · 50 tokens/s · top-1 0.50",
    ]


def test_plain_lines_are_far_apart_but_for_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(50, every=1000)
    for step in range(1, 51):
        console.step(step_line(step))
    assert [line.split(" · ")[0] for line in capsys.readouterr().err.splitlines()] == ["step 1/50", "step 50/50"]


def test_a_worse_evaluation_names_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(50, best=evaluation_line(5, 2.0))
    console.evaluation(evaluation_line(10, 1.5))
    console.evaluation(evaluation_line(15, 2.5))
    console.evaluation(evaluation_line(20, 2.25))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("; the best is 2.000 of step 5")
    assert "the best" not in lines[1]
    assert lines[2].endswith("; the best is 2.500 of step 15")


def test_in_a_terminal_a_bar_stands_and_evaluations_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    console = Console(1000, 10)
    with console.running():
        console.step(step_line(11))
        console.evaluation(evaluation_line(11, 1.5))
    console.say("the end [of it]")
    text = stream.getvalue()
    assert "11/1000" in text
    assert "loss 3.250" in text
    assert "step 11: 1.500 tokens per cycle" in text
    assert text.endswith("the end [of it]\n")


def test_an_error_or_ctrl_c_takes_the_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(10)

    def interrupted() -> None:
        with console.running():
            console.step(step_line(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().rstrip().endswith("\x1b[2K")  # the line of the bar is cleared
    console.say("saved")
    assert stream.getvalue().endswith("saved\n")


def test_the_end_shows_the_summary_and_plots() -> None:
    lines = [step_line(1), evaluation_line(1, 1.5), step_line(2), evaluation_line(2, 2.0)]
    report = training_report(Recipe(), History(Path("h"), list(lines), 0), {})
    stream = io.StringIO()
    Console(2).show(report, RichConsole(file=stream, width=80))
    text = stream.getvalue()
    assert "2.00 tokens per cycle" in " ".join(text.split())
    assert "Tokens per cycle by kind of prompt" in text
    assert "Recall@16" in text
    assert "Every field" not in text
