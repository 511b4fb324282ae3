"""Tokens accepted or drawn anew follow the target's law: chi-square over 100,000 draws, and controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.decode.accept import Verdict, accept_greedy, accept_sampled
from dflash2_mlx.decode.laws import history_rows, log_probabilities, sampling_law
from tests.chi_square import BIASED, FITS, deviation

DRAWS = 100_000
VOCAB = 24
ROWS = 2
TRUE = mx.array(True)

LAWS: dict[str, dict[str, Any]] = {
    "T 0.7": {"temperature": 0.7},
    "T 1": {"temperature": 1.0},
    "T 1.3": {"temperature": 1.3},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 6},
    "min_p": {"temperature": 1.2, "min_p": 0.1},
    "all filters": {"temperature": 0.8, "top_p": 0.95, "top_k": 9, "min_p": 0.02},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.5,
        "logit_bias": {4: 2.0, 5: -3.0},
    },
}


@dataclass(frozen=True)
class Proposed:
    """A proposal law: probabilities `q` (R, k) of `candidates` (R, k); k = 1 is passed as certain."""

    candidates: mx.array
    q: mx.array

    def draw(self, key: mx.array) -> mx.array:
        """As the drafter draws: the argmax under Gumbel noise."""
        pick = mx.argmax(mx.log(self.q) + mx.random.gumbel(self.q.shape, key=key), axis=-1)
        return mx.take_along_axis(self.candidates, pick[:, None], axis=1)[:, 0]


def log_rows(parameters: dict[str, Any]) -> mx.array:
    """The logarithm (R + 1, V) of the target's law, from random logits and a history."""
    law = sampling_law(vocab_size=VOCAB, **parameters)
    logits = 1.5 * mx.random.normal((ROWS + 1, VOCAB), key=mx.random.key(5))
    history = [3, 4, 4, 8, 11, 4]
    rows = history_rows(history, law.history_size, mx.array([4, 9])) if law.history_size else None
    return law.log_law(log_probabilities(law.adjust(logits, rows)))


def _best(p: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-p, axis=-1)[:, :k]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


def sparse(p: np.ndarray) -> Proposed:
    """Five of the likeliest eight, with probabilities of their own."""
    noise = np.random.default_rng(1).normal(size=(ROWS, 5))
    return Proposed(mx.array(_best(p, 8)[:, [0, 2, 3, 5, 7]]), mx.array(_softmax(noise), mx.float32))


def outside(p: np.ndarray) -> Proposed:
    """The likeliest, and three of the unlikeliest, which a filter has cut."""
    noise = np.random.default_rng(2).normal(size=(ROWS, 4))
    return Proposed(mx.array(np.argsort(p, axis=-1)[:, [-1, 0, 1, 2]]), mx.array(_softmax(noise), mx.float32))


def equal(p: np.ndarray) -> Proposed:
    """The target's law itself: nothing is ever rejected."""
    everything = np.broadcast_to(np.arange(VOCAB), p.shape)
    return Proposed(mx.array(everything), mx.array(p))


def dense(p: np.ndarray) -> Proposed:
    """A law over the whole vocabulary."""
    noise = np.random.default_rng(3).normal(size=p.shape)
    everything = np.broadcast_to(np.arange(VOCAB), p.shape)
    return Proposed(mx.array(everything), mx.array(_softmax(noise), mx.float32))


def certain(p: np.ndarray) -> Proposed:
    """One draft a row, as a drafter without a selector gives: the likeliest but one."""
    return Proposed(mx.array(_best(p, 2)[:, 1:]), mx.ones((ROWS, 1)))


def certain_outside(p: np.ndarray) -> Proposed:
    """One draft a row, the unlikeliest."""
    return Proposed(mx.array(np.argsort(p, axis=-1)[:, :1]), mx.ones((ROWS, 1)))


PROPOSALS = {f.__name__: f for f in (sparse, outside, equal, dense, certain, certain_outside)}

# drafts, rows of the target's law, proposal, key of the acceptance, key of the residual
Rule = Callable[[mx.array, mx.array, Proposed, mx.array, mx.array], Verdict]


def accept(drafts: mx.array, rows: mx.array, proposed: Proposed, key: mx.array, other: mx.array) -> Verdict:
    one_hot = proposed.q.shape[1] == 1
    candidates, q = (None, None) if one_hot else (proposed.candidates, proposed.q)
    return accept_sampled(drafts, rows, candidates, q, usable=TRUE, accept_key=key, residual_key=other)


def as_certain(drafts: mx.array, rows: mx.array, _: Proposed, key: mx.array, other: mx.array) -> Verdict:
    """Exact whatever the drafts were drawn from: p(d) for d itself, else p without it."""
    return accept_sampled(drafts, rows, None, None, usable=TRUE, accept_key=key, residual_key=other)


def without_subtraction(
    drafts: mx.array, rows: mx.array, proposed: Proposed, key: mx.array, other: mx.array
) -> Verdict:
    """Biased: after a rejection it samples p, not the residual."""
    accepted = accept(drafts, rows, proposed, key, other).accepted
    return Verdict(accepted, mx.random.categorical(rows[accepted], key=other))


def argmax_taken_for_sampled(
    _: mx.array, rows: mx.array, proposed: Proposed, key: mx.array, other: mx.array
) -> Verdict:
    """Biased: every draft is q's likeliest, but counted as drawn from q."""
    return accept(likeliest(proposed), rows, proposed, key, other)


def likeliest(proposed: Proposed) -> mx.array:
    best = mx.argmax(proposed.q, axis=-1, keepdims=True)
    return mx.take_along_axis(proposed.candidates, best, axis=1)[:, 0]


def draws(rows: mx.array, proposed: Proposed, rule: Rule = accept, *, one_key: bool = False) -> list[np.ndarray]:
    """Drafts (N, R), accepted (N,) and bonus (N,) of many independent cycles."""

    def cycle(key: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        draft_key, accept_key, residual_key = mx.random.split(key, 3)
        drafts = likeliest(proposed) if rule is argmax_taken_for_sampled else proposed.draw(draft_key)
        verdict = rule(drafts, rows, proposed, accept_key, draft_key if one_key else residual_key)
        return drafts, verdict.accepted, verdict.bonus

    return [np.array(a) for a in mx.vmap(cycle)(mx.random.split(mx.random.key(17), DRAWS))]


def first_tokens(drawn: list[np.ndarray]) -> np.ndarray:
    drafts, accepted, bonus = drawn
    return np.bincount(np.where(accepted > 0, drafts[:, 0], bonus), minlength=VOCAB)


def second_tokens(drawn: list[np.ndarray]) -> np.ndarray:
    """Of the cycles whose first draft stood."""
    drafts, accepted, bonus = (a[drawn[1] > 0] for a in drawn)
    return np.bincount(np.where(accepted > 1, drafts[:, 1], bonus), minlength=VOCAB)


def third_tokens(drawn: list[np.ndarray]) -> np.ndarray:
    return np.bincount(drawn[2][drawn[1] == ROWS], minlength=VOCAB)


@pytest.mark.parametrize("proposal", PROPOSALS.values(), ids=PROPOSALS)
@pytest.mark.parametrize("parameters", LAWS.values(), ids=LAWS)
def test_tokens_follow_the_law(parameters: dict[str, Any], proposal: Callable[[np.ndarray], Proposed]) -> None:
    rows = log_rows(parameters)
    p = np.array(mx.softmax(rows, axis=-1))
    drawn = draws(rows, proposal(p[:-1]))
    for row, counts in enumerate((first_tokens(drawn), second_tokens(drawn), third_tokens(drawn))):
        assert deviation(counts, p[row]) < FITS


def test_the_proposals_exercise_every_branch() -> None:
    rows = log_rows(LAWS["top_k"])
    p = np.array(mx.softmax(rows, axis=-1))[:-1]
    rates = {name: float((draws(rows, proposal(p))[1] > 0).mean()) for name, proposal in PROPOSALS.items()}
    assert rates["equal"] > 0.9999
    assert rates["certain_outside"] == 0
    assert all(0.1 < rates[name] < 0.9 for name in ("sparse", "outside", "dense", "certain"))


@pytest.mark.parametrize("rule", [without_subtraction, argmax_taken_for_sampled])
@pytest.mark.parametrize("name", ["T 1", "top_k", "penalties"])
def test_a_biased_rule_is_caught(name: str, rule: Rule) -> None:
    rows = log_rows(LAWS[name])
    p = np.array(mx.softmax(rows, axis=-1))
    for proposal in (sparse, dense):
        assert deviation(first_tokens(draws(rows, proposal(p[:-1]), rule)), p[0]) > BIASED


@pytest.mark.parametrize("name", ["T 1", "top_k"])
def test_drafts_may_be_taken_for_certain_however_they_were_chosen(name: str) -> None:
    """Which is why a drafter without a selector may propose what it likes; only fewer drafts stand."""
    rows = log_rows(LAWS[name])
    p = np.array(mx.softmax(rows, axis=-1))
    for proposal in (sparse, dense):
        drawn, sampled = (draws(rows, proposal(p[:-1]), rule) for rule in (as_certain, accept))
        assert deviation(first_tokens(drawn), p[0]) < FITS
        assert drawn[1].mean() < sampled[1].mean()


def test_one_key_for_draft_and_residual_is_caught() -> None:
    """Where the two draws have one shape they would use the same noise: what was rejected is drawn again."""
    rows = log_rows(LAWS["T 1"])[:2]
    p = np.array(mx.softmax(rows, axis=-1))
    proposed = dense(p[:1])
    assert deviation(first_tokens(draws(rows, proposed, one_key=False)), p[0]) < FITS
    assert deviation(first_tokens(draws(rows, proposed, one_key=True)), p[0]) > BIASED


def test_where_the_residual_is_all_zero_p_is_sampled() -> None:
    """q covers p and the draft has no probability under q either: it falls, and p - q leaves nothing."""
    rows = mx.where(mx.arange(6) == 3, 0.0, -mx.inf) + mx.zeros((2, 1))
    verdict = accept_sampled(
        mx.array([5]),
        rows,
        mx.array([[3, 5]]),
        mx.array([[1.0, 0.0]]),
        usable=TRUE,
        accept_key=mx.random.key(1),
        residual_key=mx.random.key(2),
    )
    assert (verdict.accepted.item(), verdict.bonus.item()) == (0, 3)


def test_an_unusable_block_gives_p_itself() -> None:
    rows = log_rows(LAWS["T 1"])
    p = np.array(mx.softmax(rows, axis=-1))
    proposed = sparse(p[:-1])

    def unusable(drafts: mx.array, rows: mx.array, _: Proposed, key: mx.array, other: mx.array) -> Verdict:
        ids, nan = proposed.candidates, mx.full(proposed.q.shape, mx.nan)
        no = mx.array(False)
        return accept_sampled(drafts, rows, ids, nan, usable=no, accept_key=key, residual_key=other)

    drawn = draws(rows, proposed, unusable)
    assert not drawn[1].any()
    assert deviation(first_tokens(drawn), p[0]) < FITS


def test_greedy_accepts_the_longest_equal_start() -> None:
    choices = mx.array([4, 7, 1, 9])
    for drafts, accepted in (([4, 7, 1], 3), ([4, 7, 2], 2), ([4, 6, 1], 1), ([5, 7, 1], 0)):
        verdict = accept_greedy(mx.array(drafts), choices, usable=TRUE)
        assert (verdict.accepted.item(), verdict.bonus.item()) == (accepted, choices[accepted].item())
    verdict = accept_greedy(mx.array([4, 7, 1]), choices, usable=mx.array(False))
    assert (verdict.accepted.item(), verdict.bonus.item()) == (0, 4)


# Two successive tokens: a target and a drafter that know the token before.

SMALL = 5
ANCHOR = 2


def _markov(*, subtract: bool = True) -> float:
    """The deviation of the joint law of the first two tokens, emitted by one cycle or by two."""
    target = 1.2 * mx.random.normal((SMALL, SMALL), key=mx.random.key(8))
    q = mx.softmax(1.2 * mx.random.normal((SMALL, 3), key=mx.random.key(9)), axis=-1)
    candidates = mx.array([[(a + b) % SMALL for b in (0, 2, 3)] for a in range(SMALL)])

    def cycle(anchor: mx.array, key: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        first_key, second_key, accept_key, residual_key = mx.random.split(key, 4)
        line = [anchor]
        for draft_key in (first_key, second_key):
            pick = mx.random.categorical(mx.log(q[line[-1]]), key=draft_key)
            line.append(candidates[line[-1]][pick])
        proposed = Proposed(mx.stack([candidates[a] for a in line[:2]]), mx.stack([q[a] for a in line[:2]]))
        drafts = mx.stack(line[1:]).astype(mx.int32)
        rule = accept if subtract else without_subtraction
        verdict = rule(drafts, mx.stack([target[a] for a in line]), proposed, accept_key, residual_key)
        return drafts, verdict.accepted, verdict.bonus.astype(mx.int32)

    def two_tokens(key: mx.array) -> tuple[mx.array, mx.array]:
        one, other = mx.random.split(key, 2)
        drafts, accepted, bonus = cycle(mx.array(ANCHOR), one)
        first = mx.where(accepted > 0, drafts[0], bonus)
        later, later_accepted, later_bonus = cycle(first, other)
        follower = mx.where(later_accepted > 0, later[0], later_bonus)
        return first, mx.where(accepted > 1, drafts[1], mx.where(accepted > 0, bonus, follower))

    x, y = (np.array(a) for a in mx.vmap(two_tokens)(mx.random.split(mx.random.key(3), DRAWS)))
    p = np.array(mx.softmax(target, axis=-1))
    joint = p[ANCHOR][:, None] * p
    return deviation(np.bincount(x * SMALL + y, minlength=SMALL * SMALL), joint.reshape(-1))


def test_two_successive_tokens_follow_their_joint_law() -> None:
    assert _markov() < FITS
    assert _markov(subtract=False) > BIASED
