"""A user's whole path on a tiny target: data, training, going on, export, and an answer with the drafter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash2_mlx import cli
from dflash2_mlx.train.reporting.history import History
from dflash2_mlx.train.run import job
from tests.tiny_checkpoints import write_target

TEMPLATE = "{% for message in messages %}<|user|>{{ message.content }}{% endfor %}"
SHAPE = ["--layers", "1", "--block-size", "4", "--window", "16", "--mask-token", "299", "--conv-group-size", "4"]
SMALL = ["--selector-rank", "4", "--selector-top-k", "4", "--frequent", "0", "--warmup", "1", "--anchors", "4"]
LOOP = ["--steps", "4", "--batch", "2", "--micro-batch", "1", "--save-every", "2", "--evaluate-every", "2"]


def test_from_a_model_on_disk_to_an_answer_with_its_own_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "ANSWER_TOKENS", 8)
    write_target(Path("my-model"))
    Path("my-model", "chat_template.jinja").write_text(TEMPLATE)
    prompts = [{"prompt": f"the stop {i}"} for i in range(4)]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    Path("held_out.txt").write_text("in a tin\n")

    data = ["--prompts", "prompts.jsonl", "--exclude", "held_out.txt", "--out", "data", "--max-tokens", "16"]
    assert cli.main(["train", "data", "--model", "my-model", *data]) == 0
    paths = ["--model", "my-model", "--data", "data", "--held-out", "held_out.txt", "--out", "run"]
    assert cli.main(["train", *paths, *SHAPE, *SMALL, *LOOP, "--minutes", "1e-9"]) == 0
    assert "goes on" in capsys.readouterr().err
    assert cli.main(["train", "--out", "run"]) == 0

    history = History.open(Path("run/history.jsonl"))
    assert [line.step for line in history.steps] == [1, 2, 3, 4]
    best = history.best
    assert best is not None
    card = Path("run/drafter/README.md").read_text()
    # Evaluated along the recorded answer with float32 weights, decoded with those that are exported.
    assert f"after step {best.step}" in card
    capsys.readouterr()
    assert cli.main(["generate", "the stop", "--model", "my-model", "--draft", "run/drafter", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["engine"] == "dflash2"
