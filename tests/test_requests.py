"""What is wrong with a request is said at the call, by name, value and remedy, before a model is touched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.decode.request import make_request
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.text.stops import stop_strings
from dflash2_mlx.text.stream import generate, stream_generate
from tests import tiny
from tests.tiny_drafters import tiny_drafter_config, write_drafter
from tests.tiny_tokenizer import tokenizer_wrapper

BLOCK = 6
VOCAB = 256
PROMPT = [1, 2, 3]
NAN, INF = math.nan, math.inf


class Sealed(Target):
    """A target that must not be run any more."""

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        raise AssertionError("the model was touched")

    def embed(self, ids: mx.array) -> mx.array:
        raise AssertionError("the model was touched")


@pytest.fixture(scope="module")
def open_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = tiny.build("llama_untied")
    config = tiny_drafter_config(model, block_size=BLOCK)
    drafter = load_drafter(write_drafter(tmp_path_factory.mktemp("drafter"), config), dtype="float32")
    return Pair(Target(model), drafter, tokenizer_wrapper())


@pytest.fixture
def pair(open_pair: Pair) -> Iterator[Pair]:
    """A pair whose target raises when it is called."""
    open_pair.target.__class__ = Sealed
    yield open_pair
    open_pair.target.__class__ = Target


def refused(pair: Pair, param: str, *words: str, prompt: Any = PROMPT, **parameters: Any) -> str:
    """Refused at the call, with the parameter's name, and every word in the message."""
    with pytest.raises(RequestError) as error:
        stream_generate(pair, prompt, **parameters)
    message = str(error.value)
    assert error.value.param == param
    assert isinstance(error.value, ValueError)
    assert [word for word in (param, *words) if word not in message] == []
    return message


# parameter: what each wrong value is told
RANGES: dict[str, tuple[list[Any], str]] = {
    "temperature": ([-0.1, -1, NAN, INF, -INF, 100.5, "0.7", True, [1.0], 1e-7], "0"),
    "top_p": ([0, -0.5, 1.1, NAN, "0.9", False, {}], "up to 1"),
    "min_p": ([-0.1, 1.01, NAN, "0.1", True], "from 0 to 1"),
    "top_k": ([-1, 1.5, NAN, INF, "40", True, 10**400], "a whole number from 0"),
    "repetition_penalty": ([0, -1.2, NAN, INF, "1.1", True], "1 is neutral"),
    "presence_penalty": ([NAN, INF, -101, 101, "0", True], "0 is neutral"),
    "frequency_penalty": ([NAN, -INF, -101, 101, "0", True], "0 is neutral"),
    "repetition_context_size": ([0, -1, 2.5, NAN, "20", True], "at least 1"),
    "presence_context_size": ([0, -20, 0.5, NAN, "20"], "at least 1"),
    "frequency_context_size": ([0, -20, 0.5, INF, "20"], "at least 1"),
    "max_tokens": ([0, -1, 1.0, 2.5, NAN, "256", True, None, (1 << 31) + 1], "from 1 to 2147483648"),
    "seed": ([-1, 1.0, NAN, "7", True, 1 << 64], "from 0 to 18446744073709551615"),
    "logprobs": ([-1, 21, 1.0, NAN, "5", True], "from 0 to 20"),
    "prefill_step_size": ([0, -1, 512.0, "2048", True, None], "from 1"),
    "block_size": ([0, -1, BLOCK + 1, 2.0, NAN, "5", True], f"from 1 to {BLOCK}"),
    "verify_mode": (["", "on", "DFLASH", None, 1, ["dflash"]], "('adaptive', 'dflash', 'off')"),
    "stop": (["", [""], ["a", ""], list("abcde"), 5, [5], {"a": 1}, b"a", True], "up to 4"),
    "eos_token_ids": ([2, "2", ["2"], [2.0], [-1], [True], b"2"], "collection of token ids"),
    "ignore_eos": (["true", 1, None], "true or false"),
    "progress": ([5, "yes"], "function"),
    "cancelled": ([True, 0], "function"),
    "logit_bias": (
        [[1], "5", 5, {VOCAB: 1.0}, {-1: 1.0}, {1.5: 1.0}, {True: 1.0}, {"x": 1.0}, {"-1": 1.0}]
        + [{3: value} for value in (NAN, INF, "1", None, True, 10**400)],
        "token ids",
    ),
}


@pytest.mark.parametrize(
    ("param", "value"),
    [(param, value) for param, (values, _) in RANGES.items() for value in values],
    ids=lambda x: str(x)[:24],
)
def test_a_wrong_value_is_named_with_the_remedy(pair: Pair, param: str, value: Any) -> None:
    message = refused(pair, param, **{param: value})
    shown = [repr(value)]
    if isinstance(value, dict):
        shown = [repr(part) for item in value.items() for part in item]
    assert all(part in message for part in shown)
    if not (param == "logit_bias" and isinstance(value, dict)) and value != 1e-7:
        assert RANGES[param][1] in message


@pytest.mark.parametrize("mode", ["ddtree"])
def test_a_planned_mode_is_refused_by_name(pair: Pair, mode: str) -> None:
    refused(pair, "verify_mode", repr(mode), "does not have yet", "'dflash'", verify_mode=mode)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ((), "empty"),
        (mx.array([], mx.int32), "empty"),
        ([1, 2, VOCAB], f"token 2 is {VOCAB}"),
        ([-1], "token 0 is -1"),
        ([1, 2.0], "token 1 is 2.0"),
        ([True], "token 0 is True"),
        (["1"], "token 0 is '1'"),
        ([[1, 2]], "token 0 is [1, 2]"),
        (5, "prompt is 5"),
        (None, "prompt is None"),
        (b"abc", "prompt is b'abc'"),
        ("", "empty"),
    ],
    ids=str,
)
def test_a_prompt_that_cannot_be(pair: Pair, prompt: Any, words: str) -> None:
    refused(pair, "prompt", words, prompt=prompt)


def test_text_and_stop_strings_need_a_tokenizer(pair: Pair) -> None:
    bare = Pair(pair.target)
    refused(bare, "prompt", "no tokenizer", "token ids", prompt="hello")
    refused(bare, "stop", "no tokenizer", stop="x")


@pytest.mark.parametrize("name", ["temp", "top_p_", "max_token", "stop_strings", "draft"])
@pytest.mark.parametrize("value", [None, 1])
def test_an_unknown_parameter_is_not_dropped(pair: Pair, name: str, value: Any) -> None:
    refused(pair, name, "spelling", **{name: value})


def test_block_sizes_of_a_pair_without_a_drafter(pair: Pair) -> None:
    bare = Pair(pair.target)
    refused(bare, "block_size", "is 2", "no drafter", block_size=2)


def request_of(**parameters: Any) -> Any:
    return make_request(PROMPT, vocab_size=VOCAB, checkpoint_block_size=BLOCK, **parameters)


def test_the_defaults_of_a_request() -> None:
    request = request_of()
    assert (request.prompt, request.max_tokens, request.block_size) == (tuple(PROMPT), 256, BLOCK)
    assert (request.verify_mode, request.logprobs, request.prefill_step_size) == ("dflash", None, 2048)
    assert request.law.deterministic
    assert request.eos_token_ids == frozenset()
    assert request.seed != request_of().seed


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"block_size": 1}, "block_size", 1),
        ({"block_size": BLOCK}, "block_size", BLOCK),
        ({"verify_mode": "off"}, "block_size", 1),
        ({"seed": (1 << 64) - 1}, "seed", (1 << 64) - 1),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": 20}, "logprobs", 20),
        ({"eos_token_ids": [3, 3, 900]}, "eos_token_ids", frozenset({3, 900})),
        ({"max_tokens": 1 << 31}, "max_tokens", 1 << 31),
    ],
)
def test_values_at_the_edge_are_taken(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(request_of(**given), field) == value


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 100}, "temperature", 100.0),
        ({"top_p": 1}, "top_p", 1.0),
        ({"top_k": 40.0}, "top_k", 40),
        ({"min_p": 0}, "min_p", 0.0),
        ({"temperature": None, "top_p": None, "logit_bias": None}, "temperature", 0.0),
        ({"logit_bias": {"7": -100, 8: 2}}, "logit_bias", {7: -100.0, 8: 2.0}),
        ({"logit_bias": {}}, "logit_bias", {}),
        ({"presence_penalty": -2.0}, "presence_penalty", -2.0),
    ],
)
def test_laws_at_the_edge_are_taken(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(request_of(**given).law, field) == value


def test_small_vocabularies_bound_the_alternatives() -> None:
    with pytest.raises(RequestError, match="from 0 to 5"):
        make_request([1], vocab_size=5, checkpoint_block_size=1, logprobs=6)


@pytest.mark.parametrize(
    ("stop", "strings"),
    [(None, []), ([], []), ("ab", ["ab"]), (("a", "b"), ["a", "b"]), (list("abcd"), list("abcd"))],
)
def test_stop_strings_that_are_taken(stop: Any, strings: list[str]) -> None:
    assert stop_strings(stop) == strings


@pytest.mark.parametrize("kind", [list, tuple, np.array, mx.array], ids=["list", "tuple", "numpy", "mlx"])
def test_prompts_of_every_kind_of_sequence(open_pair: Pair, kind: Any) -> None:
    assert generate(open_pair, kind(PROMPT), max_tokens=3).tokens == generate(open_pair, PROMPT, max_tokens=3).tokens


def test_nothing_runs_before_the_first_step(pair: Pair) -> None:
    stream = stream_generate(pair, PROMPT)
    with pytest.raises(AssertionError, match="touched"):
        next(stream)


def test_a_refused_request_leaves_the_state_alone(open_pair: Pair) -> None:
    state = open_pair.new_state()
    generate(open_pair, PROMPT, max_tokens=5, state=state)
    before = list(state.tokens)
    with pytest.raises(RequestError):
        generate(open_pair, PROMPT, max_tokens=0, state=state)
    assert state.tokens == before
    assert generate(open_pair, [*before, 9], max_tokens=2, state=state).stats.cached_tokens == len(before)


def test_a_state_of_another_pair_is_refused() -> None:
    one, other = (Pair(Target(tiny.build("llama"))) for _ in range(2))
    with pytest.raises(RequestError, match="another pair") as caught:
        stream_generate(one, [1, 2], state=other.new_state())
    assert caught.value.param == "state"
