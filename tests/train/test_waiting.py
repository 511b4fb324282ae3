"""What training says while it waits, and its small pieces of text."""

from __future__ import annotations

import pytest

from dflash2_mlx.train.data import progress as data_progress
from dflash2_mlx.train.data.progress import Meter
from dflash2_mlx.train.reporting import waiting
from dflash2_mlx.train.reporting.waiting import counting
from dflash2_mlx.train.wording import counted, duration, in_brackets


def test_without_a_terminal_a_wait_says_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    with counting("held-out answers") as count:
        for done in range(20):
            count(done, 20)
            now[0] += 10
    assert capsys.readouterr().err.splitlines() == [
        "held-out answers: 6/20",
        "held-out answers: 12/20",
        "held-out answers: 18/20",
    ]


def test_counts_and_kinds() -> None:
    assert [counted(1, "shard"), counted(2000, "shard")] == ["1 shard", "2,000 shards"]
    assert in_brackets({"code": 2.5, "chat": 1.25}) == " (code 2.50, chat 1.25)"
    assert in_brackets({"other": 1.02}) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min"), (312, "5 min 12 s"), (3599.9, "1 h"), (12000, "3 h 20 min"), (190000, "2 d 4 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_last_seconds_of_a_preparation_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(None, started=0.0, first_share=0.0)
    monkeypatch.setattr(data_progress.time, "monotonic", lambda: 60.0)
    assert data_progress._left(meter, 0.75) == "20 s left"
    assert data_progress._left(meter, 0.01) == "1 h 39 min left"
