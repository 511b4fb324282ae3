"""Controls of the exactness tests: a rollback that is broken on purpose has to be seen."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.errors import TargetError
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import RecurrentEntry, RotatingEntry, Transaction, TrimEntry
from tests import tiny
from tests.running import decode, subject

RECURRENT = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "mamba2", "falcon_h1")
ROTATING = ("llama_sliding", "gemma4", "gpt_oss", "muse_glimmer", "laguna", "gemma3_text")


def keep_all(self: Any, keep: int, rows: int) -> None:
    """A rollback that rolls nothing back."""


def one_row_short(self: RecurrentEntry, keep: int, rows: int) -> None:
    settle_recurrent(self, keep - 1 if 1 < keep < rows else keep, rows)


def never_replayed(self: RecurrentEntry, keep: int, rows: int) -> None:
    settle_recurrent(self, 0 if keep < rows else keep, rows)


def offset_forgotten(self: RotatingEntry, keep: int, rows: int) -> None:
    offset = self.cache.offset
    settle_rotating(self, keep, rows)
    self.cache.offset = offset


def cut_from_the_front(self: RotatingEntry, keep: int, rows: int) -> None:
    settle_rotating(self, rows, rows)
    cut = rows - keep
    keys, values, offset, sink, size, index = self.cache.state
    self.cache.state = (keys[..., cut:, :], values[..., cut:, :], offset - cut, sink, size, index - cut)


settle_recurrent = RecurrentEntry.settle
settle_rotating = RotatingEntry.settle

BROKEN = [
    *((family, TrimEntry, keep_all) for family in ("llama", "qwen3_moe", "gpt_oss", "qwen3_next", "falcon_h1")),
    *((family, RotatingEntry, keep_all) for family in ROTATING),
    *((family, RotatingEntry, offset_forgotten) for family in ("llama_sliding", "gpt_oss")),
    *((family, RotatingEntry, cut_from_the_front) for family in ("llama_sliding", "gpt_oss")),
    *((family, RecurrentEntry, keep_all) for family in RECURRENT),
    *((family, RecurrentEntry, one_row_short) for family in RECURRENT),
    *((family, RecurrentEntry, never_replayed) for family in ("qwen3_5", "lfm2")),
]


@pytest.mark.parametrize(("family", "entry", "broken"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_control_a_broken_rollback_changes_the_text(
    family: str, entry: type, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    monkeypatch.setattr(entry, "settle", broken)
    proposer = of.scripted(prompt, 50, right=0.6, checked=False)
    assert decode(of.target, proposer, prompt, block_size=5, max_tokens=50).tokens != of.answer(prompt, 50)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_5", "falcon_h1"])
def test_control_a_commit_of_all_rows_changes_the_text(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    commit = Transaction.commit
    monkeypatch.setattr(Transaction, "commit", lambda self, keep: commit(self, self.rows))
    proposer = of.scripted(prompt, 50, right=0.6, checked=False)
    assert decode(of.target, proposer, prompt, block_size=5, max_tokens=50).tokens != of.answer(prompt, 50)


@pytest.mark.parametrize(
    ("family", "entry"), [("llama", TrimEntry), ("gpt_oss", RotatingEntry), ("qwen3_5", RecurrentEntry)]
)
def test_the_probe_at_load_finds_a_broken_rollback(family: str, entry: type, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tiny.build(family))
    monkeypatch.setattr(entry, "settle", keep_all)
    with pytest.raises(TargetError, match="differs from the plain one"):
        target.prepare([1])


def test_control_a_scripted_proposer_notices_a_wrong_anchor() -> None:
    of = subject("llama", 16)
    prompt = of.prompt(50)
    proposer = of.scripted(prompt, 20)
    proposer.text[60] = (proposer.text[60] + 1) % of.target.vocab_size
    with pytest.raises(AssertionError, match="position 60"):
        decode(of.target, proposer, prompt, block_size=2, max_tokens=20)
