"""The measurements of a run: what is written is read back, and what a kill or a full disk leaves is harmless."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.train.reporting.history import EvaluationLine, History, StepLine


def step_line(step: int, **changes: Any) -> StepLine:
    values: dict[str, Any] = {
        "step": step,
        "seconds": 0.5,
        "tokens": 100,
        "blocks": 20,
        "loss": 3.25,
        "ce": 3.0,
        "selector": 0.25,
        "learning_rate": 1e-3,
        "grad_norm": 0.75,
        "top1": [0.5, 0.25],
        "recall": [0.875, 0.5],
    }
    return StepLine(**{**values, **changes})


def evaluation_line(step: int, tokens: float) -> EvaluationLine:
    return EvaluationLine(step, tokens, {"code": tokens + 1, "chat": 1.25}, [0.5, 0.25])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "history.jsonl"


def test_lines_come_back_in_their_order(path: Path) -> None:
    lines = [step_line(1), step_line(2), evaluation_line(2, 1.5), step_line(3)]
    history = History.open(path)
    for line in lines:
        history.append(line)
    found = History.open(path)
    assert found.lines == history.lines == lines
    assert found.steps == [lines[0], lines[1], lines[3]]
    assert found.evaluations == [lines[2]]


def test_what_is_no_number_is_null_in_the_file_and_read_as_nan(path: Path) -> None:
    History.open(path).append(step_line(1, loss=math.nan, grad_norm=math.inf, top1=[0.5, math.nan]))
    text = path.read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["loss"] is None
    (found,) = History.open(path).steps
    assert math.isnan(found.loss)
    assert math.isnan(found.grad_norm)
    assert found.top1[0] == 0.5
    assert math.isnan(found.top1[1])


def test_a_cut_last_line_is_left_out_and_written_over(path: Path) -> None:
    history = History.open(path)
    for step in (1, 2, 3):
        history.append(step_line(step))
    content = path.read_bytes()
    for cut in (1, 10, 100):
        path.write_bytes(content[:-cut])
        history = History.open(path)
        assert [line.step for line in history.lines] == [1, 2]
        history.append(step_line(3))
        assert path.read_bytes() == content


def test_a_resume_cuts_what_it_does_anew(path: Path) -> None:
    history = History.open(path)
    for line in (step_line(1), evaluation_line(1, 1.5), step_line(2), step_line(3), evaluation_line(3, 1.75)):
        history.append(line)
    history.truncate(2)
    assert [line.step for line in history.lines] == [1, 1, 2]
    assert History.open(path).lines == history.lines
    history.append(step_line(3, loss=1.0))
    assert [line.loss for line in History.open(path).steps] == [3.25, 3.25, 1.0]
    history.truncate(0)
    assert History.open(path).lines == []


def test_a_resume_with_nothing_to_cut_leaves_the_file(path: Path) -> None:
    history = History.open(path)
    history.truncate(0)
    assert not path.exists()
    history.append(step_line(1))
    before = path.stat().st_ino
    history.truncate(1)
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[1]",
        '{"line": "step", "step": 1}',
        '{"line": "other", "step": 1}',
        '{"line": "evaluation", "step": true, "tokens_per_cycle": 1, "by_kind": {}, "accepted_by_position": []}',
        '{"line": "evaluation", "step": 1, "tokens_per_cycle": "x", "by_kind": {}, "accepted_by_position": []}',
        '{"line": "evaluation", "step": 1, "tokens_per_cycle": 1, "by_kind": 3, "accepted_by_position": []}',
    ],
)
def test_a_damaged_line_is_named(path: Path, line: str) -> None:
    History.open(path).append(step_line(1))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    with pytest.raises(CheckpointError, match=r"history\.jsonl:2 is no line of a training run.*remove that line"):
        History.open(path)


def test_a_full_disk_keeps_the_lines_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History.open(path)
    history.append(step_line(1))
    real = Path.open

    def full(self: Path, *rest: Any) -> Any:
        if self == path:
            with real(self, "ab") as file:
                file.write(b'{"line": "st')  # a part of the line was still taken
            raise OSError(28, "No space left on device")
        return real(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(CheckpointError, match=r"No space left on device\): make room"):
            history.append(step_line(2))
    assert [line.step for line in history.lines] == [1]
    assert History.open(path).lines == history.lines
    history.append(step_line(2))
    assert [line.step for line in History.open(path).lines] == [1, 2]


def test_the_best_evaluation_is_the_first_of_the_highest(path: Path) -> None:
    history = History.open(path)
    assert history.best is None
    for step, tokens in ((1, 1.5), (2, 2.0), (3, 2.0), (4, math.nan)):
        history.append(evaluation_line(step, tokens))
    assert history.best is not None
    assert history.best.step == 2
