"""What a target gives beside its logits: taps, caches, embedding and head; and two of them in one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from dflash2_mlx.decode.prefill import prefill
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.rollback import flatten
from dflash2_mlx.text.stream import generate
from tests import tiny
from tests.proposers import ContextShape, RecordingContext, Scripted
from tests.running import CHUNK, decode, real_drafter, subject


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_taps_are_the_layer_outputs_of_a_plain_forward(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject(family, 16)
    prompt = of.prompt(50)
    run = decode(of.target, of.scripted(prompt, 40, right=0.6), prompt, max_tokens=40)
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
        proposer = Scripted(of.target, prompt, of.shape(context_rows))
        for keeps_marks in (False, True):
            state = DecodeState(of.target, proposer, keeps_marks=keeps_marks)  # type: ignore[arg-type]
            seen: list[int] = []
            request = make_request(
                prompt,
                vocab_size=of.target.vocab_size,
                checkpoint_block_size=8,
                prefill_step_size=CHUNK,
                progress=lambda done, _, seen=seen: seen.append(done),
            )
            list(prefill(of.target, state, request))
            assert state.tokens == prompt[:-1]
            borders = [*range(0, length - 1, CHUNK), length - 1]
            if keeps_marks and not state.trimmable:  # one more border, where the mark is
                borders = sorted({*range(0, max(0, length - 17), CHUNK), max(0, length - 17), length - 1})
            assert seen == borders
            plain = make_prompt_cache(of.plain)
            for start, end in pairwise(borders):
                of.plain(mx.array([prompt[start:end]]), cache=plain)
                mx.eval([entry.state for entry in plain])
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


def test_a_window_bounds_the_context_of_a_long_prompt() -> None:
    of = subject("gpt_oss", 16)
    prompt = tiny.random_prompt(300)
    shape = ContextShape(len(of.taps), of.target.hidden_size, context_rows=15)
    proposer = Scripted(of.target, [*prompt, *of.answer(prompt, 30)], shape, right=0.7)
    run = decode(of.target, proposer, prompt, max_tokens=30)
    context: Any = run.state.context
    assert context.start == 300 - 15
    assert context.end == 329


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
    texts = [tiny.plain_greedy(tiny.build(family), prompt, 40) for family in families]

    def pair(number: int) -> Pair:
        model = models[number]
        folder = tmp_path / families[number]
        drafter = real_drafter(folder, subject(families[number], 16))
        return Pair(Target(model), drafter)

    def text(of: Pair) -> list[int]:
        return generate(of, prompt, max_tokens=40, prefill_step_size=CHUNK).tokens

    first = pair(0)
    assert text(first) == texts[0]
    second = pair(1)
    assert text(second) == texts[1]
    assert text(first) == texts[0]
    states = first.new_state(), second.new_state()
    for number, of in enumerate((first, second)):
        assert generate(of, prompt, max_tokens=20, state=states[number]).tokens == texts[number][:20]
    for number, of in enumerate((first, second)):  # go on where each was
        longer = [*prompt, *texts[number][:20]]
        assert generate(of, longer, max_tokens=20, state=states[number]).tokens == texts[number][20:]
    del second
    assert text(first) == texts[0]
    assert tiny.plain_greedy(untouched, prompt, 40) == texts[0]
    # the tapped model itself still serves mlx-lm, and is what it was
    assert tiny.plain_greedy(models[0], prompt, 40) == texts[0]
    assert isinstance(models[0], type(untouched))
    after = {kind: kind.__dict__.get("__call__") for kind in before}
    assert after == before
