"""The prompts of our own, those of a user's file, and the digest of both."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.prompts import KINDS, Prompt, digest, from_jsonl, own


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_there_are_twelve_of_each_kind_with_ids_of_their_own() -> None:
    prompts = own()
    assert Counter(prompt.kind for prompt in prompts) == dict.fromkeys(KINDS, 12)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert {prompt.source for prompt in prompts} == {"own"}


def test_each_is_a_chat_that_ends_with_the_user() -> None:
    for prompt in own():
        roles = [message["role"] for message in prompt.messages]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)], prompt.id
        assert roles[-1] == "user"
        assert all(message["content"].strip() == message["content"] != "" for message in prompt.messages)


def test_they_are_disjoint_and_of_many_lengths() -> None:
    prompts = own()
    sentences = Counter(
        sentence.strip()
        for prompt in prompts
        for message in prompt.messages
        for sentence in re.split(r"(?<=[.?!])\s+|\n", message["content"])
        if len(sentence.split()) > 8
    )
    assert [sentence for sentence, count in sentences.items() if count > 1] == []
    lengths = [sum(len(message["content"].split()) for message in prompt.messages) for prompt in prompts]
    assert min(lengths) < 30
    assert 450 < max(lengths) < 700
    for kind in KINDS:
        turns = [len(prompt.messages) for prompt in prompts if prompt.kind == kind]
        assert max(turns) > 1 or kind in ("copy-edit", "translation"), kind


def test_kinds_and_their_number_can_be_chosen() -> None:
    prompts = own(("prose", "code"), per_kind=2)
    assert [prompt.id for prompt in prompts] == ["prose-01", "prose-02", "code-01", "code-02"]
    assert len(own(("chat", "chat"))) == 12


@pytest.mark.parametrize("options", [{"kinds": ("poems",)}, {"per_kind": 0}])
def test_what_there_is_not_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"poems.*code, mathematics|limit of 0"):
        own(**options)


def test_the_data_of_the_package_stays_small() -> None:
    folder = resources.files("dflash2_mlx.prompts") / "data"
    sizes = [len(entry.read_bytes()) for entry in folder.iterdir() if entry.is_file()]
    assert len(sizes) == len(KINDS) + 1
    assert sum(sizes) < 200_000


def test_the_digest_depends_on_the_questions_and_their_order_alone() -> None:
    prompts = own(per_kind=1)
    renamed = [Prompt(id="x", kind=p.kind, messages=tuple(map(dict, p.messages)), source="y") for p in prompts]
    assert re.fullmatch("[0-9a-f]{12}", digest(prompts))
    assert digest(renamed) == digest(prompts)
    assert digest(prompts[::-1]) != digest(prompts)
    assert digest(prompts[1:]) != digest(prompts)
    assert digest([]) != digest(prompts)


def test_a_file_may_hold_prompts_and_messages(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    path = write(tmp_path, "\ufeff", {"prompt": "One?", "kind": "law"}, "", {"messages": messages, "id": 7})
    first, second = from_jsonl(path)
    assert first == Prompt(
        id="mine-2", kind="law", messages=({"role": "user", "content": "One?"},), source="mine.jsonl"
    )
    assert (second.id, second.kind, list(second.messages)) == ("7", "other", messages)
    assert from_jsonl(path, 1) == [first]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q", "answer": "A"},
        {"problem": "Q", "solution": "A"},
        {"prompt": "Q", "task_id": "HumanEval/0"},
        {"text": "Q", "code": "x"},
        {"turns": ["Q", "second"], "category": "writing"},
        {"prompt": ["Q", "second"]},
    ],
)
def test_the_columns_of_the_known_sets_are_recognised(tmp_path: Path, row: dict[str, Any]) -> None:
    (prompt,) = from_jsonl(write(tmp_path, row))
    assert prompt.messages == ({"role": "user", "content": "Q"},)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "a JSON object is expected"),
        ({"answer": "x", "b": 1}, "none of messages, prompt, .* it has answer, b"),
        ({}, "it has nothing"),
        ({"prompt": ""}, "prompt is no text"),
        ({"prompt": 5}, "prompt is no text"),
        ({"turns": [[]]}, "turns is no text"),
        ({"messages": "hi"}, "messages is no list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "needs a role"),
        ({"messages": [{"role": "user", "content": None}]}, "needs a role"),
        ({"messages": ["x"]}, "needs a role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message has to be the user's"),
        ({"prompt": "x", "kind": ""}, "kind is to be a text"),
        ({"prompt": "x", "id": True}, "id is to be a text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, told: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(RequestError, match=told) as caught:
        from_jsonl(path)
    assert f"{path}:2: " in str(caught.value)


def test_a_file_without_prompts_or_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no prompts"):
        from_jsonl(write(tmp_path, "", ""))
    with pytest.raises(RequestError, match=r"missing\.jsonl cannot be read: No such file"):
        from_jsonl(tmp_path / "missing.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(RequestError, match="no UTF-8"):
        from_jsonl(tmp_path / "latin.jsonl")
    with pytest.raises(RequestError, match="limit of 0"):
        from_jsonl(write(tmp_path, {"prompt": "x"}), 0)


def test_more_than_there_are_and_no_kinds_are_refused_by_their_names() -> None:
    assert len(own(["code"], per_kind=12)) == 12
    with pytest.raises(RequestError, match="13 prompts of a kind: there are 12") as caught:
        own(["code"], per_kind=13)
    assert caught.value.param == "prompts_per_kind"
    with pytest.raises(RequestError, match="no kinds") as caught:
        own([])
    assert caught.value.param == "kinds"
