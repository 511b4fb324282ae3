"""Constraints in the decode loop: plain and speculative streams say what a loop of single masked rows says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import mlx.core as mx
import pytest

from dflash2_mlx.decode.constraint import Constraint
from dflash2_mlx.text.budget import AfterReasoning, All, ThinkingBudget
from dflash2_mlx.text.grammar import Grammar, GrammarFactory, json_schema_grammar
from tests import tiny
from tests.chat_doubles import make_tokenizer
from tests.constrained import allowed
from tests.proposers import ContextShape, Guessing, Scripted
from tests.running import Run, Subject, decode, real_drafter, steps
from tests.tiny_families import NAMED

SIZE = 272  # more logits than the tokenizer has tokens
PROMPT = tiny.random_prompt(20)
MOST = 120
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "list": {"type": "array", "items": {"enum": ["red", "green", 7, None]}, "minItems": 1, "maxItems": 4},
        "at": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 10, "maximum": 99}]},
    },
    "required": ["name", "list", "at"],
    "additionalProperties": False,
}
SMALL: dict[str, Any] = {"type": "array", "items": {"enum": ["red", "rose", 7]}, "minItems": 2, "maxItems": 3}
CASES = [("llama", "grammar"), ("llama", "thinking"), ("qwen3_5", "grammar")]
END = make_tokenizer().eos_token_id
THINK, CLOSE = (make_tokenizer().convert_tokens_to_ids(marker) for marker in ("<think>", "</think>"))

Make = Callable[[], Constraint]


@cache
def subject(family: str) -> Subject:
    config = NAMED[family](16)
    sized: dict[str, Any] = {**config, "vocab_size": SIZE}
    if "text_config" in config:
        sized["text_config"] = {**config["text_config"], "vocab_size": SIZE}
    return Subject(*(tiny.build_config(sized) for _ in range(2)))


@cache
def factory() -> GrammarFactory:
    return GrammarFactory(make_tokenizer())


@cache
def grammar() -> Grammar:
    return json_schema_grammar(SCHEMA)


def bound() -> Constraint:
    return factory().constraint(grammar(), vocab_size=SIZE)


def after_thinking() -> Constraint:
    """Ten tokens of reasoning, then the JSON."""
    markers: dict[str, Any] = {"vocab_size": SIZE, "eos_token_ids": [END]}
    return All(
        [ThinkingBudget(10, [CLOSE], True, [THINK], SIZE), AfterReasoning(bound(), [CLOSE], True, [THINK], **markers)]
    )


def small() -> Constraint:
    return factory().constraint(json_schema_grammar(SMALL), vocab_size=SIZE)


MAKES: dict[str, Make] = {"grammar": bound, "thinking": after_thinking, "small": small}


def masked(logits: mx.array, constraint: Constraint) -> mx.array:
    (row,) = constraint.masks([])
    return mx.where(row, logits, -math.inf)


@cache
def reference(family: str, kind: str) -> list[int]:
    """The greedy answer: every row run by itself in mlx-lm's own model, and masked before the choice."""
    model, constraint = subject(family).plain, MAKES[kind]()
    cache = tiny.single_row_cache(model, PROMPT[:-1])
    answer: list[int] = []
    while len(answer) < MOST and answer[-1:] != [END]:
        last = (answer or PROMPT)[-1]
        (logits,) = tiny.single_row_logits(model, [last], cache)
        answer.append(int(mx.argmax(masked(logits, constraint)).item()))
        constraint.advance(answer[-1:])
    return answer


def run(family: str, proposer: Any, kind: str = "grammar", **parameters: Any) -> Run:
    options = {"max_tokens": MOST, "eos_token_ids": [END], "constraint": MAKES[kind](), **parameters}
    return decode(subject(family).target, proposer, PROMPT, **options)


def shape(family: str) -> ContextShape:
    return subject(family).shape()


def proposer(family: str, kind: str, drafts: str, folder: Path) -> Any:
    of, text = subject(family), [*PROMPT, *reference(family, kind)]
    if drafts == "real":
        return real_drafter(folder, of)
    if drafts == "random":
        return Guessing(of.target, text, shape(family))
    return Scripted(of.target, text, shape(family), right={"right": 1.0, "spoilt": 0.7}[drafts])


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_plain_decoding_is_the_reference(family: str, kind: str) -> None:
    answer = reference(family, kind)
    assert answer[-1] == END, "the schema is bounded: it ends"
    free = decode(subject(family).target, None, PROMPT, max_tokens=20, eos_token_ids=[END], block_size=1)
    assert free.tokens != answer[:20], "the constraint decides"
    found = run(family, None, kind, block_size=1)
    assert (found.tokens, found.reasons) == (answer, ["stop"])


@pytest.mark.parametrize("drafts", ["right", "spoilt", "random", "real"])
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_speculation_is_the_reference(family: str, kind: str, drafts: str, tmp_path: Path) -> None:
    found = run(family, proposer(family, kind, drafts, tmp_path), kind)
    assert (found.tokens, found.reasons) == (reference(family, kind), ["stop"])
    if drafts == "right":
        assert len(found.accepted) <= len(found.tokens) // 8 + 1
    if drafts == "spoilt":
        assert 0 < sum(found.accepted) < len(found.tokens)


def test_the_greedy_answer_fits_its_schema_and_its_budget() -> None:
    for family in ("llama", "qwen3_5"):
        check(reference(family, "grammar"))
    answer = reference("llama", "thinking")
    assert answer.index(CLOSE) <= 10
    check(answer[answer.index(CLOSE) + 1 :])


def check(answer: Sequence[int], schema: Any = SCHEMA) -> None:
    assert answer[-1] == END
    jsonschema_rs.validator_for(schema).validate(json.loads(make_tokenizer().decode(list(answer[:-1]))))


@pytest.mark.parametrize("drafts", ["none", "random", "real"])
def test_sampled_answers_stay_in_the_grammar(drafts: str, tmp_path: Path) -> None:
    family, found = "llama", set()
    drafter = None
    if drafts == "real":
        drafter = real_drafter(tmp_path, subject(family))
    if drafts == "random":
        drafter = Guessing(subject(family).target, PROMPT, shape(family), checked=False)
    for seed in range(4):
        block = 1 if drafts == "none" else 8
        answer = run(family, drafter, "small", temperature=1.0, seed=seed, max_tokens=400, block_size=block)
        check(answer.tokens, SMALL)
        found.add(tuple(answer.tokens))
    assert len(found) > 2


def test_drafts_of_the_grammar_are_taken_and_others_are_not() -> None:
    """At a temperature, a draft that the grammar forbids is never emitted, also where the target wants it."""
    of = subject("llama")
    answer = reference("llama", "grammar")
    wild = Scripted(of.target, [*PROMPT, *answer], shape("llama"), right=0.5, checked=False)
    found = run("llama", wild, temperature=1.5, seed=3, max_tokens=400)
    check(found.tokens)
    assert sum(found.accepted) > 0


@pytest.mark.parametrize("drafts", ["none", "right"])
def test_logprobs_are_those_of_the_masked_rows(drafts: str) -> None:
    family, kind = "llama", "grammar"
    of, constraint = subject(family), bound()
    drafter = None if drafts == "none" else Scripted(of.target, [*PROMPT, *reference(family, kind)], shape(family))
    options: dict[str, Any] = {"eos_token_ids": [END], "constraint": bound(), "logprobs": 5}
    given = [
        entry
        for step in steps(
            of.target, drafter, PROMPT, max_tokens=MOST, block_size=1 if drafter is None else 8, **options
        )
        for entry in step.logprobs or []
    ]
    assert [entry.token for entry in given] == reference(family, kind)
    rows = tiny.single_row_logits(of.plain, [*PROMPT, *reference(family, kind)[:-1]])[len(PROMPT) - 1 :]
    for logits, entry in zip(rows, given, strict=True):
        (row,) = constraint.masks([])
        table = masked(logits, constraint)
        table = table - mx.logsumexp(table)
        assert abs(table[entry.token].item() - entry.logprob) < 1e-4
        told = {token for token, value in entry.top if value > -math.inf}
        assert told <= set(allowed(row))
        assert len(told) == min(5, len(allowed(row)))
        constraint.advance([entry.token])


def test_a_limit_in_the_middle_of_a_cycle_leaves_the_constraint_at_the_emitted_tokens() -> None:
    family, answer = "llama", reference("llama", "grammar")
    constraint = bound()
    drafter = Scripted(subject(family).target, [*PROMPT, *answer], shape(family))
    found = run(family, drafter, constraint=constraint, max_tokens=11)
    assert (found.tokens, found.reasons) == (answer[:11], ["length"])
    fresh = bound()
    fresh.advance(answer[:11])
    assert (constraint.masks([]) == fresh.masks([])).all().item()
