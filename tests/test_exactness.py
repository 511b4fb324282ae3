"""Greedy streams equal mlx-lm's plain decoding in float32, whatever is drafted, for every family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import flatten
from tests import tiny
from tests.proposers import ContextShape, Scripted
from tests.running import Run, cold_drafts, decode, real_drafter, subject
from tests.tiny_families import NAMED, OTHERS

TOKENS = 200
OWN = 6  # the checkpoint's block size where a case asks for none
PROMPTS = (1, 2, 50, 600)
BLOCKS = (2, 5, 8, None)  # plain decoding has tests of its own
DRAFTS = ("perfect", "spoilt", "random", "real")
ENGINES = ("dflash2", "mixed", "dflash")
SPARED = ("llama_untied", "qwen3", "qwen3_5_moe", "gemma4_per_layer", "gemma4_moe", "gemma3_text")


@dataclass(frozen=True)
class Case:
    family: str
    window: int
    prompt: int
    block: int | None
    drafts: str
    engine: str

    def __str__(self) -> str:
        block = "own" if self.block is None else self.block
        drafts = self.engine if self.drafts == "real" else self.drafts
        return f"{self.family}-w{self.window}-p{self.prompt}-b{block}-{drafts}"


def schedule() -> list[Case]:
    """A share of the cross product: a family meets every value, and all pairs of values meet somewhere.

    Variants of a family in feed-forward or head alone are spared the long prompt.
    """
    cases = []
    for number, family in enumerate(tiny.FAMILIES):
        slides = "sliding_window" in str({**NAMED, **OTHERS}[family](16))
        for i, drafts in enumerate(DRAFTS):
            prompt = PROMPTS[(i + number // 4) % 4]
            block = BLOCKS[(i + number) % 4]
            other_window = (prompt == 600) != bool(number % 2)
            if prompt == 600 and family in SPARED:
                prompt = 50
            window = 32 if slides and other_window else 16
            cases.append(Case(family, window, prompt, block, drafts, ENGINES[number % 3]))
    return cases


CASES = schedule()


def test_the_schedule_covers_what_it_should() -> None:
    for family in tiny.FAMILIES:
        mine = [case for case in CASES if case.family == family]
        assert {case.prompt for case in mine} == set(PROMPTS) - ({600} if family in SPARED else set())
        assert {case.block for case in mine} == set(BLOCKS)
        assert {case.drafts for case in mine} == set(DRAFTS)
    values = {"window": (16, 32), "prompt": PROMPTS, "block": BLOCKS, "drafts": DRAFTS}
    for one, other in itertools.combinations(values, 2):
        met = {(getattr(case, one), getattr(case, other)) for case in CASES}
        assert met == set(itertools.product(values[one], values[other])), (one, other)
    assert {case.engine for case in CASES if case.drafts == "real"} == set(ENGINES)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Random drafters by family, target window (16 or 32; theirs is the other one), engine and block size."""

    @cache
    def make(family: str, window: int, engine: str, block: int) -> Drafter:
        folder = tmp_path_factory.mktemp("drafter")
        of = subject(family, window)
        return real_drafter(folder, of, engine=engine, window=48 - window, block_size=block)

    return make


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_stream_equals_plain_decoding(case: Case, drafters: Any) -> None:
    of = subject(case.family, case.window)
    prompt = of.prompt(case.prompt)
    plain = of.answer(prompt, TOKENS)
    assert len(set(plain)) > 20
    checkpoint = OWN if case.block is None else 8
    proposer: Any
    if case.drafts == "real":
        drafter = drafters(case.family, case.window, case.engine, checkpoint)
        proposer = of.helped(drafter, prompt, TOKENS)
    elif case.drafts == "random":
        proposer = of.guessing(prompt, TOKENS, context_rows=31)
    else:
        proposer = of.scripted(prompt, TOKENS, right={"perfect": 1.0, "spoilt": 0.6}[case.drafts])
    run = decode(
        of.target,
        proposer,
        prompt,
        block_size=case.block,
        checkpoint_block_size=checkpoint,
        max_tokens=TOKENS,
    )
    assert run.tokens == plain
    check_acceptance(run, case, checkpoint if case.block is None else case.block)
    check_state(run, [*prompt, *plain])
    if case.drafts == "real":
        cycles = proposer.drafted[:: max(1, len(proposer.drafted) // 4)]
        assert cold_drafts(of, drafter, [*prompt, *plain], cycles) == [own for _, own in cycles]


def check_acceptance(run: Run, case: Case, block: int) -> None:
    most = block - 1
    seen = set(run.accepted[:-1])  # the last block may be cut
    if case.drafts == "perfect":
        assert seen == {most}
    elif case.drafts == "spoilt":
        assert seen >= ({0, most} if most == 1 else {0, 1, most})
    elif case.drafts == "random":
        assert 0 in seen


def check_state(run: Run, text: Sequence[int]) -> None:
    """Caches and context stand at the last token but one: that one ended the request and was not fed."""
    assert run.state.tokens == list(text[:-1])
    offsets = {cache.offset for cache in flatten(run.state.caches) if hasattr(cache, "offset")}
    assert offsets <= {len(text) - 1}
    assert run.state.context.end == len(text) - 1


@pytest.mark.parametrize("family", ["gemma4_shared", "qwen3_next"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_random_drafter_alone_changes_nothing(family: str, engine: str, drafters: Any) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    drafter = drafters(family, 16, engine, OWN)
    run = decode(of.target, drafter, prompt, checkpoint_block_size=OWN, max_tokens=40)
    assert run.tokens == of.answer(prompt, 40)
    assert run.stats.cycles > 25


# --- verify modes, and several in one conversation ----------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma4", "gpt_oss", "qwen3_5", "falcon_h1"])
def test_decoding_without_drafts_is_plain_decoding(family: str) -> None:
    of = subject(family, 16)
    ways: list[tuple[int, bool, dict[str, Any]]] = [
        (1, True, {"block_size": 1}),
        (50, True, {"verify_mode": "off"}),
        (2, False, {}),
    ]
    for length, with_drafter, options in ways:
        prompt = of.prompt(length)
        proposer = of.scripted(prompt, 60) if with_drafter else None
        run = decode(of.target, proposer, prompt, max_tokens=60, **options)
        assert run.tokens == of.answer(prompt, 60)
        assert run.stats.cycles == run.stats.accepted_tokens == 0
        if with_drafter:
            check_state(run, [*prompt, *run.tokens])


@pytest.mark.parametrize("family", ["llama", "gemma4", "laguna", "qwen3_5", "falcon_h1"])
def test_switching_modes_within_a_conversation_changes_neither_text_nor_context(family: str, drafters: Any) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    text = [*prompt, *of.answer(prompt, 200)]
    drafter = drafters(family, 16, "mixed", 8)
    proposer = of.helped(drafter, prompt, 200)
    state = DecodeState(of.target, proposer)  # type: ignore[arg-type]
    modes: list[dict[str, Any]] = [{}, {"block_size": 1}, {"block_size": 3}, {"verify_mode": "off"}, {}]
    at = len(prompt)
    for mode, count in zip(modes, (30, 5, 30, 80, 50), strict=True):
        run = decode(of.target, proposer, text[:at], state=state, max_tokens=count, **mode)
        assert run.tokens == text[at : at + count]
        assert run.stats.cached_tokens == (0 if at == len(prompt) else at - 1)
        at += count
        assert state.tokens == text[: at - 1]
        assert state.context.end == at - 1
    assert {at for at, _ in proposer.drafted} & set(range(200, 245)), "the last mode drafts again"
    cycles = proposer.drafted[::4]
    assert cold_drafts(of, drafter, text, cycles) == [own for _, own in cycles]


# --- quantised targets, other dtypes --------------------------------------------------------------------------------


def shortfall(rows: mx.array, tokens: Sequence[int]) -> mx.array:
    """How far below the best each token's logit is in its row, as a share of the row's largest magnitude."""
    rows = rows.astype(mx.float32)
    chosen = mx.take_along_axis(rows, mx.array(list(tokens))[:, None], axis=1)[:, 0]
    return (rows.max(axis=1) - chosen) / mx.abs(rows).max(axis=1)


def quantised(family: str) -> nn.Module:
    model = tiny.build(family)

    def packs(_: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

    nn.quantize(model, group_size=32, bits=8, class_predicate=packs)
    return model.eval()


def in_bfloat16(family: str) -> nn.Module:
    model = tiny.build(family)
    model.set_dtype(mx.bfloat16)
    return model


@pytest.mark.parametrize(
    ("family", "change", "tolerance"),
    [
        *((family, quantised, 1e-3) for family in ("llama", "gemma4", "gpt_oss", "qwen3_5")),
        *((family, in_bfloat16, 0.04) for family in ("llama_untied", "qwen3_5", "falcon_h1")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_where_rows_round_differently_texts_fork_only_at_near_ties(family: str, change: Any, tolerance: float) -> None:
    plain, target = change(family), Target(change(family))
    target.prepare([1])
    prompt = tiny.random_prompt(20, seed=1)
    text = tiny.plain_greedy(plain, prompt, 60)
    proposer = Scripted(target, [*prompt, *text], ContextShape(1, 32), right=0.7, checked=False)
    run = decode(target, proposer, prompt, block_size=5, max_tokens=60)
    assert len(set(run.tokens)) > 20
    assert run.stats.cycles > 10
    rows = tiny.single_row_logits(plain, [*prompt, *run.tokens[:-1]])[len(prompt) - 1 :]
    assert (shortfall(rows, run.tokens) <= tolerance).all()
    # a control: tokens that are not the best are further away
    assert (shortfall(rows, tiny.random_prompt(60, seed=5)) > tolerance).sum() > 50
