"""Fixtures of the command `train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash2_mlx.train.run import job
from tests.tiny_checkpoints import write_target
from tests.train.commands import HELD_OUT, Double, write_data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, its data, and held-out prompts; the runs go elsewhere."""
    folder = tmp_path_factory.mktemp("train")
    write_target(folder / "target")
    write_data(folder / "data", folder / "target")
    (folder / "held_out.txt").write_text(HELD_OUT)
    return folder


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    """The command with a double of the loop, short answers, and no load beyond what is needed."""
    double = Double([])
    real = job.run_job
    monkeypatch.setattr(job, "run_job", lambda asked: real(asked, double))
    monkeypatch.setattr(job, "ANSWER_TOKENS", 6)
    return double
