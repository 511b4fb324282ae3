"""Text out of the whole engine: stop strings over tokens and blocks, split characters, and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter, Proposal, TargetEnds
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.text.stream import Generation, GenerationStep, generate, stream_generate
from tests import tiny
from tests.mlx_lm_chain import library_logits
from tests.tiny_drafters import tiny_drafter_config, write_drafter
from tests.tiny_families import llama_untied
from tests.tiny_tokenizer import tokenizer, tokenizer_wrapper

BLOCK = 6
TOKENS = 48
PROMPT = [40, 41, 42]
TOKENIZER = tokenizer()
SIZE = len(TOKENIZER)
# only ids whose bytes are printable ASCII, so that stop strings are what they look like
SHOWN = [TOKENIZER.decode([i]) for i in range(SIZE)]
UNREADABLE = [i for i, text in enumerate(SHOWN) if not text.isascii() or not text.isprintable() or "<|" in text]
READABLE: dict[str, Any] = {"logit_bias": dict.fromkeys(UNREADABLE, -100.0)}


class Knowing(Drafter):
    """Proposes the text it was told, so that whole blocks are accepted."""

    line: Sequence[int] = ()

    def propose(
        self,
        target: TargetEnds,
        context: DraftContext,
        anchor: mx.array,
        width: int,
        *,
        temperature: float = 0.0,
        key: mx.array | None = None,
    ) -> Proposal:
        start = context.end + 1
        drafts = [*self.line[start : start + width - 1], *[0] * width][: width - 1]
        return Proposal(mx.array(drafts), None, None, mx.array(True))


def build_model() -> nn.Module:
    return tiny.build_config({**llama_untied(16), "vocab_size": SIZE})


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model()


@pytest.fixture(scope="module")
def pair(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """With a random drafter: blocks that mostly fall."""
    config = tiny_drafter_config(model, block_size=BLOCK)
    drafter = load_drafter(write_drafter(tmp_path_factory.mktemp("drafter"), config), dtype="float32")
    return Pair(Target(model), drafter, tokenizer_wrapper())


@pytest.fixture(scope="module")
def plain(pair: Pair) -> Generation:
    """A readable answer, decoded plainly."""
    return generate(pair, PROMPT, max_tokens=TOKENS, verify_mode="off", **READABLE)


@pytest.fixture(scope="module")
def knowing(pair: Pair, plain: Generation) -> Pair:
    """With a drafter that knows the answer."""
    assert pair.drafter is not None
    drafter = Knowing(pair.drafter.model)
    drafter.line = [*PROMPT, *plain.tokens]
    return Pair(pair.target, drafter, pair.tokenizer)


def stopped(pair: Pair, stop: str | list[str], **parameters: Any) -> tuple[Generation, list[GenerationStep]]:
    """The answer up to a stop string, and its steps, after checks that hold for any."""
    parameters = {"max_tokens": TOKENS, **READABLE, **parameters}
    steps = list(stream_generate(pair, PROMPT, stop=stop, **parameters))
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    answer = generate(pair, PROMPT, stop=stop, **parameters)
    assert "".join(step.text for step in steps) == answer.text
    assert [token for step in steps for token in step.tokens] == answer.tokens
    return answer, steps


def tokens_up_to(plain: Generation, stop: str) -> list[int]:
    """The shortest start of the answer whose text holds the stop string."""
    count = next(n for n in range(1, TOKENS + 1) if stop in TOKENIZER.decode(plain.tokens[:n]))
    return plain.tokens[:count]


def test_the_answer_is_readable_and_blocks_are_accepted(plain: Generation, knowing: Pair) -> None:
    assert plain.text.isprintable()
    assert plain.text == TOKENIZER.decode(plain.tokens)
    answer = generate(knowing, PROMPT, max_tokens=TOKENS, **READABLE)
    assert (answer.tokens, answer.text) == (plain.tokens, plain.text)
    assert answer.stats.tokens_per_cycle > 5


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("where", [0, 1, 12, 31])
def test_a_stop_string_anywhere_cuts_exactly(
    pair: Pair, knowing: Pair, plain: Generation, where: int, length: int
) -> None:
    """At any place of a token or block, with blocks accepted and rejected, and in plain decoding."""
    stop = plain.text[where : where + length]
    shown, tokens = plain.text[: plain.text.find(stop)], tokens_up_to(plain, stop)
    for engine, width in ((knowing, BLOCK), (pair, BLOCK), (pair, 1), (knowing, 3)):
        answer, _ = stopped(engine, stop, block_size=width)
        assert (answer.text, answer.tokens, answer.finish_reason) == (shown, tokens, "stop")


def test_the_first_of_several_stops_counts(knowing: Pair, plain: Generation) -> None:
    text = plain.text
    late, early = text[25:28], text[9:12]
    answer, _ = stopped(knowing, [late, "never there", early])
    assert answer.text == text[: min(text.find(late), text.find(early))]
    assert answer.finish_reason == "stop"


def test_a_stop_that_never_comes_holds_nothing_back_in_the_end(knowing: Pair, plain: Generation) -> None:
    for stop in ("never there", plain.text[-3:] + "x", plain.text[-1:] * 9):
        answer, _ = stopped(knowing, stop)
        assert (answer.text, answer.finish_reason) == (plain.text, "length")


@pytest.mark.parametrize("limit", [1, 5, 6, 7, 13])
def test_the_limit_wins_over_a_later_stop_and_loses_to_an_earlier(knowing: Pair, plain: Generation, limit: int) -> None:
    text = TOKENIZER.decode(plain.tokens[:limit])
    inside, outside = text[-1:], TOKENIZER.decode(plain.tokens[: limit + 1])[-2:]
    assert outside not in text
    answer, _ = stopped(knowing, outside, max_tokens=limit)
    assert (answer.text, answer.tokens, answer.finish_reason) == (text, plain.tokens[:limit], "length")
    answer, _ = stopped(knowing, inside, max_tokens=limit)
    assert (answer.text, answer.finish_reason) == (text[: text.find(inside)], "stop")


def test_an_end_token_has_no_text_and_ends_the_block(knowing: Pair, plain: Generation) -> None:
    at = next(i for i in range(8, TOKENS) if plain.tokens[i] not in plain.tokens[:i])
    end = plain.tokens[at]
    answer = generate(knowing, PROMPT, max_tokens=TOKENS, eos_token_ids=[end], **READABLE)
    assert (answer.tokens, answer.finish_reason) == (plain.tokens[: at + 1], "stop")
    assert answer.text == TOKENIZER.decode(plain.tokens[:at])
    ignored = generate(knowing, PROMPT, max_tokens=TOKENS, eos_token_ids=[end], ignore_eos=True, **READABLE)
    assert (ignored.tokens, ignored.text) == (plain.tokens, plain.text)


def test_after_a_stop_the_state_goes_on_where_the_tokens_end(knowing: Pair, plain: Generation) -> None:
    state, stop = knowing.new_state(), plain.text[14:18]
    first = generate(knowing, PROMPT, max_tokens=TOKENS, stop=stop, state=state, **READABLE)
    assert state.tokens == [*PROMPT, *first.tokens][: len(state.tokens)]
    assert len(state.tokens) >= len(PROMPT) + len(first.tokens) - 1
    rest = generate(knowing, [*PROMPT, *first.tokens], max_tokens=TOKENS - len(first.tokens), state=state, **READABLE)
    assert [*first.tokens, *rest.tokens] == plain.tokens
    assert rest.stats.cached_tokens >= len(PROMPT) + len(first.tokens) - 1


@pytest.mark.parametrize("engine", ["knowing", "random", "plain"])
def test_split_characters_come_whole_out_of_the_engine(pair: Pair, engine: str) -> None:
    """Three-byte characters, forced token by token, in blocks of six."""
    text = "€日本€語€日"
    wanted = TOKENIZER.encode(text)
    answer = _forced(pair, wanted, engine)
    assert "".join(step.text for step in answer) == text
    assert all("\ufffd" not in step.text for step in answer)
    cut = _forced(pair, wanted[:-1], engine)
    assert "".join(step.text for step in cut) == TOKENIZER.decode(wanted[:-1])
    assert all("\ufffd" not in step.text for step in cut[:-1])


class Saying(nn.Module):
    """A target whose argmax is a given text, whatever its weights."""

    def __init__(self, inner: nn.Module, line: Sequence[int]) -> None:
        super().__init__()
        self.inner, self.line = inner, list(line)
        self.model, self.lm_head = inner.model, inner.lm_head

    @property
    def layers(self) -> list[nn.Module]:
        layers: list[nn.Module] = self.inner.layers
        return layers

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        at = cache[0].offset
        logits: mx.array = self.inner(tokens, cache=cache)
        following = [*self.line, *[0] * 99][at + 1 : at + 1 + tokens.shape[1]]
        return logits + 1e4 * (mx.arange(SIZE) == mx.array(following)[:, None])


def _forced(pair: Pair, wanted: Sequence[int], engine: str) -> list[GenerationStep]:
    line = [*PROMPT, *wanted]
    assert pair.drafter is not None
    drafter = Knowing(pair.drafter.model) if engine == "knowing" else pair.drafter
    if isinstance(drafter, Knowing):
        drafter.line = line
    target = Target(Saying(build_model(), line))  # a model of its own: a target taps the layers it is given
    mode = "off" if engine == "plain" else "dflash"
    saying = Pair(target, drafter, pair.tokenizer)
    steps = list(stream_generate(saying, PROMPT, max_tokens=len(wanted), verify_mode=mode))
    assert [token for step in steps for token in step.tokens] == list(wanted)
    return steps


# Log-probabilities

LAWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.1, "top_p": 0.9, "seed": 3},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "logit_bias": {7: 2.0}},
}


def exact_table(model: nn.Module, tokens: list[int], parameters: dict[str, Any]) -> np.ndarray:
    """Log-probabilities (n, V) after bias and penalties, from one plain forward in float32."""
    penalties = {name: value for name, value in parameters.items() if name != "seed"}
    line = [*PROMPT, *tokens]
    logits = model(mx.array([line[:-1]]))[0, len(PROMPT) - 1 :]
    rows = mx.stack([library_logits(row, line[: len(PROMPT) + i], penalties) for i, row in enumerate(logits)])
    return np.array(rows - mx.logsumexp(rows, axis=-1, keepdims=True))


def check_figures(figures: list[TokenLogprobs], tokens: list[int], table: np.ndarray, top: int) -> None:
    assert [figure.token for figure in figures] == tokens
    for figure, row in zip(figures, table, strict=True):
        assert figure.logprob == pytest.approx(row[figure.token], abs=2e-4)
        assert figure.logprob <= 1e-6
        assert len(figure.top) == top
        best = np.sort(row)[::-1][:top]
        assert [value for _, value in figure.top] == pytest.approx(list(best), abs=2e-4)
        assert [value for _, value in figure.top] == sorted((value for _, value in figure.top), reverse=True)
        assert len({token for token, _ in figure.top}) == top
        assert [row[token] for token, _ in figure.top] == pytest.approx(list(best), abs=2e-4)


@pytest.mark.parametrize("top", [0, 1, 20])
@pytest.mark.parametrize("parameters", LAWS.values(), ids=LAWS)
def test_figures_are_those_of_a_plain_forward(
    pair: Pair, knowing: Pair, model: nn.Module, parameters: dict[str, Any], top: int
) -> None:
    for engine, mode in ((knowing, "dflash"), (pair, "dflash"), (pair, "off")):
        answer = generate(engine, PROMPT, max_tokens=15, logprobs=top, verify_mode=mode, **parameters)
        assert answer.logprobs is not None
        table = exact_table(model, answer.tokens, parameters)
        check_figures(answer.logprobs, answer.tokens, table, top)
        total = sum(figure.logprob for figure in answer.logprobs)
        assert total == pytest.approx(table[np.arange(15), answer.tokens].sum(), abs=1e-3)


def test_speculation_and_plain_decoding_report_the_same(pair: Pair, knowing: Pair) -> None:
    expected = generate(pair, PROMPT, max_tokens=TOKENS, logprobs=3, verify_mode="off", **READABLE)
    found = generate(knowing, PROMPT, max_tokens=TOKENS, logprobs=3, **READABLE)
    assert found.stats.accepted_tokens > TOKENS / 2
    assert expected.logprobs is not None
    assert found.logprobs is not None
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert ours.token == theirs.token
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert ours.top[0] == (ours.token, pytest.approx(ours.logprob, abs=1e-6))


def test_every_step_has_figures_for_its_tokens_alone(knowing: Pair, plain: Generation) -> None:
    stop = plain.text[14:17]
    steps = list(stream_generate(knowing, PROMPT, max_tokens=TOKENS, stop=stop, logprobs=2, **READABLE))
    for step in steps:
        assert step.logprobs is not None
        assert [figure.token for figure in step.logprobs] == step.tokens
    silent = list(stream_generate(knowing, PROMPT, max_tokens=9, **READABLE))
    assert {step.logprobs for step in silent} == {None}
