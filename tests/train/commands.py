"""A tiny place to give the command `train` in, and a double of its loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash2_mlx import cli
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.train.data.dataset import Dataset, describe, write_dataset
from dflash2_mlx.train.data.fingerprint import fingerprint, tokenizer_fingerprint
from dflash2_mlx.train.data.tokens import Conversation, shard_path, write_shard
from dflash2_mlx.train.loop import checkpoint
from dflash2_mlx.train.reporting.history import EvaluationLine, StepLine
from tests.tiny_checkpoints import VOCAB

SHAPE = ["--layers", "2", "--block-size", "4", "--window", "16"]
SHAPE += ["--mask-token", "299", "--conv-group-size", "4", "--intermediate-size", "64"]
SMALL = [*SHAPE, "--selector-rank", "4", "--selector-top-k", "4", "--frequent", "0", "--steps", "6", "--warmup", "1"]
HELD_OUT = "the stop\nin a tin\n"


def write_data(
    folder: Path,
    target: Path,
    *,
    seed: int = 0,
    prompt: list[int] | None = None,
    said: list[Conversation] | None = None,
) -> Path:
    """A data folder of a tiny target: of what was `said`, else of two random conversations, and one with the prompt."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    answers = [Conversation(rng.integers(0, 250, 24, dtype=np.int32), np.arange(24) > 7) for _ in range(2)]
    answers = answers if said is None else list(said)
    if prompt is not None:
        tokens = np.array([*prompt, 5, 6, 7], dtype=np.int32)
        answers.append(Conversation(tokens, np.arange(len(tokens)) >= len(prompt)))
    write_shard(shard_path(folder, 0), answers)
    config = json.loads((target / "config.json").read_text())
    facts = TargetFacts(config["hidden_size"], config["num_hidden_layers"], VOCAB)
    dataset = Dataset(
        folder,
        "tiny",
        fingerprint(target),
        tokenizer_fingerprint(target),
        facts.vocab_size,
        facts.hidden_size,
        facts.num_layers,
        planned=len(answers),
        complete=True,
        parts=(describe(answers, ["chat"] * len(answers), len(answers)),),
    )
    write_dataset(dataset)
    return folder


@dataclass
class Double:
    """In place of `loop.Trainer`: counts its steps in the state, and moves no weight."""

    made: list[dict[str, Any]]
    on_begin: Callable[[], None] = lambda: None

    def __call__(self, *args: Any, **named: Any) -> Any:
        recipe, _, store, order, model, folder = args
        self.made.append({"recipe": recipe, "store": store, "order": order, "model": model, "folder": folder, **named})
        return _Training(self, *args, **named)


class _Training:
    def __init__(self, double: Double, *args: Any, **named: Any) -> None:
        self.double, self.named = double, named
        self.recipe, *_, self.model, self.folder = args
        state = checkpoint.load(self.folder / "state")
        self.step = 0 if state is None else state.step

    def run(self) -> Any:
        self.double.on_begin()
        stopped = "steps"
        while self.step < self.recipe.loop.steps:
            if self.named["cancelled"]():
                stopped = "cancelled"
                break
            self.step += 1
            self.named["on_step"](StepLine(self.step, 0.1, 10, 4, 3.0, 2.0, 1.0, 0.1, 1.0, [0.5], [0.9]))
        weights: dict[str, mx.array] = tree_flatten(self.model.parameters(), destination={})  # type: ignore[assignment]
        checkpoint.save(self.folder / "state", checkpoint.State(self.step, weights, {}))
        if stopped == "steps":
            checkpoint.save_weights(self.folder / "best", self.step, weights)
            self.named["on_evaluation"](EvaluationLine(self.step, 1.5, {"other": 1.5}, [0.3, 0.2, 0.1]))
        return type("Outcome", (), {"step": self.step, "stopped": stopped, "best": None})()


def train(place: Path, out: Path, *more: str, data: str = "data") -> int:
    paths = ["--model", str(place / "target"), "--data", str(place / data), "--held-out", str(place / "held_out.txt")]
    return cli.main(["train", "--out", str(out), *paths, *SMALL, *more])


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1, "one line for the user"
    return error
