"""From scored blocks to figures: accuracy, recall, lengths and the oracle. Nothing here runs a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEPTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Scored:
    """An arm's N blocks of R rows along one text of a temperature, in the order of their anchors.

    `left` (N,) tokens of the text follow each anchor; rows past them say nothing. `hits` (N, R): the draft is the true
    token. `ranks` (N, R): its rank among the k candidates by their own logits; `walk_ranks` by the scores after the
    walk's own predecessor, None without a selector. `stands` (N, R) as `scoring.standing`.
    """

    temperature: float
    depth: int  # k
    left: np.ndarray
    hits: np.ndarray
    ranks: np.ndarray
    walk_ranks: np.ndarray | None
    stands: np.ndarray

    @property
    def complete(self) -> np.ndarray:
        """Which blocks lie in the text with every row, (N,)."""
        whole: np.ndarray = self.left >= self.hits.shape[1]
        return whole


@dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """The figures of one arm over some texts; every list is by position, 0 the first draft. None: nothing to tell.

    Of `blocks` greedy blocks: `accuracy`, and `after_prefix` given that all drafts before stood; `recall` and
    `walk_recall` by k. Tokens per cycle, which count the target's own one: `tokens` at temperature 0 over all anchors,
    `cycle_tokens` in cycles that follow each other, `oracle` of a selector that never errs; `expected` at
    temperature 1, over `sampled_blocks`.
    """

    blocks: int
    sampled_blocks: int
    accuracy: list[float]
    after_prefix: list[float | None]
    recall: dict[int, list[float]]
    walk_recall: dict[int, list[float]] | None
    tokens: float | None
    cycle_tokens: float | None
    oracle: float | None
    expected: float | None

    @property
    def top1(self) -> float | None:
        """Share of right drafts over all positions."""
        return float(np.mean(self.accuracy)) if self.accuracy else None


def arm_figures(scored: Sequence[Scored], *, consecutive: bool) -> ArmFigures:
    """The figures of one arm; `consecutive` tells that every token of the texts was an anchor."""
    greedy = [one for one in scored if one.temperature == 0]
    drawn = [one for one in scored if one.temperature != 0]
    hits = _stacked([one.hits[one.complete] for one in greedy])
    ranks = _stacked([one.ranks[one.complete] for one in greedy])
    walks = [one.walk_ranks[one.complete] for one in greedy if one.walk_ranks is not None]
    stands = _stacked([one.stands[one.complete] for one in drawn])
    depth = max((one.depth for one in scored), default=0)
    cycles = [cycles_of(one) for one in greedy] if consecutive else []
    return ArmFigures(
        blocks=len(hits),
        sampled_blocks=len(stands),
        accuracy=hits.mean(axis=0).tolist() if len(hits) else [],
        after_prefix=after_prefix(hits),
        recall=recall(ranks, depth),
        walk_recall=recall(_stacked(walks), depth) if walks else None,
        tokens=_mean(prefix_lengths(hits) + 1),
        cycle_tokens=_ratio(sum(tokens for tokens, _ in cycles), sum(count for _, count in cycles)),
        oracle=_mean(prefix_lengths(ranks < depth) + 1),
        expected=_mean(expected_lengths(stands) + 1),
    )


def prefix_lengths(hits: np.ndarray) -> np.ndarray:
    """How many rows of each block stand before the first that does not: (N, R) to (N,)."""
    lengths: np.ndarray = np.cumprod(hits, axis=-1).sum(axis=-1)
    return lengths


def expected_lengths(stands: np.ndarray) -> np.ndarray:
    """Of each block, the sum over rows of the product of `stands` (N, R) up to them: (N,)."""
    lengths: np.ndarray = np.cumprod(stands, axis=-1).sum(axis=-1)
    return lengths


def after_prefix(hits: np.ndarray) -> list[float | None]:
    """P(row i right | every row before it right), by row; None where no block came so far."""
    stood = np.cumprod(hits, axis=-1).sum(axis=0)
    before = [len(hits), *stood[:-1].tolist()] if len(stood) else []
    return [_ratio(right, reached) for right, reached in zip(stood.tolist(), before, strict=True)]


def recall(ranks: np.ndarray, depth: int) -> dict[int, list[float]]:
    """By k up to `depth`: the share of blocks whose true token is among the k best, by row; `ranks` (N, R)."""
    depths = sorted({*(k for k in DEPTHS if k <= depth), depth} - {0})
    return {k: (ranks < k).mean(axis=0).tolist() if len(ranks) else [] for k in depths}


def cycles_of(scored: Scored) -> tuple[int, int]:
    """(tokens, cycles) of decoding the text from its first anchor on, cut at its end, as the runtime counts them.

    Every token but the last must be an anchor.
    """
    rows = np.arange(scored.hits.shape[1])
    lengths = prefix_lengths(scored.hits & (rows < scored.left[:, None]))
    tokens = cycles = anchor = 0
    while anchor < len(lengths):
        step = min(int(lengths[anchor]) + 1, int(scored.left[anchor]))
        tokens, cycles, anchor = tokens + step, cycles + 1, anchor + step
    return tokens, cycles


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
