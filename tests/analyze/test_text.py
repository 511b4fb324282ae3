"""Recordings: what is written is read; a bad line is named by file and line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.analyze.text import RecordedText, append_text, drafter_label, prompts_digest, read_texts
from dflash2_mlx.errors import RequestError
from tests.analyze.small import small, written

TEXT = RecordedText(
    prompt=(1, 2), answer=(3, 4, 5), kind="code", temperature=1.0, model="m", identity="abc", vocab_size=6
)


def lines(path: Path, *found: Any) -> Path:
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in found))
    return path


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    texts = [written(small(), tokens=8), TEXT, replace(TEXT, drafter="d w4a16:gs64", cycles=2, cycle_tokens=3)]
    for text in texts:
        append_text(tmp_path / "texts.jsonl", text)
    assert read_texts(tmp_path / "texts.jsonl") == texts


def test_a_greedy_and_a_drawn_text_tell_what_made_them() -> None:
    greedy, drawn = (written(small(), temperature=temperature, tokens=20) for temperature in (0.0, 1.0))
    assert greedy.prompt == drawn.prompt
    assert greedy.answer != drawn.answer
    assert greedy.drafter == drafter_label(small().pair) == "drafter"
    assert greedy.cycle_tokens == 19
    assert 0 < greedy.cycles <= 19


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": []}, "has prompt []"),
        ({"answer": [3, 6]}, "has 6 in answer, expected ids from 0 to 5"),
        ({"answer": [3, True]}, "has True in answer"),
        ({"answer": "text"}, "has answer 'text'"),
        ({"kind": ""}, "has kind ''"),
        ({"model": None}, "has model None"),
        ({"identity": 3}, "has identity 3"),
        ({"temperature": 0.7}, "has temperature 0.7, expected 0 or 1"),
        ({"temperature": False}, "has temperature False"),
        ({"temperature": []}, "has temperature []"),
        ({"vocab_size": 0}, "has vocab_size 0"),
        ({"cycles": -1}, "has cycles -1"),
        ({"cycle_tokens": 1.5}, "has cycle_tokens 1.5"),
        ({"drafter": 1}, "has drafter 1"),
        ({"extra": 1}, "has unknown keys ['extra']"),
    ],
)
def test_a_wrong_line_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", asdict(TEXT), "", {**asdict(TEXT), **change})
    with pytest.raises(RequestError) as error:
        read_texts(path)
    assert f"{path}:3 {words}" in str(error.value)
    assert error.value.param == "replay"


@pytest.mark.parametrize(("line", "words"), [("{", "is not JSON"), ("[1]", "is [1], expected an object")])
def test_a_line_that_is_no_object_is_named(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"t\.jsonl:1 ") as error:
        read_texts(lines(tmp_path / "t.jsonl", line))
    assert words in str(error.value)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    for name in ("prompt", "answer", "kind", "temperature", "model", "identity", "vocab_size"):
        rest = {key: value for key, value in asdict(TEXT).items() if key != name}
        with pytest.raises(RequestError, match=f"t.jsonl:1 has {name} None"):
            read_texts(lines(tmp_path / "t.jsonl", rest))


def test_files_that_hold_nothing_are_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_texts(tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match="holds no text"):
        read_texts(lines(tmp_path / "t.jsonl", "", " "))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="cannot be read"):
        read_texts(tmp_path / "binary")
    with pytest.raises(RequestError, match="cannot be written"):
        append_text(tmp_path, TEXT)


def test_the_digest_is_of_the_prompts_alone() -> None:
    other = replace(TEXT, prompt=(1, 3))
    assert prompts_digest([TEXT, other]) == prompts_digest([TEXT, replace(TEXT, answer=(1,)), other])
    assert prompts_digest([TEXT, other]) != prompts_digest([TEXT])
    assert len(prompts_digest([TEXT])) == 12
