"""Greedy streams equal mlx-lm's plain decoding in float32, whatever is drafted, for every family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from dflash2_mlx.decode.prefill import prefill
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.errors import TargetError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import RecurrentEntry, RotatingEntry, Transaction, TrimEntry, flatten
from dflash2_mlx.text.stream import generate
from tests import tiny
from tests.proposers import RecordingContext, Scripted
from tests.running import CHUNK, Run, Subject, cold_drafts, decode, real_drafter, subject
from tests.tiny_families import NAMED, OTHERS

TOKENS = 200
OWN = 6  # the checkpoint's block size where a case asks for none
PROMPTS = (1, 2, 50, 600)
BLOCKS = (1, 2, 5, 8, None)
DRAFTS = ("perfect", "spoilt", "random", "real", "spoilt")
ENGINES = ("dflash2", "mixed", "dflash")

RECURRENT = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "mamba2", "falcon_h1")
ROTATING = ("llama_sliding", "gemma4", "gpt_oss", "muse_glimmer", "laguna", "gemma3_text")


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
    """A share of the cross product: a family meets every prompt and block, and all pairs of values meet."""
    cases = []
    for number, family in enumerate(tiny.FAMILIES):
        slides = "sliding_window" in str({**NAMED, **OTHERS}[family](16))
        windows = {prompt: 32 if slides and (prompt == 600) != bool(number % 2) else 16 for prompt in PROMPTS}
        picked = []
        for i, drafts in enumerate(DRAFTS):
            prompt = PROMPTS[(i + number // len(BLOCKS)) % len(PROMPTS)]
            block = BLOCKS[(i + number) % len(BLOCKS)]
            picked.append(Case(family, windows[prompt], prompt, block, drafts, ENGINES[number % 3]))
        cases += sorted(picked, key=lambda case: case.window)
    return cases


CASES = schedule()


def test_the_schedule_covers_what_it_should() -> None:
    for family in tiny.FAMILIES:
        mine = [case for case in CASES if case.family == family]
        assert {case.prompt for case in mine} == set(PROMPTS)
        assert {case.block for case in mine} == set(BLOCKS)
        assert {case.drafts for case in mine} == set(DRAFTS)
    values = {"window": (16, 32), "prompt": PROMPTS, "block": BLOCKS, "drafts": DRAFTS}
    for one, other in itertools.combinations(values, 2):
        met = {(getattr(case, one), getattr(case, other)) for case in CASES}
        assert met == set(itertools.product(values[one], values[other])), (one, other)
    speculated = {case.engine for case in CASES if case.drafts == "real" and case.block != 1}
    assert speculated == set(ENGINES)


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
    if case.drafts == "real" and case.block != 1:
        cycles = proposer.drafted[:: max(1, len(proposer.drafted) // 4)]
        assert cold_drafts(of, drafter, [*prompt, *plain], cycles) == [own for _, own in cycles]


def check_acceptance(run: Run, case: Case, block: int) -> None:
    most = block - 1
    seen = set(run.accepted[:-1])  # the last block may be cut
    if most == 0:
        assert run.stats.cycles == 0
    elif case.drafts == "perfect":
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


@pytest.mark.parametrize("family", ["llama", "gemma4_shared", "qwen3_next"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_random_drafter_alone_changes_nothing(family: str, engine: str, drafters: Any) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    drafter = drafters(family, 16, engine, OWN)
    run = decode(of.target, drafter, prompt, checkpoint_block_size=OWN, max_tokens=60)
    assert run.tokens == of.answer(prompt, 60)
    assert run.stats.cycles > 40


# --- what the target gives beside its logits ----------------------------------------------------------------


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_taps_are_the_layer_outputs_of_a_plain_forward(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    run = decode(of.target, of.scripted(prompt, 60, right=0.6), prompt, max_tokens=60)
    context = run.state.context
    assert isinstance(context, RecordingContext)
    rows = context.rows()
    expected = layer_outputs(of.plain, run.state.tokens, monkeypatch)
    for number, layer in enumerate(of.taps):
        assert rows[number].shape == expected[layer].shape
        assert close(rows[number], expected[layer])
    # a control: each tap is nearer to its own layer than to the one after
    others = [expected[(layer + 1) % len(expected)] for layer in of.taps]
    assert not any(close(rows[number], other) for number, other in enumerate(others))


def layer_outputs(model: nn.Module, tokens: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[mx.array]:
    """Every layer's output rows (n, H), taken by a patch of the classes for the time of one plain forward."""
    layers = tiny.text_model(model)["layers"]
    taken: dict[int, mx.array] = {}
    with monkeypatch.context() as patch:
        for kind in {type(layer) for layer in layers}:

            def spy(self: Any, *args: Any, _plain: Any = kind.__call__, **kwargs: Any) -> Any:
                out = _plain(self, *args, **kwargs)
                taken[id(self)] = out[0] if isinstance(out, tuple) else out
                return out

            patch.setattr(kind, "__call__", spy)
        mx.eval(model(mx.array([list(tokens)]), cache=make_prompt_cache(model)))
    return [taken[id(layer)][0] for layer in layers]


def close(a: mx.array, b: mx.array, tolerance: float = 1e-4) -> bool:
    """Equal up to rounding in float32, relative to the largest value."""
    return bool((mx.abs(a - b).max() <= tolerance * mx.abs(b).max()).item())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_prefill_leaves_the_caches_of_plain_prefill(family: str) -> None:
    of = subject(family, 16)
    for length, context_rows in ((1, None), (2, None), (50, 31), (200, None), (200, 31)):
        prompt = tiny.random_prompt(length)
        plain = make_prompt_cache(of.plain)
        for start in range(0, length - 1, CHUNK):
            of.plain(mx.array([prompt[start : min(start + CHUNK, length - 1)]]), cache=plain)
            mx.eval([entry.state for entry in plain])
        proposer = Scripted(of.target, prompt, of.shape(context_rows))
        state = DecodeState(of.target, proposer)  # type: ignore[arg-type]
        request = make_request(
            prompt, vocab_size=of.target.vocab_size, checkpoint_block_size=8, prefill_step_size=CHUNK
        )
        assert prefill(of.target, state, request)
        assert state.tokens == prompt[:-1]
        for ours, theirs in zip(flatten(state.caches), flatten(plain), strict=True):
            assert type(ours) is type(theirs)
            assert same(ours.state, theirs.state)


def same(a: Any, b: Any) -> bool:
    """Bit-equal states: nested lists and tuples of arrays, numbers and None."""
    if isinstance(a, mx.array):
        return isinstance(b, mx.array) and bool(mx.array_equal(a, b).item())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def test_taps_of_a_chunked_prefill_equal_those_of_one_chunk_and_are_bounded_by_the_window() -> None:
    of = subject("gpt_oss", 16)
    prompt = of.prompt(600)
    rows = {}
    for chunk, context_rows in ((64, None), (2048, None), (64, 31), (37, 31), (2048, 31)):
        proposer = of.guessing(prompt, 1, context_rows)
        run = decode(of.target, proposer, prompt, max_tokens=1, prefill_step_size=chunk)
        context: Any = run.state.context
        assert context.start == (0 if context_rows is None else 600 - 31)
        rows[chunk, context_rows] = context.rows()
    whole = rows[2048, None]
    for (_, context_rows), got in rows.items():
        assert close(got, whole if context_rows is None else whole[:, -31:])


# --- controls: what is broken on purpose has to be seen -----------------------------------------------------


def keep_all(self: Any, keep: int, rows: int) -> None:
    """A rollback that rolls nothing back."""


def one_row_short(self: RecurrentEntry, keep: int, rows: int) -> None:
    settle_recurrent(self, keep - 1 if 1 < keep < rows else keep, rows)


def never_replayed(self: RecurrentEntry, keep: int, rows: int) -> None:
    settle_recurrent(self, 0 if keep < rows else keep, rows)


def offset_forgotten(self: RotatingEntry, keep: int, rows: int) -> None:
    offset = self.cache.offset
    settle_rotating(self, keep, rows)
    self.cache.offset = offset


def cut_from_the_front(self: RotatingEntry, keep: int, rows: int) -> None:
    settle_rotating(self, rows, rows)
    cut = rows - keep
    keys, values, offset, sink, size, index = self.cache.state
    self.cache.state = (keys[..., cut:, :], values[..., cut:, :], offset - cut, sink, size, index - cut)


settle_recurrent = RecurrentEntry.settle
settle_rotating = RotatingEntry.settle

BROKEN = [
    *((family, TrimEntry, keep_all) for family in ("llama", "qwen3_moe", "gpt_oss", "qwen3_next", "falcon_h1")),
    *((family, RotatingEntry, keep_all) for family in ROTATING),
    *((family, RotatingEntry, offset_forgotten) for family in ("llama_sliding", "gpt_oss")),
    *((family, RotatingEntry, cut_from_the_front) for family in ("llama_sliding", "gpt_oss")),
    *((family, RecurrentEntry, keep_all) for family in RECURRENT),
    *((family, RecurrentEntry, one_row_short) for family in RECURRENT),
    *((family, RecurrentEntry, never_replayed) for family in ("qwen3_5", "lfm2")),
]


@pytest.mark.parametrize(("family", "entry", "broken"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_control_a_broken_rollback_changes_the_text(
    family: str, entry: type, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    monkeypatch.setattr(entry, "settle", broken)
    proposer = of.scripted(prompt, 80, right=0.6, checked=False)
    assert decode(of.target, proposer, prompt, block_size=5, max_tokens=80).tokens != of.answer(prompt, 80)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_5", "falcon_h1"])
def test_control_a_commit_of_all_rows_changes_the_text(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    commit = Transaction.commit
    monkeypatch.setattr(Transaction, "commit", lambda self, keep: commit(self, self.rows))
    proposer = of.scripted(prompt, 80, right=0.6, checked=False)
    assert decode(of.target, proposer, prompt, block_size=5, max_tokens=80).tokens != of.answer(prompt, 80)


@pytest.mark.parametrize(
    ("family", "entry"), [("llama", TrimEntry), ("gpt_oss", RotatingEntry), ("qwen3_5", RecurrentEntry)]
)
def test_the_probe_at_load_finds_a_broken_rollback(family: str, entry: type, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(tiny.build(family))
    monkeypatch.setattr(entry, "settle", keep_all)
    with pytest.raises(TargetError, match="differs from the plain one"):
        target.prepare([1])


def test_control_a_scripted_proposer_notices_a_wrong_anchor() -> None:
    of = subject("llama", 16)
    prompt = of.prompt(50)
    proposer = of.scripted(prompt, 20)
    proposer.text[60] = (proposer.text[60] + 1) % of.target.vocab_size
    with pytest.raises(AssertionError, match="position 60"):
        decode(of.target, proposer, prompt, block_size=2, max_tokens=20)


# --- verify modes, and several in one conversation ----------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma4", "gpt_oss", "qwen3_5", "falcon_h1"])
@pytest.mark.parametrize("plainly", [{"verify_mode": "off"}, {"block_size": 1}])
def test_decoding_without_drafts_is_plain_decoding(family: str, plainly: dict[str, Any]) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    run = decode(of.target, of.scripted(prompt, 80), prompt, max_tokens=80, **plainly)
    assert run.tokens == of.answer(prompt, 80)
    assert run.stats.cycles == run.stats.accepted_tokens == 0
    assert decode(of.target, None, prompt, max_tokens=80, **plainly).tokens == run.tokens


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


# --- two pairs in one process -------------------------------------------------------------------------------


def calls_of(*models: nn.Module) -> dict[type, Any]:
    """`__call__` of every class that the models' modules have in their line of ancestors."""
    kinds = {kind for model in models for _, module in model.named_modules() for kind in type(module).__mro__}
    return {kind: kind.__dict__.get("__call__") for kind in kinds}


def test_two_pairs_in_one_process_do_not_know_of_each_other(tmp_path: Path) -> None:
    families = ("qwen3_5", "gpt_oss")
    models = [tiny.build(family) for family in families]
    untouched = tiny.build("qwen3_5")
    before = calls_of(*models, untouched)
    prompt = tiny.random_prompt(50)
    texts = [tiny.plain_greedy(tiny.build(family), prompt, 60) for family in families]

    def pair(number: int) -> Pair:
        model = models[number]
        folder = tmp_path / families[number]
        drafter = real_drafter(folder, subject(families[number], 16))
        return Pair(Target(model), drafter)

    def text(of: Pair) -> list[int]:
        return generate(of, prompt, max_tokens=60, prefill_step_size=CHUNK).tokens

    first = pair(0)
    assert text(first) == texts[0]
    second = pair(1)
    assert text(second) == texts[1]
    assert text(first) == texts[0]
    states = first.new_state(), second.new_state()
    for number, of in enumerate((first, second)):
        assert generate(of, prompt, max_tokens=30, state=states[number]).tokens == texts[number][:30]
    for number, of in enumerate((first, second)):  # go on where each was
        longer = [*prompt, *texts[number][:30]]
        assert generate(of, longer, max_tokens=30, state=states[number]).tokens == texts[number][30:]
    del second
    assert text(first) == texts[0]
    assert tiny.plain_greedy(untouched, prompt, 60) == texts[0]
    # the tapped model itself still serves mlx-lm, and is what it was
    assert tiny.plain_greedy(models[0], prompt, 60) == texts[0]
    assert isinstance(models[0], type(untouched))
    after = {kind: kind.__dict__.get("__call__") for kind in before}
    assert after == before


# --- wrapped, tied, untied, quantised; other dtypes ---------------------------------------------------------


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_embedding_head_and_layers_are_found_however_the_family_wraps_them(family: str) -> None:
    of = subject(family, 16)
    text = tiny.text_model(of.target.model)
    assert (of.target.hidden_size, of.target.num_layers, of.target.vocab_size) == tiny.target_sizes(of.plain)
    assert of.target.layers is text["layers"]
    ids = mx.array([[3, 1, 4]])
    table = text["embed_tokens"] if "embed_tokens" in text else text["embeddings"]
    assert mx.array_equal(of.target.embed(ids), table.weight[ids])
    hidden = mx.random.normal((1, 3, of.target.hidden_size))
    owners = [module for _, module in of.target.model.named_modules() if "lm_head" in module]
    head = owners[0]["lm_head"].weight if owners else table.weight
    assert close(of.target.head(hidden), hidden @ head.T)


def near_ties_only(model: nn.Module, prompt: Sequence[int], tokens: Sequence[int], tolerance: float) -> bool:
    """Whether every token is within `tolerance` (of the largest logit) of the best, fed row by row."""
    rows = tiny.single_row_logits(model, [*prompt, *tokens[:-1]])[len(prompt) - 1 :].astype(mx.float32)
    chosen = mx.take_along_axis(rows, mx.array(list(tokens))[:, None], axis=1)[:, 0]
    gap = (rows.max(axis=1) - chosen) / mx.abs(rows).max(axis=1)
    return bool((gap <= tolerance).all().item())


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


@pytest.fixture(scope="module", params=["quantised", "bfloat16"])
def variant(request: pytest.FixtureRequest) -> tuple[Any, float]:
    """A way to change a model, and how near two logits are that its rounding may swap."""
    return {"quantised": (quantised, 1e-3), "bfloat16": (in_bfloat16, 0.04)}[request.param]


@pytest.mark.parametrize("family", ["llama", "llama_untied", "gemma4", "qwen3_5", "falcon_h1"])
def test_where_rows_round_differently_texts_fork_only_at_near_ties(family: str, variant: tuple[Any, float]) -> None:
    change, tolerance = variant
    of = Subject(change(family), change(family))
    prompt = of.prompt(20)
    plain = of.answer(prompt, 100)
    assert len(set(plain)) > 20
    proposer = of.scripted(prompt, 100, right=0.7, checked=False)
    run = decode(of.target, proposer, prompt, block_size=5, max_tokens=100)
    assert run.stats.cycles > 20
    assert near_ties_only(of.plain, prompt, run.tokens, tolerance)
    spoilt = [*run.tokens[:80], *tiny.random_prompt(20, seed=5)]
    assert not near_ties_only(of.plain, prompt, spoilt, tolerance)
