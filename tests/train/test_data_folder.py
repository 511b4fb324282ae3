"""A data folder's own description: digest, counts, and what is said of one that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash2_mlx.errors import CheckpointError, PairError
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.train.data.dataset import Dataset, check_target, describe, open_dataset, write_dataset
from dflash2_mlx.train.data.tokens import Conversation, shard_path, write_shard

FACTS = TargetFacts(8, 2, 32)


def conversation(seed: int, length: int = 10, prompt: int = 4) -> Conversation:
    rng = np.random.default_rng(seed)
    return Conversation(rng.integers(0, 32, length, dtype=np.int32), np.arange(length) >= prompt, 0.7)


def written(folder: Path, seeds: tuple[int, ...] = (0, 1), *, complete: bool = True) -> Dataset:
    """One shard of two conversations for each seed."""
    parts = []
    folder.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds):
        found = [conversation(seed), conversation(seed + 50, 12)]
        write_shard(shard_path(folder, number), found)
        parts.append(describe(found, ["code", "chat"], 2 * number + 2))
    new = Dataset(folder, "m", "f" * 64, "t" * 64, 32, 8, 2, planned=4, complete=complete, parts=tuple(parts))
    write_dataset(new)
    return new


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    new = written(tmp_path)
    found = open_dataset(tmp_path)
    assert found == new
    assert (found.shards, found.conversations, found.tokens, found.answer_tokens) == (2, 4, 44, 28)
    assert found.kinds == {"chat": 2, "code": 2}
    assert found.facts == FACTS
    first = found.conversations_of(0)[0]
    assert first.tokens.tolist() == conversation(0).tokens.tolist()
    counts = found.frequencies()
    assert counts.shape == (32,)
    assert counts.sum() == 28
    expected = np.concatenate([c.tokens[c.mask] for s in range(2) for c in found.conversations_of(s)])
    assert counts.tolist() == np.bincount(expected, minlength=32).tolist()


def test_the_digest_is_of_content_and_target(tmp_path: Path) -> None:
    one, same, other = written(tmp_path / "a"), written(tmp_path / "b"), written(tmp_path / "c", (0, 2))
    assert len(one.digest) == 12
    assert one.digest == same.digest != other.digest
    assert replace(one, target_fingerprint="e" * 64).digest != one.digest


def test_missing_unfinished_and_damaged_data_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="prepare it with `train data`"):
        open_dataset(tmp_path)
    written(tmp_path, (0,), complete=False)
    with pytest.raises(CheckpointError, match=r"not finished \(2 of 4 conversations\): give the same"):
        open_dataset(tmp_path)
    written(tmp_path)
    write_shard(shard_path(tmp_path, 1), [conversation(9)])
    with pytest.raises(CheckpointError, match=r"tokens-00001\.safetensors is not the shard"):
        open_dataset(tmp_path).conversations_of(1)
    shard_path(tmp_path, 1).unlink()
    with pytest.raises(CheckpointError, match=r"lacks tokens-00001"):
        open_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format": 1, "parts"')
    with pytest.raises(CheckpointError, match=r"dataset\.json cannot be used"):
        open_dataset(tmp_path)


def test_another_target_is_refused_with_both_names(tmp_path: Path) -> None:
    found = written(tmp_path)
    check_target(found, "renamed", "f" * 64, FACTS)
    for fingerprint, facts in (("e" * 64, FACTS), ("f" * 64, TargetFacts(8, 3, 32))):
        with pytest.raises(PairError, match=r"prepared with m .* now the target is other .* give --model m"):
            check_target(found, "other", fingerprint, facts)
