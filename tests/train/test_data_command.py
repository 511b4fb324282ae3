"""`train data` on a tiny model on disk: from prompts to shards, stopped, gone on with, and refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from dflash2_mlx.errors import CheckpointError, PairError, RequestError
from dflash2_mlx.target.load import load_target
from dflash2_mlx.train.data import command as data_command
from dflash2_mlx.train.data.dataset import open_dataset
from tests import tiny
from tests.chat_doubles import make_tokenizer
from tests.tiny_checkpoints import write_target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    write_target(folder)
    make_tokenizer().save_pretrained(str(folder))
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "kind": "code"}) + "\n" for i in range(40)))
    return path


def run(tmp_path: Path, *flags: str, out: str = "data", model: str = "target") -> int:
    parser = argparse.ArgumentParser()
    data_command.add_arguments(parser)
    most = [] if "--join" in flags else ["--max-tokens", "6"]
    given = ["--model", str(tmp_path / model), "--out", str(tmp_path / out), *most, *flags]
    return data_command.run(parser.parse_args(given))


def test_from_prompts_to_shards(
    tmp_path: Path, target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--prompts", str(prompts), "--batch", "5") == 0
    dataset = open_dataset(tmp_path / "data")
    assert (dataset.conversations, dataset.kinds, dataset.sources) == (80, {"code": 80}, ("prompts.jsonl",))
    assert dataset.options["max_tokens"] == 6
    assert f"digest {dataset.digest}" in capsys.readouterr().out
    loaded = load_target(target)
    ends = loaded.tokenizer.eos_token_ids
    greedy = [one for shard in (0, 1) for one in dataset.conversations_of(shard) if one.temperature == 0]
    assert len(greedy) == 40
    for one in greedy[:5]:
        prompt, answer = one.tokens[~one.mask].tolist(), one.tokens[one.mask].tolist()
        expected = tiny.plain_greedy(loaded.model, prompt, 6)
        end = next((i + 1 for i, token in enumerate(expected) if token in ends), 6)
        assert answer == expected[:end]


def test_a_second_run_has_nothing_to_do(
    tmp_path: Path, target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--prompts", str(prompts), "--answers-per-prompt", "1")
    assert run(tmp_path, *flags) == 0
    prompts.unlink()  # the plan is stored
    assert run(tmp_path, *flags) == 0
    assert "nothing is left to do" in capsys.readouterr().err


def test_ctrl_c_keeps_shards_and_tells_how_to_go_on(
    tmp_path: Path,
    target: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dflash2_mlx.train.data import answers as data_answers

    whole, real = ("--prompts", str(prompts)), data_answers.answers

    def stops(*args: object, **options: object) -> object:
        for count, answer in enumerate(real(*args, **options)):  # type: ignore[arg-type]
            if count == 72:
                raise KeyboardInterrupt
            yield answer

    assert run(tmp_path, *whole, out="whole") == 0
    monkeypatch.setattr(data_answers, "answers", stops)
    monkeypatch.setattr("sys.argv", ["dflash2-mlx", "train", "data", "--out", "my data"])
    assert run(tmp_path, *whole) == 130
    told = capsys.readouterr().err
    assert "1 shard with" in told
    assert "dflash2-mlx train data --out 'my data'" in told
    with pytest.raises(CheckpointError, match="not finished"):
        open_dataset(tmp_path / "data")
    monkeypatch.setattr(data_answers, "answers", real)
    assert run(tmp_path, *whole) == 0
    assert open_dataset(tmp_path / "data").digest == open_dataset(tmp_path / "whole").digest


def test_completions_need_no_model(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"prompt": "p", "completion": "c", "temperature": 0.7, "finished": True}) + "\n")
    monkeypatch.setattr("dflash2_mlx.pairs.load", None)
    assert run(tmp_path, "--completions", str(path), "--keep-short", "1") == 0
    (one,) = open_dataset(tmp_path / "data").conversations_of(0)
    tokenizer = make_tokenizer()
    assert one.tokens[one.mask].tolist() == [*tokenizer.encode("c"), tokenizer.eos_token_id]


def test_bad_input_is_refused_before_the_target_is_looked_for(tmp_path: Path, prompts: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "good"}\n{"prompt"\n')
    for flags, message in (
        (("--prompts", str(bad)), r"bad\.jsonl:2: no JSON"),
        ((), "no prompts are named"),
        (("--templates", "--temperatures", "0,hot"), "--temperatures 0,hot"),
        (("--templates", "--temperatures", "-1"), "--temperatures -1"),
        (("--templates", "--batch", "0"), "--batch 0: it has to be 1 or more"),
        (("--templates", "--max-prompt-tokens", "0"), "--max-prompt-tokens 0"),
    ):
        with pytest.raises(RequestError, match=message):
            run(tmp_path, *flags, model="nowhere")
    assert not (tmp_path / "data").exists()


def test_a_target_that_changed_between_two_runs_is_refused(tmp_path: Path, target: Path, prompts: Path) -> None:
    flags = ("--prompts", str(prompts), "--tokens", "1")
    assert run(tmp_path, *flags) == 0
    with pytest.raises(RequestError, match="--seed 0 "):
        run(tmp_path, *flags, "--seed", "3")
    write_target(tmp_path / "tuned", seed=1)
    make_tokenizer().save_pretrained(str(tmp_path / "tuned"))
    with pytest.raises(PairError, match=r"prepared with .*target .* now the target is .*tuned"):
        run(tmp_path, *flags, model="tuned")


def test_folders_of_this_target_are_joined(
    tmp_path: Path, target: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--prompts", str(prompts), "--limit", "4") == 0
    assert run(tmp_path, "--prompts", str(prompts), "--limit", "3", "--seed", "1", out="more") == 0
    monkeypatch.setattr("dflash2_mlx.pairs.load", None)  # no weights are needed
    assert run(tmp_path, "--join", str(tmp_path / "data"), "--join", str(tmp_path / "more"), out="both") == 0
    joined = open_dataset(tmp_path / "both")
    parts = [open_dataset(tmp_path / name).conversations for name in ("data", "more")]
    assert (joined.shards, joined.conversations) == (2, sum(parts))
    assert min(parts) > 2
    assert f"digest {joined.digest}" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="data without its plan"):
        run(tmp_path, "--prompts", str(prompts), out="both")
