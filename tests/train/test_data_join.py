"""Data of several folders in one: copied in order, gone on with after a stop, and refused where it does not fit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash2_mlx.errors import CheckpointError, PairError, RequestError
from dflash2_mlx.train.data import command, options
from dflash2_mlx.train.data.dataset import Dataset, open_dataset, write_dataset
from dflash2_mlx.train.data.join import join, to_join
from dflash2_mlx.train.data.prepare import TargetIdentity
from dflash2_mlx.train.data.tokens import shard_path
from tests.train.test_data_folder import FACTS, written

TARGET = TargetIdentity("m", "f" * 64, "t" * 64, FACTS)


def texts(dataset: Dataset) -> list[list[int]]:
    return [one.tokens.tolist() for i in range(dataset.shards) for one in dataset.conversations_of(i)]


def test_shards_follow_one_another_and_a_folder_named_twice_counts_twice(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a"), written(tmp_path / "b", (2,), complete=False)
    found = to_join([tmp_path / "b", tmp_path / "a", tmp_path / "b"], TARGET)
    join(tmp_path / "out", found, TARGET)
    joined = open_dataset(tmp_path / "out")
    assert texts(joined) == texts(other) + texts(one) + texts(other)
    assert (joined.shards, joined.conversations, joined.done, joined.planned) == (4, 8, 8, 8)
    assert joined.kinds == {"chat": 4, "code": 4}
    assert joined.options["join"] == [other.digest, one.digest, other.digest]


def test_a_stopped_join_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    written(tmp_path / "a", (0, 1, 2))
    found = to_join([tmp_path / "a"], TARGET)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join(tmp_path / "out", found, TARGET, stop)
    with pytest.raises(CheckpointError, match="is not finished"):
        open_dataset(tmp_path / "out")
    first = shard_path(tmp_path / "out", 0).stat().st_mtime_ns
    steps: list[tuple[int, int]] = []
    joined = join(tmp_path / "out", found, TARGET, lambda done, total: steps.append((done, total)))
    assert steps == [(3, 3)]
    assert shard_path(tmp_path / "out", 0).stat().st_mtime_ns == first
    assert joined == open_dataset(tmp_path / "out")
    assert joined.digest == found[0].digest
    assert join(tmp_path / "out", found, TARGET) == joined


def _nothing(folder: Path) -> None:
    folder.mkdir()


def _no_shard(folder: Path) -> None:
    write_dataset(replace(written(folder), parts=(), complete=False))


def _of_another_target(folder: Path) -> None:
    write_dataset(replace(written(folder), target_fingerprint="e" * 64))


def _of_another_tokenizer(folder: Path) -> None:
    write_dataset(replace(written(folder), tokenizer_fingerprint="e" * 64))


def _of_another_reasoning(folder: Path) -> None:
    write_dataset(replace(written(folder), options={"reasoning": "off"}))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (_nothing, CheckpointError, "b: it holds no training data"),
        (_no_shard, CheckpointError, "b: no shard is finished"),
        (_of_another_target, PairError, "b: the data in .* was prepared with m"),
        (_of_another_tokenizer, PairError, "b: .* another tokenizer"),
        (_of_another_reasoning, RequestError, "differ in --reasoning"),
    ],
)
def test_folders_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], error: type[Exception], words: str
) -> None:
    written(tmp_path / "a")
    make(tmp_path / "b")
    with pytest.raises(error, match=words):
        to_join([tmp_path / "a", tmp_path / "b"], TARGET)


def test_a_folder_with_other_content_is_left_alone(tmp_path: Path) -> None:
    written(tmp_path / "a")
    found = to_join([tmp_path / "a"], TARGET)
    other = written(tmp_path / "other", (5,))
    with pytest.raises(CheckpointError, match="holds other data already"):
        join(tmp_path / "other", found, TARGET)
    assert open_dataset(tmp_path / "other") == other
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "letter.txt").write_text("dear")
    with pytest.raises(CheckpointError, match="holds other files"):
        join(tmp_path / "files", found, TARGET)
    with pytest.raises(RequestError, match="one of the folders to join"):
        join(tmp_path / "a", found, TARGET)


def test_a_damaged_shard_ends_it_with_its_name(tmp_path: Path) -> None:
    written(tmp_path / "a")
    found = to_join([tmp_path / "a"], TARGET)
    shard_path(tmp_path / "a", 1).write_bytes(shard_path(tmp_path / "a", 0).read_bytes())
    with pytest.raises(CheckpointError, match=r"tokens-00001\.safetensors is not the shard"):
        join(tmp_path / "out", found, TARGET)


def test_no_other_option_goes_along(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = ["--out", str(tmp_path / "out"), "--join", "a", "--templates", "--tokens", "5", "--temperatures", "0"]
    with pytest.raises(RequestError, match="without --templates, --tokens, --temperatures:"):
        options.check(parser.parse_args(given))
