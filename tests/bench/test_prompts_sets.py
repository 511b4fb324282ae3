"""The five sets: from a local file, or from the Hub's rows with a copy on disk. Nothing is fetched here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.prompts import SETS, from_set, hub_rows

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How many {braces}?", "answer": "2"},
    "math500": {"problem": "Solve.", "answer": "3"},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f():\n"},
    "mbpp": {"prompt": "Write a function.", "code": "..."},
    "mtbench": {"category": "coding", "prompt": ["First?", "Second?"]},
}


class Hub:
    """The rows API with `total` rows of each set; `asked` are the offsets that were asked for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.asked: list[int] = []
        self.params: dict[str, str] = {}
        self.answer: httpx.Response | Exception | None = None

    def get(self, url: str, *, params: dict[str, Any], timeout: float) -> httpx.Response:
        assert (url, timeout) == (hub_rows.URL, 30.0)
        self.asked.append(params["offset"])
        self.params = params
        if isinstance(self.answer, Exception):
            raise self.answer
        found = self.answer or httpx.Response(200, json=self._page(params))
        found.request = httpx.Request("GET", url)
        return found

    def _page(self, params: dict[str, Any]) -> dict[str, Any]:
        of = next(name for name in SETS if name in params["dataset"].lower().replace("-", "").replace("_", ""))
        numbers = range(params["offset"], min(self.total, params["offset"] + params["length"]))
        return {
            "rows": [{"row_idx": i, "row": ROWS[of] | {"n": i}, "truncated_cells": []} for i in numbers],
            "num_rows_total": self.total,
        }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(250)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: found)
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "dflash2-mlx"))
    return found


@pytest.mark.parametrize(
    ("name", "kind", "begin", "end"),
    [
        ("gsm8k", "mathematics", "How many {braces}?\n", "\\boxed{}."),
        ("math500", "mathematics", "Solve.\n", "\\boxed{}."),
        ("humaneval", "code", "Write a solution", "```python\ndef f():\n\n```"),
        ("mbpp", "code", "Write a function.", "Write a function."),
        ("mtbench", "code", "First?", "First?"),
    ],
)
def test_a_set_is_asked_in_its_own_way(hub: Hub, name: str, kind: str, begin: str, end: str) -> None:
    prompts = from_set(name, 2)
    assert [prompt.id for prompt in prompts] == [f"{name}-1", f"{name}-2"]
    assert {(prompt.kind, prompt.source) for prompt in prompts} == {(kind, name)}
    (message,) = prompts[0].messages
    assert message["role"] == "user"
    assert message["content"].startswith(begin)
    assert message["content"].endswith(end)


def test_every_set_has_its_repository_and_split(hub: Hub) -> None:
    asked = {}
    for name in SETS:
        from_set(name, 1)
        asked[name] = (hub.params["dataset"], hub.params["config"], hub.params["split"])
    assert asked == {
        "gsm8k": ("openai/gsm8k", "main", "test"),
        "math500": ("HuggingFaceH4/MATH-500", "default", "test"),
        "humaneval": ("openai/openai_humaneval", "openai_humaneval", "test"),
        "mbpp": ("google-research-datasets/mbpp", "sanitized", "test"),
        "mtbench": ("HuggingFaceH4/mt_bench_prompts", "default", "train"),
    }


def test_what_was_fetched_is_kept_and_only_the_rest_is_asked_for(hub: Hub) -> None:
    assert len(from_set("gsm8k", 30)) == 30
    assert hub.asked == [0]
    assert len(from_set("gsm8k", 100)) == 100
    assert hub.asked == [0]  # a page was kept
    assert len(from_set("gsm8k")) == 250
    assert hub.asked == [0, 100, 200]
    assert len(from_set("gsm8k")) == 250
    assert len(from_set("gsm8k", 999)) == 250
    assert hub.asked == [0, 100, 200]


@pytest.mark.parametrize("kept", ["", "[]", '{"of": ["other"], "total": 1, "rows": [{}]}', '{"of": 1}'])
def test_a_copy_that_is_damaged_or_of_something_else_is_replaced(hub: Hub, tmp_path: Path, kept: str) -> None:
    path = tmp_path / "dflash2-mlx" / "prompts" / "gsm8k.json"
    path.parent.mkdir(parents=True)
    path.write_text(kept)
    assert len(from_set("gsm8k", 5)) == 5
    assert json.loads(path.read_text())["total"] == 250


def test_a_copy_that_cannot_be_kept_is_no_failure(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "dflash2-mlx").write_text("a file where the folder should be")
    assert len(from_set("gsm8k", 5)) == 5


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (httpx.ConnectError("Name or service not known"), "Name or service not known"),
        (ConnectionError("offline mode is enabled"), "offline mode"),
        (httpx.Response(503, text="busy"), "status 503"),
        (httpx.Response(200, text="<html>"), "no JSON"),
        (httpx.Response(200, json={"error": "x"}), "another form"),
        (
            httpx.Response(
                200, json={"rows": [{"row_idx": 3, "row": {}, "truncated_cells": ["a"]}], "num_rows_total": 9}
            ),
            "cut the rows",
        ),
    ],
)
def test_a_hub_that_fails_is_told_with_the_remedy(hub: Hub, answer: Any, told: str) -> None:
    hub.answer = answer
    with pytest.raises(DFlashError, match=told) as caught:
        from_set("mtbench", 3)
    assert "HuggingFaceH4/mt_bench_prompts" in str(caught.value)
    assert "--prompts FILE.jsonl, with the column prompt or turns" in str(caught.value)


def test_a_local_file_has_the_sets_columns(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"turns": ["One?", "Two?"], "category": "math"}\n\n{"turns": ["Three?"], "category": "humanities"}\n'
    )
    first, second = from_set("mtbench", 5, file=path)
    assert (first.id, first.kind, first.messages[0]["content"]) == ("mtbench-1", "mathematics", "One?")
    assert (second.id, second.kind) == ("mtbench-3", "chat")
    assert hub.asked == []
    path.write_text('{"turns": ["One?"]}\n{"question": "?"}\n')
    with pytest.raises(RequestError, match="none of prompt, turns is there") as caught:
        from_set("mtbench", file=path)
    assert f"{path}:2: " in str(caught.value)
    assert len(from_set("mtbench", 1, file=path)) == 1


def test_another_name_or_limit_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"'alpaca'.*gsm8k, math500, humaneval, mbpp, mtbench"):
        from_set("alpaca", 1)
    with pytest.raises(RequestError, match="limit of -1"):
        from_set("gsm8k", -1)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(RequestError, match="holds no prompts"):
        from_set("gsm8k", file=tmp_path / "empty.jsonl")
    assert hub.asked == []
