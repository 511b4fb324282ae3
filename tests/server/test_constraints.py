"""What a request demands of its answer, as one constraint: by uniform choices among what it allows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.answer import answer_parser
from dflash2_mlx.text.parts import Call, Content, Reasoning
from dflash2_mlx.text.tools import tool_format
from dflash2_server.constraints import Constraints
from dflash2_server.inference import Inference
from tests.constrained import sampler, single
from tests.text_doubles import HARMONY, make_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
SEEDS = range(6)


class Model:
    """A tokenizer and the constraints of its requests."""

    def __init__(self, tokenizer: Any, ends: set[int] | None = None) -> None:
        if ends is not None:
            tokenizer.eos_token_ids = ends
        self.tokenizer, self.ends = tokenizer, set(tokenizer.eos_token_ids)
        pair: Any = SimpleNamespace(tokenizer=tokenizer, target=SimpleNamespace(vocab_size=len(tokenizer)))
        self.constraints = Constraints(pair, tool_format(tokenizer).name)

    def answer(self, inference: Inference, seed: int, prefer: tuple[int, ...] = (), inside: bool = False) -> str:
        constraint = self.constraints.of(inference, inside_reasoning=inside)
        assert constraint is not None
        tokens = single(constraint, sampler(seed, {*self.ends, *prefer}), self.ends)
        text: str = self.tokenizer.decode([token for token in tokens if token not in self.ends])
        return text

    def parts(self, text: str) -> list[Any]:
        parser = answer_parser(self.tokenizer, "", tools=[TOOL])
        return [*parser.feed(text), *parser.finish()]


@pytest.fixture(scope="module")
def json_model() -> Model:
    return Model(make_tokenizer(parser="json_tools"))


@pytest.fixture(scope="module")
def harmony() -> Model:
    tokenizer = make_tokenizer(HARMONY)
    return Model(tokenizer, {tokenizer.convert_tokens_to_ids("<|return|>")})


def test_a_schema_beside_tools_leaves_both_open(json_model: Model) -> None:
    opens = json_model.tokenizer.convert_tokens_to_ids("<tool_call>")
    kinds = set()
    for seed in SEEDS:
        for prefer in ((), (opens,)):
            inference = Inference(tools=[TOOL], grammar=SCHEMA, reasoning="off")
            parts = json_model.parts(json_model.answer(inference, seed, prefer))
            for part in parts:
                kinds.add(type(part))
                if isinstance(part, Call):
                    assert isinstance(part.arguments["n"], int)
                else:
                    assert json.loads(part.text)["a"] in ("x", "y")
    assert kinds == {Call, Content}


def test_without_tools_or_with_none_of_them_only_json_is_left(json_model: Model) -> None:
    opens = json_model.tokenizer.convert_tokens_to_ids("<tool_call>")
    for inference in (
        Inference(grammar=SCHEMA, reasoning="off"),
        Inference(tools=[TOOL], tool_choice="none", grammar=SCHEMA, reasoning="off"),
    ):
        assert json.loads(json_model.answer(inference, 1, (opens,)))["a"] in ("x", "y")


def test_a_schema_beside_tools_of_a_format_without_grammar_is_refused(harmony: Model) -> None:
    with pytest.raises(RequestError, match=r"beside tools.*'harmony'") as refused:
        harmony.constraints.of(Inference(tools=[TOOL], grammar=SCHEMA), inside_reasoning=False)
    assert refused.value.param == "response_format"


def test_harmonys_schema_binds_its_final_channel(harmony: Model) -> None:
    end = harmony.tokenizer.convert_tokens_to_ids("<|end|>")
    for seed in SEEDS:
        text = harmony.answer(Inference(grammar=SCHEMA), seed, (end,))
        parts = harmony.parts(text)
        content = "".join(part.text for part in parts if isinstance(part, Content))
        assert json.loads(content)["a"] in ("x", "y"), text


def test_harmonys_budget_ends_its_analysis(harmony: Model) -> None:
    tokens = list(harmony.tokenizer.encode("<|channel|>analysis<|message|>" + "hm " * 30, add_special_tokens=False))
    end = harmony.tokenizer.convert_tokens_to_ids("<|end|>")
    constraint = harmony.constraints.of(Inference(thinking_budget=9), inside_reasoning=False)
    assert constraint is not None
    before = len(harmony.tokenizer.encode("<|channel|>analysis<|message|>", add_special_tokens=False))
    rows = constraint.masks(tokens)
    free = [bool(row.all()) for row in rows]
    assert free.index(False) == before + 9
    assert rows[before + 9].tolist().index(True) == end


def test_a_budget_for_a_model_that_does_not_reason_is_kept_anyway() -> None:
    tokenizer = make_tokenizer()
    plain: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(eos_token_ids=tokenizer.eos_token_ids), target=SimpleNamespace(vocab_size=300)
    )
    assert Constraints(plain, "json_tools").of(Inference(thinking_budget=3), inside_reasoning=False) is None


def test_a_schema_waits_for_the_end_of_the_reasoning(json_model: Model) -> None:
    close = json_model.tokenizer.convert_tokens_to_ids("</think>")
    text = json_model.answer(Inference(grammar=SCHEMA), 2, (close,), inside=True)
    parts = answer_parser(json_model.tokenizer, "<think>")
    found = [*parts.feed(text), *parts.finish()]
    assert json.loads("".join(part.text for part in found if isinstance(part, Content)))["a"] in ("x", "y")
    assert all(isinstance(part, Content | Reasoning) for part in found)
