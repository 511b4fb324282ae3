"""Prompts from every kind of source; a bad line is told with its file and number."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.prompts import KINDS, hub_rows, own
from dflash2_mlx.train.data.exclude import without, words
from dflash2_mlx.train.data.own import template_prompts
from dflash2_mlx.train.data.plan import Item, make_plan, read_plan, write_plan
from dflash2_mlx.train.data.sources import Sources, gather


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def asked(items: list[Item]) -> set[str]:
    return {item.asked for item in items}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_earlier_answers_are_context_and_the_last_is_dropped(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "chat.jsonl",
        {"messages": [user("a1"), assistant("a2"), user("a3"), assistant("a4")], "kind": "code"},
        {"conversations": [{"from": "human", "value": "b1"}, {"from": "gpt", "value": "b2"}]},
        {"prompt": "c1"},
        {"question": "d1", "answer": "d2"},
        {"instruction": "e1", "input": "e2"},
        {"instruction": "f1", "input": ""},
    )
    found = {item.asked: item for item in gather(Sources(prompts=(path,)), 0)}
    assert set(found) == {"a3", "b1", "c1", "d1", "e1\n\ne2", "f1"}
    assert [message["content"] for message in found["a3"].messages] == ["a1", "a2", "a3"]
    assert (found["a3"].kind, found["c1"].kind, found["c1"].source) == ("code", "other", "chat.jsonl")
    assert all(item.completion is None for item in found.values())


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ("{", "no JSON"),
        ("[]", "a JSON object"),
        ({"answer": "x"}, "none of messages"),
        ({"messages": [assistant("x")]}, "messages is no list, or an empty one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "needs a role"),
        ({"prompt": " "}, "prompt is no text"),
    ],
)
def test_a_bad_line_is_told_with_file_and_number(tmp_path: Path, bad: Any, cause: str) -> None:
    path = lines(tmp_path / "chat.jsonl", {"prompt": "good"}, "", bad)
    with pytest.raises(RequestError, match=rf"chat\.jsonl:3: .*{cause}"):
        gather(Sources(prompts=(path,)), 0)


@pytest.mark.parametrize(
    "bad", [{"completion": ""}, {"completion": None}, {"temperature": "hot"}, {"finished": 1}, {"prompt": None}]
)
def test_a_bad_completion_is_told_with_file_and_number(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = {"prompt": "p", "completion": "c", "temperature": 0.7, "finished": False}
    path = lines(tmp_path / "answers.jsonl", good, {**good, **bad})
    with pytest.raises(RequestError, match=r"answers\.jsonl:2: "):
        gather(Sources(completions=(path,)), 0)


def test_a_completion_that_is_missing_is_called_so(tmp_path: Path) -> None:
    path = lines(tmp_path / "answers.jsonl", {"prompt": "p"})
    with pytest.raises(RequestError, match=r"answers\.jsonl:1: completion is missing"):
        gather(Sources(completions=(path,)), 0)


def test_completions_are_read_packed_too(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl.gz"
    row = {"prompt": "p", "completion": "c", "temperature": 0.7, "finished": False}
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    (item,) = gather(Sources(completions=(path,)), 0)
    assert (item.asked, item.completion, item.temperature, item.finished) == ("p", "c", 0.7, False)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RequestError, match="cannot be read"):
        gather(Sources(completions=(path,)), 0)


def test_texts_are_cut_into_beginnings(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    words_of = " ".join(f"word{i}" for i in range(4000)).replace("0 ", "0\n")
    (tmp_path / "sub" / "a.md").write_text(words_of)
    (tmp_path / "b.py").write_text("value = 1\n" * 200)
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00" * 1000)
    (tmp_path / ".hidden.txt").write_text(words_of)
    (tmp_path / "photo.jpg").write_text(words_of)
    found = gather(Sources(texts=(tmp_path,)), 0)
    assert Counter(item.kind for item in found) == {"prose": len(words_of) // 8000 + 1, "code": 1}
    for item in found:
        assert item.text is not None
        assert 128 <= len(item.text) <= 1024
        assert item.text in (words_of if item.kind == "prose" else "value = 1\n" * 200)
    assert gather(Sources(texts=(tmp_path,)), 0) == found
    for folder in (tmp_path / "sub" / "a.md", tmp_path / "none"):
        with pytest.raises(RequestError, match="is no folder"):
            gather(Sources(texts=(folder,)), 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="holds no text"):
        gather(Sources(texts=(tmp_path / "empty",)), 0)


def test_our_templates_are_many_and_mostly_code_and_structured() -> None:
    found = template_prompts(0)
    texts = [str(prompt.messages[0]["content"]) for prompt in found]
    assert len(set(texts)) == len(texts) >= 20_000
    assert not [text for text in texts if "{language}" in text or "{thing" in text or ":2}" in text]
    for stretch in (found[:500], found[:5000]):
        shares = Counter(prompt.kind for prompt in stretch)
        assert set(shares) == set(KINDS)
        assert 0.4 < (shares["code"] + shares["structured"]) / len(stretch) < 0.6
    assert template_prompts(0) == found


def test_near_variants_stay_out(tmp_path: Path) -> None:
    path = tmp_path / "held.txt"
    path.write_text("Write a short poem about the sea.\n\nHow do airplanes stay in the air?\n")
    texts = [
        "write a short poem about the SEA!",
        "Write a poem about the sea",
        "How do airplanes stay in the air today?",
    ]
    texts += ["How do I cook rice?", "Write a short story about a dog"]
    own_prompt = str(own()[0].messages[-1]["content"])
    items = [Item(kind="k", source="s", messages=(user(text),)) for text in [*texts, own_prompt]]
    assert asked(without(items, path)) == {"How do I cook rice?", "Write a short story about a dog"}
    assert asked(without(items, None)) == set(texts)
    with pytest.raises(RequestError, match="cannot be read") as caught:
        without(items, tmp_path / "none.txt")
    assert caught.value.param == "exclude"
    assert words("Is it so? It is.") == {"is", "it", "so"}


def test_several_sources_are_limited_each(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", *({"prompt": f"p{i}"} for i in range(9)))
    found = gather(Sources(prompts=(path,), templates=True, limit=4), 0)
    assert Counter(item.source for item in found) == {"a.jsonl": 4, "templates": 4}
    with pytest.raises(RequestError, match="no prompts are named"):
        gather(Sources(), 0)
    with pytest.raises(RequestError, match="limit of 0"):
        gather(Sources(templates=True, limit=0), 0)
    with pytest.raises(RequestError, match="nothing is left"):
        gather(Sources(prompts=(path,), exclude=path), 0)


class Hub:
    """Both of the Hub's interfaces, for a set of three rows."""

    def get(self, url: str, *, params: dict[str, Any], timeout: float) -> httpx.Response:
        if url.endswith("/splits"):
            answer: Any = {"splits": [{"config": c, "split": s} for c in ("x", "y") for s in ("test", "train")]}
        else:
            name = f"{params['config']}/{params['split']}"
            rows = [{"row_idx": i, "row": {"prompt": f"{name} {i}"}} for i in range(3)][params["offset"] :]
            answer = {"rows": rows, "num_rows_total": 3}
        return httpx.Response(200, json=answer, request=httpx.Request("GET", url))


def test_a_set_of_the_hub_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_session", Hub)
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path))
    assert asked(gather(Sources(sets=("o/n",)), 0)) == {f"x/train {i}" for i in range(3)}
    assert asked(gather(Sources(sets=("o/n:y",), limit=2), 0)) == {"y/train 0", "y/train 1"}
    assert hub_rows.named_rows("o/n:y:test") == hub_rows.HubRows("o/n", "y", "test")
    with pytest.raises(DFlashError, match="no configuration 'z': there are x, y"):
        gather(Sources(sets=("o/n:z",)), 0)
    with pytest.raises(RequestError, match="--set nothing"):
        gather(Sources(sets=("nothing",)), 0)


def test_the_plan_is_decided_by_the_seed_and_kept(tmp_path: Path) -> None:
    prompts = [Item(kind="k", source="s", messages=(user(f"p{i}"),)) for i in range(20)]
    given = Item(kind="k", source="s", messages=(user("p0"),), completion="c", temperature=0.3)
    plan = make_plan([*prompts, prompts[3], given], temperatures=[0, 0.7], answers_per_prompt=2, seed=1)
    assert len(plan) == 41
    assert plan == make_plan([*prompts, given], temperatures=[0, 0.7], answers_per_prompt=2, seed=1)
    assert [item for item in plan if item.completion] == [given]
    by_prompt = Counter((item.asked, item.temperature) for item in plan if item.completion is None)
    assert set(by_prompt.values()) == {1}
    assert len(by_prompt) == 40
    assert [item.asked for item in plan] != [
        item.asked for item in make_plan(prompts, temperatures=[0, 0.7], answers_per_prompt=2, seed=2)
    ]
    one_each = make_plan(prompts, temperatures=[0, 0.7], answers_per_prompt=1, seed=1)
    assert Counter(item.temperature for item in one_each) == {0: 10, 0.7: 10}
    greedy = make_plan(prompts, temperatures=[0], answers_per_prompt=3, seed=1)
    assert len(greedy) == 20
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ('{"prompt": "half \\ud83d"}', "half of a character"),
        ('{"messages": [{"role": "user", "content": "\\udc00"}]}', "half of a character"),
        ('{"prompt": "p", "kind": ["a"]}', "kind is to be"),
    ],
)
def test_what_no_tokenizer_or_table_takes_is_refused_by_line(tmp_path: Path, row: str, cause: str) -> None:
    path = lines(tmp_path / "chat.jsonl", {"prompt": "a"}, row)
    with pytest.raises(RequestError, match=f"chat.jsonl:2: .*{cause}"):
        gather(Sources(prompts=(path,)), 0)


@pytest.mark.parametrize("temperature", ["NaN", "Infinity", "-1"])
def test_an_answer_at_no_temperature_is_refused(tmp_path: Path, temperature: str) -> None:
    path = lines(tmp_path / "done.jsonl", f'{{"prompt": "a", "completion": "b", "temperature": {temperature}}}')
    with pytest.raises(RequestError, match=r"done.jsonl:1: temperature is"):
        gather(Sources(completions=(path,)), 0)


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.jsonl.gz"])
def test_a_line_that_is_no_utf8_is_told_by_its_number(tmp_path: Path, name: str) -> None:
    content = b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "caf\xe9"}\r\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(RequestError, match=rf"{name}:3: no UTF-8"):
        gather(Sources(prompts=(path,)), 0)


def test_binary_files_with_the_names_of_texts_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the stop in a tin " * 40)
    (tmp_path / "zeros.txt").write_bytes(b"word \0" * 2000)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe" * 2000)
    assert {item.source for item in gather(Sources(texts=(tmp_path,)), 0)} == {"words.txt"}
