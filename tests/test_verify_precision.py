"""Verify precision `reference`: rows one at a time, so that text and caches are those of plain decoding to the bit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

import dflash2_mlx
from dflash2_mlx.chat import options
from dflash2_mlx.decode.adaptive import AdaptiveWidth
from dflash2_mlx.decode.chooser import FixedWidth
from dflash2_mlx.decode.request import Request, make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model_schema import ModelSettings
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.target.bookmark import Bookmark
from dflash2_mlx.target.one_by_one import OneByOne, verify
from dflash2_server.extensions import DFlashOptions
from dflash2_server.inference import Inference
from dflash2_server.served import ServedPair
from tests import tiny
from tests.proposers import ContextShape, Scripted
from tests.running import decode, real_drafter, steps, subject
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter

REFERENCE = {"verify_precision": "reference"}
PAST_THE_WINDOW = tiny.random_prompt(40, seed=1)
DRAFTS = tiny.random_prompt(4, seed=2)
# MLX's CPU backend multiplies by chosen experts in float32 alone.
DENSE = ("llama_sliding", "gemma4", "qwen3_5", "falcon_h1")


def feed(target: Target, caches: list[Any], tokens: Sequence[int], *, at_once: bool = False) -> list[mx.array]:
    """Logits of each row (n, V), fed singly or as one chunk."""
    groups = [list(tokens)] if at_once else [[token] for token in tokens]
    rows = []
    for group in groups:
        rows.append(target(mx.array([group]), caches)[0])
        mx.eval(rows[-1], [cache.state for cache in caches])
    return rows


def prefilled(target: Target, prompt: Sequence[int]) -> list[Any]:
    caches = target.new_cache()
    if prompt:
        feed(target, caches, prompt, at_once=True)
    return caches


def halves(family: str) -> nn.Module:
    """The family in bfloat16."""
    model = tiny.build(family)
    model.set_dtype(mx.bfloat16)
    return model


def packed(family: str) -> nn.Module:
    """With 4-bit weights, in bfloat16 where MLX can."""
    model = tiny.build(family)

    def packs(_: str, module: nn.Module) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

    nn.quantize(model, group_size=32, bits=4, class_predicate=packs)
    if family in DENSE:
        model.set_dtype(mx.bfloat16)
    return model.eval()


# --- the block ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[], PAST_THE_WINDOW], ids=["empty", "past"])
@pytest.mark.parametrize("family", ["llama", "gemma4_shared", "gpt_oss", "qwen3_5", "falcon_h1"])
def test_rows_and_what_is_left_are_bit_equal_to_plain_steps(family: str, prompt: list[int]) -> None:
    target = subject(family).target
    following = tiny.random_prompt(2, seed=3)
    plain = feed(target, prefilled(target, prompt), DRAFTS)
    for keep in (0, 2, len(DRAFTS)):
        caches = prefilled(target, prompt)
        block, logits, taps = verify(target, caches, mx.array([DRAFTS]), one_by_one=True)
        assert block.rows == len(DRAFTS)
        assert mx.array_equal(logits[0], mx.concatenate(plain))
        assert {tap.shape for tap in taps} == {(1, len(DRAFTS), target.hidden_size)}
        if keep:
            block.commit(keep)
        block.abort()  # of a closed block: nothing
        rows = feed(target, caches, following)
        expected = prefilled(target, prompt)
        feed(target, expected, DRAFTS[:keep])
        assert all(mx.array_equal(a, b) for a, b in zip(rows, feed(target, expected, following), strict=True)), keep
    with pytest.raises(RuntimeError, match="closed"):
        block.commit(1)


def test_taps_are_those_of_single_rows() -> None:
    target = subject("gemma4").target
    _, _, taps = verify(target, prefilled(target, [1, 2]), mx.array([DRAFTS]), one_by_one=True)
    caches = prefilled(target, [1, 2])
    for i, token in enumerate(DRAFTS):
        _, single = target.with_taps(mx.array([[token]]), caches)
        assert all(mx.array_equal(tap[:, i : i + 1], row) for tap, row in zip(taps, single, strict=True))


def test_a_bookmark_undoes_rows_and_chunks() -> None:
    for family in ("llama", "gpt_oss", "qwen3_5"):
        target = subject(family).target
        caches = prefilled(target, PAST_THE_WINDOW)
        for _ in range(2):
            before = Bookmark(caches)
            rows = feed(target, caches, DRAFTS)
            feed(target, caches, PAST_THE_WINDOW, at_once=True)
            before.go_back()
            before = Bookmark(caches)
            assert all(mx.array_equal(a, b) for a, b in zip(rows, feed(target, caches, DRAFTS), strict=True))
            before.go_back()


# --- whole requests -----------------------------------------------------------------------------------------------


def scripted(target: Target, text: Sequence[int], right: float = 0.6, *, checked: bool = True) -> Scripted:
    return Scripted(target, text, ContextShape(len(target._tapped), target.hidden_size), right=right, checked=checked)


def plain_text(target: Target, prompt: Sequence[int], count: int) -> list[int]:
    """The prompt and what plain decoding gives after it."""
    proposer = scripted(target, [], checked=False)
    return [*prompt, *decode(target, proposer, prompt, verify_mode="off", max_tokens=count).tokens]


@pytest.mark.parametrize(
    ("family", "change"),
    [*((family, halves) for family in DENSE if family != "gemma4"), ("gemma4", packed), ("gpt_oss", packed)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_greedy_text_is_that_of_plain_decoding_in_every_dtype(family: str, change: Any) -> None:
    """In bfloat16 mlx-lm's own text may differ: it takes the best of rounded log-probabilities."""
    target = Target(change(family))
    target.prepare([1])
    prompt = tiny.random_prompt(24, seed=4)
    text = plain_text(target, prompt, 30)
    run = decode(target, scripted(target, text), prompt, block_size=3, max_tokens=30, **REFERENCE)
    assert [*prompt, *run.tokens] == text
    assert run.stats.cycles > 10
    assert {0, 2} <= set(run.accepted)
    assert run.state.tokens == text[:-1]


def test_control_rejected_rows_that_stay_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target = subject("llama").target
    text = plain_text(target, PAST_THE_WINDOW, 12)
    proposer = scripted(target, text, checked=False)
    monkeypatch.setattr(Bookmark, "go_back", lambda self: None)
    run = decode(target, proposer, PAST_THE_WINDOW, block_size=4, max_tokens=12, **REFERENCE)
    assert [*PAST_THE_WINDOW, *run.tokens] != text


@pytest.mark.parametrize("family", ["gemma4", "qwen3_5"])
def test_sampled_streams_are_those_of_fast_for_one_seed(family: str) -> None:
    target = subject(family).target
    law = {"temperature": 0.03, "top_k": 20, "seed": 5, "block_size": 4, "max_tokens": 24}
    text = plain_text(target, PAST_THE_WINDOW, 24)
    runs = [
        decode(target, scripted(target, text, 0.8, checked=False), PAST_THE_WINDOW, **law, **precision)
        for precision in (REFERENCE, {"verify_precision": "fast"})
    ]
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].accepted == runs[1].accepted
    assert len(set(runs[0].accepted)) > 1


@pytest.mark.parametrize("family", ["gpt_oss", "falcon_h1"])
def test_a_request_that_is_closed_in_the_middle_leaves_a_usable_state(family: str) -> None:
    target, prompt = subject(family).target, PAST_THE_WINDOW
    text = plain_text(target, prompt, 20)
    proposer = scripted(target, text, 0.7)
    state = DecodeState(target, proposer)  # type: ignore[arg-type]
    running = steps(target, proposer, prompt, state=state, block_size=3, max_tokens=20, **REFERENCE)
    given = [token for _ in range(4) for token in next(running).tokens]
    closing = threading.Thread(target=running.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join()
    assert len(prompt) < len(state.tokens) <= len(prompt) + len(given)
    assert state.tokens == text[: len(state.tokens)]
    left = 20 - len(given)
    again = decode(target, proposer, [*prompt, *given], state=state, max_tokens=left, **REFERENCE)
    assert again.stats.cached_tokens >= len(prompt)
    assert [*prompt, *given, *again.tokens] == text


# --- the parameter ------------------------------------------------------------------------------------------------


def request(**parameters: Any) -> Request:
    return make_request([1], vocab_size=9, checkpoint_block_size=8, **parameters)


def test_the_parameter_is_checked_by_name() -> None:
    assert request().verify_precision == "fast"
    assert request(**REFERENCE).verify_precision == "reference"
    for wrong in ("exact", None, 1, ["fast"]):
        with pytest.raises(RequestError, match=r"verify_precision is .*'fast', 'reference'") as refusal:
            request(verify_precision=wrong)
        assert refusal.value.param == "verify_precision"


def test_flag_chat_and_server_take_it() -> None:
    assert options.parameter_name("verify-precision") == "verify_precision"
    assert options.parameter_value("verify_precision", "reference") == "reference"
    assert DFlashOptions(**REFERENCE).parameters() == REFERENCE
    assert DFlashOptions(enabled=False, **REFERENCE).parameters() == {"verify_mode": "off"}


def test_costs_of_single_rows_do_not_count(tmp_path: Path) -> None:
    of = subject("llama")
    pair = Pair(of.target, real_drafter(tmp_path, of))
    fast = request(verify_mode="adaptive")
    assert isinstance(pair.chooser(fast), AdaptiveWidth)
    assert isinstance(pair.chooser(replace(fast, **REFERENCE)), FixedWidth)


@pytest.mark.parametrize(
    ("setting", "given", "wanted"),
    [(None, {}, "fast"), ("reference", {}, "reference"), ("reference", {"verify_precision": "fast"}, "fast")],
)
def test_a_models_setting_stands_where_a_request_says_nothing(
    setting: Any, given: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    model = write_target(tmp_path / "target")
    write_drafter(tmp_path / "drafter", tiny_drafter_config(model))
    pair = dflash2_mlx.load(str(tmp_path / "target"), str(tmp_path / "drafter"))
    settings = ModelSettings(dflash_verify_precision=setting)
    served = ServedPair(pair, ServerSettings(), model_settings=settings)
    loop = asyncio.new_event_loop()
    prepared = served.prepare(Inference(prompt=[1, 2, 3], parameters=given), loop, lambda work: None)
    loop.close()
    assert prepared.job.request.verify_precision == wanted


def test_fast_runs_a_block_in_one_pass() -> None:
    target = subject("llama").target
    block, _, _ = verify(target, target.new_cache(), mx.array([DRAFTS]))
    assert not isinstance(block, OneByOne)
