"""Held-out prompts and their answers; acceptance by real decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx import pairs
from dflash2_mlx.errors import PairError, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.prompts import Prompt
from dflash2_mlx.text.stream import generate
from dflash2_mlx.train.data import held_out
from dflash2_mlx.train.data.held_out import HeldOut, answer, held_out_prompts, some_of
from dflash2_mlx.train.run.evaluate import decode_acceptance
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_drafter(folder / "drafter", tiny_drafter_config(write_target(folder / "target")))
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> Pair:
    return pairs.load(str(folder / "target"), None)


@pytest.fixture(scope="module")
def drafted(folder: Path) -> Pair:
    return pairs.load(str(folder / "target"), str(folder / "drafter"))


def prompt(text: str, kind: str = "chat") -> Prompt:
    return Prompt(id=text, kind=kind, messages=({"role": "user", "content": text},), source="test")


PROMPTS = [prompt("the stop"), prompt("in a tin", "code"), prompt("her hat", "code")]


def test_prompts_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "held_out.txt"
    path.write_text("First one.\n\n  Second one. \n", encoding="utf-8")
    found = held_out_prompts(path)
    assert [(one.messages[0]["content"], one.kind) for one in found] == [
        ("First one.", "other"),
        ("Second one.", "other"),
    ]


def test_prompts_of_a_jsonl_file_have_their_kinds(tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    path.write_text('{"prompt": "x", "kind": "code"}\n')
    assert held_out_prompts(path)[0].kind == "code"
    path.write_text('{"prompt": "x"}\n{"prompt": ')
    with pytest.raises(RequestError, match=r"held_out\.jsonl:2: no JSON") as caught:
        held_out_prompts(path)
    assert caught.value.param == "held_out"


def test_our_own_are_some_of_each_kind() -> None:
    kinds = [one.kind for one in held_out_prompts(None)]
    assert len(kinds) == 14
    assert len(set(kinds)) == 7


def test_some_of_them_are_taken_kinds_in_turn() -> None:
    all_of_them = [
        HeldOut((n,), kind, (0, 1)) for n, kind in enumerate(["code", "code", "chat", "code", "chat", "prose"])
    ]
    assert [one.prompt_ids[0] for one in some_of(all_of_them, 3)] == [0, 2, 5]
    assert [one.prompt_ids[0] for one in some_of(all_of_them, 5)] == [0, 1, 2, 4, 5]
    assert some_of(all_of_them, None) == some_of(all_of_them, 9) == all_of_them


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(RequestError, match="holds no prompts: write one a line"):
        held_out_prompts(tmp_path / "empty.txt")
    with pytest.raises(RequestError, match=r"gone\.txt cannot be read"):
        held_out_prompts(tmp_path / "gone.txt")


def test_answers_are_the_targets_plain_greedy_text(plain: Pair) -> None:
    found = answer(plain, PROMPTS, 12)
    assert [one.kind for one in found] == ["chat", "code", "code"]
    for one in found:
        assert list(one.answer) == generate(plain, one.prompt_ids, max_tokens=12, verify_mode="off").tokens


def test_kept_answers_are_not_made_again(plain: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "held_out.jsonl", []
    greedy = held_out._greedy

    def counted(pair: Pair, prompts: list[tuple[int, ...]], tokens: int) -> Any:
        made.extend([tokens] * len(prompts))
        return greedy(pair, prompts, tokens)

    monkeypatch.setattr(held_out, "_greedy", counted)
    first = answer(plain, PROMPTS[:2], 8, kept=path, identity="a")
    assert answer(plain, PROMPTS, 8, kept=path, identity="a")[:2] == first
    assert len(made) == 3
    answer(plain, PROMPTS, 9, kept=path, identity="a")
    answer(plain, PROMPTS, 9, kept=path, identity="b")
    assert made == [8] * 3 + [9] * 6, "another length and another target have other answers"


def test_a_line_that_a_kill_has_cut_is_made_again(plain: Pair, tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    first = answer(plain, PROMPTS, 8, kept=path)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert answer(plain, PROMPTS, 8, kept=path) == first
    assert json.loads(path.read_text().splitlines()[-1]) == json.loads(whole.splitlines()[-1])


def test_decoding_is_counted_by_kind_and_position(drafted: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [HeldOut((5, 6, 7), "chat", (1,)), HeldOut((9, 2), "code", (1,)), HeldOut((8, 8, 3), "code", (1,))]
    stats = [generate(drafted, one.prompt_ids, max_tokens=24, block_size=4, seed=0).stats for one in held]
    found = decode_acceptance(drafted, held, block_size=4, tokens=24, step=7)
    cycles = sum(one.cycles for one in stats)
    assert found.step == 7
    assert found.tokens_per_cycle == sum(one.cycle_tokens for one in stats) / cycles
    code = stats[1:]
    assert found.by_kind == {
        "chat": stats[0].tokens_per_cycle,
        "code": sum(one.cycle_tokens for one in code) / sum(one.cycles for one in code),
    }
    by_position = zip(*(one.accepted_by_position for one in stats), strict=True)
    assert found.accepted_by_position == [sum(stood) / cycles for stood in by_position]
    assert len(found.accepted_by_position) == 3


def test_acceptance_needs_a_drafter_and_prompts(plain: Pair, drafted: Pair) -> None:
    with pytest.raises(PairError, match="has no drafter"):
        decode_acceptance(plain, [HeldOut((1,), "chat", (1,))], block_size=4, tokens=8)
    with pytest.raises(RequestError, match="no held-out prompts"):
        decode_acceptance(drafted, [], block_size=4, tokens=8)


def test_a_young_drafter_is_no_alarm_here_and_is_one_elsewhere(
    drafted: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dflash2_mlx.decode import stats

    monkeypatch.setattr(stats, "ALARM_CYCLES", 3)
    monkeypatch.setattr(stats, "alarm_of", lambda cycles, accepted: "does not fit")
    held = [HeldOut((5, 6, 7), "chat", (1,))]
    decode_acceptance(drafted, held, block_size=4, tokens=24)
    assert not caplog.records
    generate(drafted, held[0].prompt_ids, max_tokens=24, block_size=4, seed=0)
    assert [record.message for record in caplog.records] == ["does not fit"]
