"""`dflash2-mlx tune`: what is surveyed, taken over, kept and shown; wrong input is refused before a load."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import cli
from dflash2_mlx.bench.survey import LEAST, Survey, order, survey_depth
from dflash2_mlx.bench.tune import tune, tune_report
from dflash2_mlx.bench.tune_command import depths_of
from dflash2_mlx.errors import PairError, RequestError
from dflash2_mlx.pairs import Pair, load
from tests.running import subject
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("pair")
    model = write_target(root / "target")
    write_drafter(root / "draft", tiny_drafter_config(model))
    return str(root / "target"), str(root / "draft")


@pytest.fixture
def pair(folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("DFLASH2_MEASURED", str(tmp_path / "measured"))
    return load(*folders)


@pytest.mark.parametrize("block_size", [2, 4, 8, 16])
def test_every_width_is_surveyed_once_a_round(block_size: int) -> None:
    assert sorted(order(block_size)) == list(range(1, block_size + 1))


def test_a_survey_goes_round_and_ends() -> None:
    survey = Survey([1, 3, 2], rounds=2)
    widths = []
    while not survey.over:
        width = survey.choose(0)
        widths.append(width)
        survey.cycle_done(width, 0, 0, 0.01 * width)
    assert widths == [1, 1, 1, 3, 3, 3, 2, 2, 2] * 2
    assert {width: len(seconds) for width, seconds in survey.seconds.items()} == {1: 6, 2: 6, 3: 6}


def test_tuning_fills_the_table_and_the_file(pair: Pair) -> None:
    stages: list[str] = []
    found = tune(pair, depths=(40, 20), seconds=60.0, report=lambda stage, share: stages.append(stage))
    assert [item.depth for item in found] == [20, 40]
    for item in found:
        assert sorted(item.seconds) == list(range(1, pair.block_size + 1))
        assert item.samples >= LEAST
        assert all(0 < low <= middle <= high for middle, low, high in item.seconds.values())
    assert {"acceptance", "reading 20 tokens", "cycles after 40 tokens"} <= set(stages)
    assert pair.widths is not None
    assert pair.widths.source.startswith("tune, 20")
    assert pair.widths.costs.seconds(2, 40) == pytest.approx(found[1].seconds[2][0])
    assert pair.widths.figures().acceptance["greedy"], "answers of its own were drafted too"
    assert pair.widths.store is not None
    kept = json.loads(pair.widths.store.path.read_text())
    assert kept["source"] == pair.widths.source
    assert kept["tuned"]
    text = " ".join(block.text for block in tune_report(pair, found, "command").blocks if hasattr(block, "text"))
    assert "After 20 tokens" in text
    assert "After 40 tokens" in text


def test_a_depth_for_which_the_time_does_not_last_is_left_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of prefill for twenty tokens are too many for forty thousand."""
    slow = partial(replace, prompt_seconds=10.0)
    monkeypatch.setattr("dflash2_mlx.bench.tune.survey_depth", lambda *a, **k: slow(survey_depth(*a, **k)))
    found = tune(pair, depths=(20, 40000), seconds=60.0, report=lambda stage, share: None)
    assert [item.depth for item in found] == [20]


def test_there_is_nothing_to_tune_without_a_drafter() -> None:
    with pytest.raises(PairError, match="without a drafter"):
        tune(Pair(subject("llama").target), report=lambda stage, share: None)


@pytest.mark.parametrize("text", ["", "0", "abc", "256;512", "-5", "1.5", "99999999"])
def test_wrong_depths_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--depths"):
        depths_of(text)
    assert depths_of("512, 256,256") == (256, 512)


@pytest.mark.parametrize("flags", [["--seconds", "0"], ["--seconds", "nan"], ["--depths", "x"], ["--out", "a.txt"]])
def test_wrong_flags_are_refused_before_loading(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--model", "/no/such/folder", *flags]) == cli.EXIT_USAGE
    assert flags[1] in capsys.readouterr().err


def test_the_command(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DFLASH2_MEASURED", str(tmp_path / "measured"))
    out = tmp_path / "tune.html"
    flags = ["--model", folders[0], "--draft", folders[1], "--depths", "20", "--seconds", "1", "--out", str(out)]
    assert cli.main(["tune", *flags]) == 0
    assert "block size" in capsys.readouterr().out
    assert "<svg" in out.read_text()
    assert cli.main(["tune", *flags, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(told) == {"pair", "costs", "samples", "acceptance", "best_block", "source", "kept"}
    assert Path(told["kept"]).is_file()
