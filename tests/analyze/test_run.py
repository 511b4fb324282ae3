"""An analysis of a tiny pair against the runtime itself, and against every continuation of a text."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.analyze.arms import SERVED, ArmRows, arms_of
from dflash2_mlx.analyze.drafted import Block, draft
from dflash2_mlx.analyze.figures import arm_figures
from dflash2_mlx.analyze.reading import contexts, read
from dflash2_mlx.analyze.run import Analysis, analyze
from dflash2_mlx.analyze.scoring import greedy_walk
from dflash2_mlx.analyze.text import RecordedText, target_identity
from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.propose import Proposal
from dflash2_mlx.errors import DecodeError, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.analyze.small import VOCAB, Small, small, written
from tests.running import decode

GENERATIONS = [False, True]


def pair_of(first_generation: bool) -> Small:
    return small(first_generation=first_generation)


def blocks(of: Small, text: RecordedText) -> dict[int, Block]:
    """The served drafter's block at every anchor of a text."""
    assert of.pair.drafter is not None
    reading = read(of.pair.target, of.pair.drafter, text)
    return {
        anchor: draft(of.pair.drafter, of.pair.target, context, text.answer[anchor], of.pair.block_size)
        for anchor, context in contexts(reading, 1)
    }


def drafts_of(block: Block) -> list[int]:
    if block.scores is None:
        return [int(token) for token in block.best]
    return [int(block.candidates[t, i]) for t, i in enumerate(greedy_walk(block.scores))]


class Overheard:
    """A drafter that keeps what it proposed, by the anchor's position."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.heard: dict[int, mx.array] = {}

    def new_context(self) -> DraftContext:
        context: DraftContext = self.drafter.new_context()
        return context

    def propose(self, target: Any, context: DraftContext, anchor: mx.array, width: int, **how: Any) -> Proposal:
        proposal: Proposal = self.drafter.propose(target, context, anchor, width, **how)
        self.heard[context.end] = proposal.tokens
        return proposal


@pytest.mark.parametrize("first_generation", GENERATIONS)
def test_blocks_at_the_anchors_of_real_cycles_are_those_cycles_drafts(first_generation: bool) -> None:
    of = pair_of(first_generation)
    text = written(of)
    overheard = Overheard(of.pair.drafter)
    decode(of.pair.target, overheard, text.prompt, max_tokens=40, checkpoint_block_size=of.pair.block_size)
    found = blocks(of, text)
    assert len(overheard.heard) > 20
    for position, tokens in overheard.heard.items():
        anchor = position - len(text.prompt)
        if anchor in found:  # the last cycle may be launched at the last token
            assert drafts_of(found[anchor]) == tokens.tolist()


@pytest.mark.parametrize("first_generation", GENERATIONS)
@pytest.mark.parametrize(("tokens", "length", "seed"), [(40, 9, 0), (17, 40, 1), (2, 1, 2)])
def test_consecutive_cycles_give_the_runtimes_tokens_per_cycle(
    first_generation: bool, tokens: int, length: int, seed: int
) -> None:
    of = pair_of(first_generation)
    text = written(of, tokens=tokens, length=length, seed=seed)
    run = decode(
        of.pair.target, of.pair.drafter, text.prompt, max_tokens=tokens, checkpoint_block_size=of.pair.block_size
    )
    assert tuple(run.tokens) == text.answer
    figures = analyze(of.pair, [text])
    assert figures.served.cycle_tokens == pytest.approx(run.stats.tokens_per_cycle, rel=1e-12)
    assert figures.measured == {0.0: pytest.approx(run.stats.tokens_per_cycle)}
    assert figures.agreement == 1.0


def test_the_pair_is_right_often_enough_to_tell_anything() -> None:
    figures = analyze(small().pair, [written(small(), seed=i) for i in range(2)])
    assert all(share and 0.1 < share < 0.9 for share in figures.served.after_prefix)
    assert figures.served.tokens is not None
    assert figures.served.oracle is not None
    assert 1.1 < figures.served.tokens < figures.served.oracle < 5


@pytest.mark.parametrize("first_generation", GENERATIONS)
def test_the_mean_over_anchors_is_that_of_a_first_cycle_from_each(first_generation: bool) -> None:
    of = pair_of(first_generation)
    text = written(of, tokens=24)
    lengths = []
    for anchor in range(24 - of.pair.block_size + 1):
        prompt = text.ids[: len(text.prompt) + anchor]  # its first token is the anchor
        run = decode(of.pair.target, of.pair.drafter, prompt, max_tokens=6, checkpoint_block_size=of.pair.block_size)
        lengths.append(run.accepted[0] + 1)
    figures = analyze(of.pair, [text])
    assert figures.served.blocks == len(lengths)
    assert figures.served.tokens == pytest.approx(np.mean(lengths))
    assert len(set(lengths)) > 1


@pytest.mark.parametrize("first_generation", GENERATIONS)
def test_the_expectation_at_temperature_1_is_that_of_every_draft_and_every_text(first_generation: bool) -> None:
    """All texts after an anchor, weighed by the target's law, against all drafts, weighed by the drafter's."""
    of = small(block_size=3, first_generation=first_generation)
    assert of.pair.drafter is not None
    start = written(of, tokens=1, length=12)
    base, known = replace(start, temperature=1.0), start.ids
    after = {tail: of.log_laws([*known, *tail])[len(known) - 1 :] for tail in product(range(VOCAB), repeat=2)}
    by_text = 0.0
    for tail, laws in after.items():
        share = np.exp(laws[0, tail[0]] + laws[1, tail[1]])
        found = Analysis(of.pair)
        found.add(replace(base, answer=(*start.answer, *tail)))
        expected = found.figures().served.expected
        by_text += share * (1.0 if expected is None else expected)
    assert by_text == pytest.approx(1 + sum(chances(of, start, after)), rel=1e-4)


def chances(of: Small, start: RecordedText, after: dict[tuple[int, int], np.ndarray]) -> tuple[float, float]:
    """That the first draft stands, and that both do, over every draft of the block after a text's last token."""
    block = blocks(of, replace(start, answer=(*start.answer, 0, 0)))[0]
    p = np.exp(next(iter(after.values()))[0])
    if block.scores is None:
        first, second = (int(token) for token in block.best)
        both = np.exp(after[first, second][1, second])
        return float(p[first]), float(p[first] * both)
    q = np.exp(block.scores.astype(np.float64))
    q /= q.sum(-1, keepdims=True)
    one = two = 0.0
    for (i, first), (j, second) in product(enumerate(block.candidates[0]), enumerate(block.candidates[1])):
        stands = min(1.0, p[first] / q[0, 0, i])
        one += q[0, 0, i] * q[1, i, j] * stands
        p_second = np.exp(after[int(first), int(second)][1, second])
        two += q[0, 0, i] * q[1, i, j] * stands * min(1.0, p_second / q[1, i, j])
    return one, two


def test_what_does_not_apply_to_the_first_generation_is_left_out() -> None:
    of = small(first_generation=True)
    figures = analyze(of.pair, [written(of, tokens=30)])
    assert list(figures.arms) == [SERVED]
    assert figures.served.walk_recall is None
    assert figures.attention is not None
    assert figures.served.expected is None  # no drawn text


def test_texts_read_in_chunks_are_texts_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of = small()
    assert of.pair.drafter is not None
    text = written(of, length=30)
    whole = read(of.pair.target, of.pair.drafter, text)
    monkeypatch.setattr("dflash2_mlx.analyze.reading._PROMPT_CHUNK", 7)
    monkeypatch.setattr("dflash2_mlx.analyze.reading._ANSWER_CHUNK", 11)
    parts = read(of.pair.target, of.pair.drafter, text)
    np.testing.assert_array_equal(whole.choices, parts.choices)
    np.testing.assert_allclose(whole.log_p, parts.log_p, atol=1e-4)
    laws = of.log_laws(text.ids)[len(text.prompt) - 1 : -1]
    np.testing.assert_allclose(parts.log_p, laws[np.arange(40), list(text.answer)], atol=1e-4)
    for a, b in zip(whole.taps, parts.taps, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-4)


@pytest.mark.parametrize(("stride", "tokens"), [(1, 5), (4, 18), (7, 15), (9, 2)])
def test_a_stride_takes_every_so_manyth_anchor(stride: int, tokens: int) -> None:
    of = small()
    assert of.pair.drafter is not None
    text = replace(written(of), answer=written(of).answer[:tokens])
    reading = read(of.pair.target, of.pair.drafter, text)
    taken = [anchor for anchor, context in contexts(reading, stride) if context.end == len(text.prompt) + anchor]
    assert taken == [anchor for anchor in range(tokens - 1) if anchor % stride == 0]


def test_figures_are_told_by_kind_and_with_a_stride_without_cycles() -> None:
    of = small()
    texts = [written(of, tokens=20 + 9 * i, kind=kind, seed=i) for i, kind in enumerate(("code", "chat"))]
    calls: list[tuple[int, int]] = []
    figures = analyze(of.pair, texts, stride=3, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]
    assert figures.served.cycle_tokens is None
    assert list(figures.kinds) == ["code", "chat"]
    for kind, text in zip(figures.kinds, texts, strict=True):
        assert figures.kinds[kind] == analyze(of.pair, [text], stride=3).served


def test_a_part_of_a_text_counts_for_nothing_until_it_is_done() -> None:
    of, first = small(), written(small(), tokens=12)
    analysis = Analysis(of.pair)
    analysis.add(first)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analysis.add(written(of, seed=1), interrupt)
    assert analysis.figures() == analyze(of.pair, [first])


def test_texts_without_an_anchor_are_refused_together() -> None:
    text = written(small(), tokens=1)
    with pytest.raises(RequestError, match="no text has an anchor"):
        analyze(small().pair, [text])


def test_a_pair_without_a_drafter_and_a_stride_of_zero_are_refused() -> None:
    plain = Pair(Target(tiny.build("llama")), fallback_reason="none is known")
    with pytest.raises(RequestError, match=r"no drafter \(none is known\): name one with --draft"):
        analyze(plain, [])
    with pytest.raises(RequestError, match="stride 0"):
        Analysis(small().pair, stride=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"vocab_size": 7}, "a vocabulary of 7, target has 6"), ({"identity": "f00"}, "identity f00")],
)
def test_another_targets_text_is_refused(change: dict[str, Any], words: str) -> None:
    text = written(small(), tokens=8)
    assert text.identity == target_identity(small().pair)
    with pytest.raises(RequestError, match=words):
        analyze(small().pair, [replace(text, **change)])


def test_a_text_of_other_weights_is_refused() -> None:
    text = written(small(), tokens=30)
    moved = replace(text, answer=tuple((token + 1) % VOCAB for token in text.answer))
    with pytest.raises(RequestError, match="it has other weights"):
        analyze(small().pair, [moved])


def test_a_drafter_that_is_not_finite_is_told() -> None:
    of = small.__wrapped__()
    assert of.pair.drafter is not None
    norm = of.pair.drafter.model.norm
    norm.weight = norm.weight * mx.inf
    with pytest.raises(DecodeError, match="not finite"):
        analyze(of.pair, [written(of, tokens=8)])


def test_all_arms_draft_from_the_same_context() -> None:
    """Each arm by itself gives what it gives among the others."""
    of, text = small(), written(small(), tokens=12)
    assert of.pair.drafter is not None
    together = analyze(of.pair, [text])
    drafters, arms = arms_of(of.pair.drafter)
    reading = read(of.pair.target, of.pair.drafter, text)
    for arm in arms:
        rows = ArmRows(arm)
        for anchor, context in contexts(reading, 1):
            block = draft(drafters[arm.drafter], of.pair.target, context, text.answer[anchor], of.pair.block_size)
            rows.add(reading, anchor, {arm.drafter: block})
        assert arm_figures([rows.scored(0.0)], consecutive=True) == together.arms[arm.name]
