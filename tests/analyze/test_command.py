"""`dflash2-mlx analyze`: fresh and replayed texts, and what is refused before a model is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash2_mlx.analyze import analyze_command
from dflash2_mlx.analyze.run import Analysis
from dflash2_mlx.analyze.text import append_text, read_texts
from dflash2_mlx.analyze.writing import prompt_ids
from dflash2_mlx.chat.options import ModelChoice
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import Pair
from tests.analyze.small import small, written
from tests.tiny_checkpoints import VOCAB
from tests.tiny_tokenizer import END, tokenizer, tokenizer_wrapper

TEMPLATE = "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}<|end|>"


@cache
def pair() -> Pair:
    """With a tokenizer, so that prompts can be asked."""
    asked = tokenizer()
    asked.chat_template = TEMPLATE
    return replace(
        small(vocab=VOCAB).pair, tokenizer=TokenizerWrapper(asked), model_name="tiny", drafter_name="tiny-draft"
    )


@dataclass
class Backend:
    """Gives a pair and notes what was asked for."""

    pair: Pair
    choices: list[ModelChoice] = field(default_factory=list)

    def load(self, choice: ModelChoice, progress: Callable[[str, float], None] | None) -> Pair:
        self.choices.append(choice)
        return self.pair

    def stream(self, *args: Any, **parameters: Any) -> Any:
        raise AssertionError

    def check(self, *args: Any) -> None:
        raise AssertionError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    analyze_command.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def run(*words: Any, of: Pair | None = None) -> int:
    return analyze_command.run(parsed(*words), Backend(of or pair()))


def prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    lines = [{"prompt": f"the {word}", "kind": kind} for word, kind in (("s", "a"), ("t", "b"), ("st", "b"))]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def table(path: Path, title: str) -> list[list[Any]]:
    found = next(block for block in json.loads(path.read_text())["blocks"] if block.get("title") == title)
    rows: list[list[Any]] = found["rows"]
    return rows


def test_fresh_texts_are_recorded_and_replayed_to_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, out = tmp_path / "texts.jsonl", tmp_path / "fresh.json"
    record.write_text("an older file\n")
    fresh = ("--prompts", prompts(tmp_path), "--per-kind", 1, "--tokens", 8, "--seed", 3, "--record", record)
    assert run(*fresh, "--out", out) == 0
    assert "Tokens per cycle" in capsys.readouterr().out
    texts = read_texts(record)
    assert [(text.kind, text.temperature) for text in texts] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {len(text.answer) for text in texts} <= set(range(1, 9))
    assert run("--replay", record, "--out", tmp_path / "again.json") == 0
    facts = [json.loads(path.read_text())["facts"] for path in (out, tmp_path / "again.json")]
    for title in ("Tokens per cycle", "Agreement by kind", "Recall@k by position"):
        assert table(out, title) == table(tmp_path / "again.json", title)
    assert facts[0]["prompts"] == facts[1]["prompts"]
    assert facts[0]["target"] == "tiny"
    assert facts[0]["command"].startswith("dflash2-mlx analyze --prompts ")
    assert facts[0]["command"].endswith(f"--seed 3 --record {record} --out {out}")


def test_the_packages_prompts_are_asked_by_kind(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert run("--kinds", "code, chat", "--per-kind", 1, "--tokens", 5, "--greedy-only", "--out", out) == 0
    assert [row[0] for row in table(out, "Agreement by kind")] == ["code", "chat"]


def test_a_replay_may_be_of_some_kinds(tmp_path: Path) -> None:
    of, record = small().pair, tmp_path / "t.jsonl"
    for kind in ("code", "prose"):
        append_text(record, written(small(), tokens=8, kind=kind))
    assert run("--replay", record, "--kinds", "prose", "--out", tmp_path / "r.json", of=of) == 0
    assert [row[0] for row in table(tmp_path / "r.json", "Agreement by kind")] == ["prose"]
    with pytest.raises(RequestError, match=r"no kind 'chat' in .*: there are code, prose"):
        run("--replay", record, "--kinds", "chat")
    with pytest.raises(RequestError, match="a vocabulary of 6, tiny has 300"):
        run("--replay", record)


def test_an_interruption_leaves_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = Analysis.add

    def interrupted(self: Analysis, text: Any, progress: Any = None) -> None:
        if self.texts:
            raise KeyboardInterrupt
        added(self, text, progress)

    monkeypatch.setattr(Analysis, "add", interrupted)
    record, out = tmp_path / "t.jsonl", tmp_path / "r.json"
    assert run("--prompts", prompts(tmp_path), "--tokens", 6, "--record", record, "--out", out) == 130
    assert len(read_texts(record)) == 2
    facts = json.loads(out.read_text())["facts"]
    assert "interrupted" in facts
    assert facts["texts"].startswith("1 greedy, 0 drawn")


def test_an_interruption_before_the_first_text_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Analysis, text: Any, progress: Any = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Analysis, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("--kinds", "code", "--per-kind", 1, "--tokens", 5)


@pytest.mark.parametrize(
    ("words", "param", "message"),
    [
        (("--draft", "none"), "draft", "an analysis is of a drafter"),
        (("--stride", "0"), "stride", "--stride 0: give 1 or more"),
        (("--per-kind", "0"), "per_kind", "--per-kind 0: give 1 or more"),
        (("--tokens", "1"), "tokens", "--tokens 1: a block needs"),
        (("--seed", "-1"), "seed", "--seed -1"),
        (("--kinds", "poetry"), "kinds", "'poetry'"),
        (("--kinds", ","), "kinds", "names no kind"),
        (("--out", "report.pdf"), "report", ".html, .md or .json"),
        (("--out", "nowhere/report.md"), "out", "nowhere is no folder"),
        (("--record", "nowhere/t.jsonl"), "record", "nowhere is no folder"),
        (("--record", "."), "record", "is a folder: name a file"),
        (("--prompts", "none.jsonl"), "prompts", "none.jsonl"),
        (("--replay", "none.jsonl"), "replay", "cannot be read"),
        (("--replay", "t", "--tokens", "8"), "tokens", "--tokens is of fresh texts"),
        (("--replay", "t", "--record", "u"), "record", "--record is of fresh texts"),
        (("--replay", "t", "--greedy-only"), "greedy_only", "--greedy-only is of fresh texts"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    words: tuple[str, ...], param: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = Backend(pair())
    with pytest.raises(RequestError) as error:
        analyze_command.run(parsed(*words), backend)
    assert message in str(error.value)
    assert error.value.param == param
    assert not backend.choices


def test_what_depends_on_the_pair_is_refused_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="a block of this drafter has 5 rows"):
        run("--tokens", 4)
    with pytest.raises(RequestError, match=r"no drafter \(none known\)"):
        run(of=replace(pair(), drafter=None, fallback_reason="none known"))
    with pytest.raises(RequestError, match="has no tokenizer"):
        run("--prompts", prompts(tmp_path), of=small().pair)


def test_the_pair_is_loaded_as_asked() -> None:
    backend = Backend(replace(pair(), drafter=None))
    words = ("--model", "m", "--draft", "d", "--draft-quant", "w4a16:gs64", "--dtype", "bfloat16")
    with pytest.raises(RequestError, match="no drafter"):
        analyze_command.run(parsed(*words), backend)
    assert backend.choices == [ModelChoice("m", "d", "w4a16:gs64", "bfloat16")]


def test_prompts_go_through_the_chat_template_where_there_is_one() -> None:
    messages = [{"role": "system", "content": "the s"}, {"role": "user", "content": "st"}]
    plain = tokenizer_wrapper()
    assert plain.decode(prompt_ids(pair(), messages)) == f"<|user|>the s<|user|>st{END}"
    assert prompt_ids(replace(pair(), tokenizer=plain), messages) == plain.encode("the s\n\nst")
