"""Grammars: whatever a model would say, what it may say is the JSON or the call that was asked for."""

from __future__ import annotations

import json
import random
import sys
import threading
from functools import cache
from typing import Any

import jsonschema_rs
import llguidance
import pytest

from dflash2_mlx.errors import DecodeError, RequestError
from dflash2_mlx.text.grammar import (
    Grammar,
    GrammarConstraint,
    GrammarFactory,
    json_schema_grammar,
)
from tests.chat_doubles import make_tokenizer
from tests.constrained import allowed, drafted, sampler, single
from tests.tiny_tokenizer import tokenizer_wrapper

SCHEMAS: dict[str, dict[str, Any]] = {
    "nested": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "at": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "integer", "minimum": 3}},
                "required": ["x", "y"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "at"],
        "additionalProperties": False,
    },
    "enum": {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "cold", 3, None, "}\n start: x"]}, "ok": {"const": True}},
        "required": ["unit", "ok"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "minItems": 2,
        "maxItems": 4,
    },
    "any of": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 5}, {"type": "null"}]},
    "defs": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"},
}
END = make_tokenizer().eos_token_id
OTHER_END = make_tokenizer().convert_tokens_to_ids("<|im_start|>")
SIZE = len(make_tokenizer())


@cache
def factory() -> GrammarFactory:
    return GrammarFactory(make_tokenizer())


@cache
def grammar(name: str) -> Grammar:
    return json_schema_grammar({"type": "object"} if name == "any object" else SCHEMAS[name])


def constraint(name: str, *, vocab_size: int = SIZE, ends: tuple[int, ...] | None = None) -> GrammarConstraint:
    return factory().constraint(grammar(name), vocab_size=vocab_size, eos_token_ids=ends)


def ids(text: str) -> list[int]:
    found: list[int] = make_tokenizer().encode(text, add_special_tokens=False)
    return found


def text(tokens: list[int]) -> str:
    found: str = make_tokenizer().decode(tokens)
    return found


def takes(name: str, answer: str) -> bool:
    """Whether the whole answer may stand, and the end after it."""
    tokens = [*ids(answer), END]
    rows = constraint(name).masks(tokens)
    return all(token in allowed(row) for token, row in zip(tokens, rows, strict=False))


CLOSING = [*ids('"}]'), END]


@pytest.mark.parametrize("name", [*SCHEMAS, "any object"])
def test_random_answers_validate(name: str) -> None:
    schema = SCHEMAS.get(name, {"type": "object"})
    validator = jsonschema_rs.validator_for(schema)
    found = set()
    for seed in range(8):
        answer = text(single(constraint(name), sampler(seed, CLOSING), [END])[:-1])
        # a random exponent makes an infinity of a number, which is none to the validator
        validator.validate(json.loads(answer, parse_float=lambda digits: max(-1e9, min(float(digits), 1e9))))
        found.add(answer)
    assert len(found) > 2


@pytest.mark.parametrize("name", ["nested", "any of", "defs", "any object"])
def test_every_row_is_that_of_a_fresh_constraint_after_the_same_tokens(name: str) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        answer = single(constraint(name), sampler(seed, CLOSING), [END])
        start = rng.randrange(len(answer))
        running = constraint(name)
        running.advance(answer[:start])
        right = rng.randrange(6)
        drafts = (answer[start : start + right] + [rng.randrange(SIZE) for _ in range(8)])[:8]
        rows = running.masks(drafts)
        for i, row in enumerate(rows):
            fresh = constraint(name)
            fresh.advance([*answer[:start], *drafts[:i]])
            assert allowed(row) == allowed(fresh.masks([])[0])
            if i == len(drafts) or drafts[i] not in allowed(row):
                break
        assert rows.any(axis=1).all().item()


def test_rejected_drafts_leave_no_trace() -> None:
    name = "nested"
    answer = single(constraint(name), sampler(5, CLOSING), [END])
    running = constraint(name)
    for position, token in enumerate(answer):
        before = running.masks([])
        for drafts in (answer[position : position + 16], [token, 0, 0], ids("][]"), [END, END], [token, END, token]):
            running.masks(drafts)
            assert (running.masks([]) == before).all().item()
        running.advance([token])


@pytest.mark.parametrize("name", ["nested", "array", "defs"])
def test_drafts_and_single_steps_write_the_same(name: str) -> None:
    for seed in range(4):
        alone = single(constraint(name), sampler(seed, CLOSING), [END])
        rng = random.Random(seed)

        def draft(position: int, alone: list[int] = alone, rng: random.Random = rng) -> list[int]:
            return [t if rng.random() < 0.8 else rng.randrange(SIZE) for t in (alone[position:] + [0] * 9)[:7]]

        assert drafted(constraint(name), sampler(seed, CLOSING), [END], draft) == alone


def test_all_end_tokens_stand_where_the_answer_is_complete_and_nowhere_else() -> None:
    quote = ids('"')[0]
    running = constraint("any of", ends=(END, OTHER_END, quote, 10_000))
    # an end token that is text besides: a string would end the answer at its quote
    assert quote not in allowed(running.masks([])[0])
    rows = running.masks(ids("null"))
    assert all(not {END, OTHER_END, quote} & set(allowed(row)) for row in rows[:-1])
    assert allowed(rows[-1]) == sorted({END, OTHER_END, quote})


def test_only_end_tokens_follow_an_end_token() -> None:
    running = constraint("any of", ends=(END, OTHER_END))
    one = ids("1")[0]
    rows = running.masks([one, OTHER_END, one])
    assert {END, OTHER_END, one} < set(allowed(rows[1]))
    assert allowed(rows[2]) == allowed(rows[3]) == sorted({END, OTHER_END})
    running.advance([one, OTHER_END, one])
    assert allowed(running.masks([one])[1]) == sorted({END, OTHER_END})


def test_other_end_tokens_than_the_tokenizers_own() -> None:
    running = constraint("any of", ends=(OTHER_END,))
    assert allowed(running.masks(ids("null"))[-1]) == [OTHER_END]


@pytest.mark.parametrize("size", [END + 1, SIZE, SIZE + 1, SIZE + 64])
def test_rows_are_as_wide_as_the_targets_and_padding_never_stands(size: int) -> None:
    row = constraint("any object", vocab_size=size).masks(ids('{"a'))[-1]
    assert row.shape == (size,)
    assert {token for token in allowed(row) if token >= END} <= {SIZE - 1}  # the two blanks, a plain word


@pytest.mark.parametrize("size", [END, 224])  # 224: whole words of bits, and fewer of them than the tokenizer has
def test_a_target_without_the_tokenizers_end_token(size: int) -> None:
    running = constraint("any of", vocab_size=size, ends=(3,))
    assert running.masks([]).shape == (1, size)
    assert allowed(running.masks(ids("null"))[-1]) == [3]


def test_special_tokens_are_no_text() -> None:
    think = make_tokenizer().convert_tokens_to_ids("<think>")
    assert think not in allowed(constraint("any object").masks(ids('{"a'))[-1])


def test_a_token_that_may_not_stand_is_an_error_and_no_silence() -> None:
    with pytest.raises(DecodeError, match="does not take token"):
        constraint("any object").advance(ids("]"))


def test_nothing_is_ever_free() -> None:
    assert not constraint("any object").free(1)


@pytest.mark.parametrize(
    "answer",
    [
        '{"a":1}',
        '{"a": 1, "b": [2, 3]}',
        '\n\n{"a": 1}',
        ' {"a": 1}',
        '{\n    "a": {\n        "b": []\n    }\n}',
        '{\n\t"a": 1\n}',
    ],
)
def test_json_as_models_write_it(answer: str) -> None:
    assert takes("any object", answer)


@pytest.mark.parametrize(
    "answer", ['\n\n\n{"a": 1}', '{"a":  1}', "{" + "\n" + " " * 41 + "}", '{"a": 1}\n', "[1]", ""]
)
def test_no_endless_blanks_and_no_other_json(answer: str) -> None:
    assert not takes("any object", answer)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([1], r"\[1\]: it must be an object"),
        (True, "it must be an object"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}, "/gone"),
        ({"$ref": "http://localhost/schema"}, "localhost"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "path"}, "path"),
        ({"type": "objekt"}, "objekt"),
        ({"const": float("nan")}, "no JSON"),
        ({"const": b"x"}, "no JSON"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "cannot be enforced"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused(schema: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        json_schema_grammar(schema)
    assert caught.value.param == "response_format"


def test_a_schema_may_not_loosen_itself() -> None:
    with pytest.raises(RequestError, match="uniqueItems"):
        json_schema_grammar({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}})


def test_the_field_at_fault_is_the_callers() -> None:
    with pytest.raises(RequestError) as caught:
        json_schema_grammar({"type": "objekt"}, param="text.format")
    assert caught.value.param == "text.format"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grammar("any object")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'dflash2-mlx\[grammar\]'") as caught:
        json_schema_grammar({"type": "object"})
    assert caught.value.param == "response_format"
    with pytest.raises(RequestError, match=r"dflash2-mlx\[grammar\]"):
        GrammarFactory(make_tokenizer()).constraint(made, vocab_size=SIZE)


def test_the_tokenizer_is_prepared_once_also_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = llguidance.LLTokenizer
    monkeypatch.setattr(llguidance, "LLTokenizer", lambda *a, **k: made.append(k) or real(*a, **k))
    fresh = GrammarFactory(make_tokenizer())
    asked = grammar("any object")
    assert not made
    threads = [threading.Thread(target=fresh.constraint, args=(asked,), kwargs={"vocab_size": SIZE}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [options["eos_token"] for options in made] == [END]


def test_a_constraint_works_in_another_thread_than_its_makers() -> None:
    running, found = constraint("any object"), []
    thread = threading.Thread(target=lambda: found.append(allowed(running.masks(ids("{"))[-1])))
    thread.start()
    thread.join()
    assert found == [allowed(constraint("any object").masks(ids("{"))[-1])]


def test_merged_tokens_and_the_wrappers_own_end_tokens() -> None:
    wrapper = tokenizer_wrapper()
    wrapper.add_eos_token("<|user|>")
    ends = sorted(wrapper.eos_token_ids)
    made = GrammarFactory(wrapper).constraint(json_schema_grammar({"enum": ["stop the", "€"]}), vocab_size=len(wrapper))
    for word in ("stop the", "€"):
        tokens = wrapper.encode(f'"{word}"', add_special_tokens=False)
        rows = made.masks(tokens)
        assert all(token in allowed(row) for token, row in zip(tokens, rows, strict=False))
        assert allowed(rows[-1]) == ends


def test_a_plain_tokenizer_of_transformers_serves_too() -> None:
    plain = tokenizer_wrapper().backend_tokenizer
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|end|>")
    row = GrammarFactory(fast).constraint(grammar("any of"), vocab_size=len(fast)).masks(fast.encode("null"))[-1]
    assert allowed(row) == [fast.eos_token_id]


def test_a_tokenizer_that_was_told_to_cut_or_fill_texts_serves_as_any() -> None:
    """Both settings stay behind in a tokenizer; llguidance makes tokens of forced text with it."""
    cut = tokenizer_wrapper()
    cut.backend_tokenizer.enable_truncation(1)
    cut.backend_tokenizer.enable_padding(length=40)
    asked = json_schema_grammar({"const": "a stop the stop"})
    answers = []
    for wrapper in (cut, tokenizer_wrapper()):
        made = GrammarFactory(wrapper).constraint(asked, vocab_size=len(wrapper))
        answers.append(single(made, lambda position, tokens: tokens[-1], wrapper.eos_token_ids))
    assert answers[0] == answers[1]
    assert len(answers[1]) < 12, "merged tokens"


def test_no_end_token_is_refused() -> None:
    with pytest.raises(RequestError, match="end token"):
        constraint("any of", ends=())


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        eos_token_ids = frozenset({1})

        def __len__(self) -> int:
            return 3

    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        GrammarFactory(Slow()).constraint(grammar("any of"), vocab_size=3)


def test_a_broken_grammar_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot be enforced"):
        factory().constraint(Grammar("nonsense", "response_format"), vocab_size=SIZE)


def test_what_is_used_of_llguidance() -> None:
    """Fails by name where a new release changes it."""
    for name in ("compute_bitmask", "consume_token", "rollback", "is_error", "get_error", "validate_grammar"):
        assert hasattr(llguidance.LLMatcher, name), f"llguidance {llguidance.__version__}: LLMatcher has no {name}"
    prepared = llguidance.LLTokenizer(make_tokenizer().backend_tokenizer.to_str(), eos_token=END)
    assert (prepared.vocab_size, prepared.eos_token) == (SIZE, END), "LLTokenizer tells other sizes"
    matcher = llguidance.LLMatcher(prepared, llguidance.LLMatcher.grammar_from_lark('start: <[258]> "ab"'), log_level=0)
    assert not matcher.is_error(), "token ids in a Lark grammar are no longer <[id]>"
    row = matcher.compute_bitmask()
    assert isinstance(row, bytes), "compute_bitmask gives something else than bytes"
    assert len(row) == (SIZE + 31) // 32 * 4, "rows are no longer whole words of 32 bits"
    assert row[258 // 8] == 1 << 258 % 8, "the lowest bit is no longer the first token"
    assert matcher.consume_token(258), "consume_token no longer says that it took the token"
    assert matcher.rollback(1), "rollback no longer says that it went back"
    assert matcher.compute_bitmask() == row, "rollback does not restore the mask"
    assert not matcher.consume_token(0), "consume_token no longer says that it did not take the token"
    assert matcher.is_error(), "a refused token is no longer an error"
    options = {"whitespace_pattern": "( )", "lenient": True}
    schema = json.dumps({"type": "object", "x-guidance": options})
    assert llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_json_schema(schema)) == ""
