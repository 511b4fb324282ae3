"""The figures of blocks against brute force: every path through the candidates, continuation and decision."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dflash2_mlx.analyze.figures import (
    Scored,
    after_prefix,
    arm_figures,
    cycles_of,
    expected_lengths,
    prefix_lengths,
    recall,
)
from dflash2_mlx.analyze.scoring import greedy_walk, proposal_of, ranks, standing, walked

R, K, V = 4, 3, 5
SEEDS = range(6)


def lattice(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Candidates, unary, scores and a true continuation that is often among the candidates."""
    rng = np.random.default_rng(seed)
    candidates = np.stack([rng.permutation(V)[:K] for _ in range(R)])
    scores = rng.normal(size=(R, K, K))
    scores[0] = scores[0, 0]  # the anchor is the only predecessor
    return candidates, rng.normal(size=(R, K)), scores, rng.integers(0, V, R)


def paths() -> list[tuple[int, ...]]:
    return list(product(range(K), repeat=R))


def steps(scores: np.ndarray, path: tuple[int, ...]) -> list[float]:
    return [float(scores[t, path[t - 1] if t else 0, path[t]]) for t in range(R)]


def law(scores: np.ndarray, path: tuple[int, ...], rows: int) -> float:
    """The probability that the walk at temperature 1 begins with the first `rows` of a path."""
    share = 1.0
    for t in range(rows):
        row = np.exp(scores[t, path[t - 1] if t else 0])
        share *= row[path[t]] / row.sum()
    return share


def matched(tokens: list[int], reference: np.ndarray) -> int:
    return next((i for i, token in enumerate(tokens) if token != reference[i]), len(tokens))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_walk_is_the_path_whose_steps_are_best_one_after_the_other(seed: int) -> None:
    _, _, scores, _ = lattice(seed)
    best = max(paths(), key=lambda path: steps(scores, path))
    assert tuple(greedy_walk(scores)) == best
    np.testing.assert_array_equal(walked(scores, np.array(best))[np.arange(R), best], steps(scores, best))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_oracle_is_the_best_of_all_paths(seed: int) -> None:
    candidates, unary, _, reference = lattice(seed)
    best = max(matched([candidates[t, i] for t, i in enumerate(path)], reference) for path in paths())
    assert prefix_lengths((ranks(candidates, unary, reference) < K)[None])[0] == best


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_count_the_better_candidates(seed: int) -> None:
    candidates, unary, _, reference = lattice(seed)
    for t, rank in enumerate(ranks(candidates, unary, reference)):
        own = [unary[t, i] for i in range(K) if candidates[t, i] == reference[t]]
        assert rank == (sum(value > own[0] for value in unary[t]) if own else K)


def test_of_equal_candidates_the_first_is_the_draft() -> None:
    candidates, equal = np.array([[7, 3, 9]]), np.zeros((1, 3))
    assert ranks(candidates, equal, np.array([7]))[0] == 0
    assert ranks(candidates, equal, np.array([9]))[0] == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_the_proposals_law_of_the_true_text_is_that_of_its_path(seed: int) -> None:
    candidates, _, scores, reference = lattice(seed)
    q = np.cumprod(proposal_of(candidates, scores, reference))
    for rows in range(1, R + 1):
        same = [p for p in paths() if [candidates[t, p[t]] for t in range(rows)] == list(reference[:rows])]
        expected = law(scores, same[0], rows) if same else 0.0
        assert q[rows - 1] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_expected_length_equals_rejection_sampling_over_every_draft(seed: int) -> None:
    """By texts drawn from p, weighed with min(1, q / p), and by drafts drawn from q, weighed with min(1, p / q)."""
    candidates, _, scores, _ = lattice(seed)
    rng = np.random.default_rng(100 + seed)
    rows = {text: rng.dirichlet(np.ones(V)) for n in range(R) for text in product(range(V), repeat=n)}  # p by prefix

    by_text = 0.0
    for text in product(range(V), repeat=R):
        p = np.array([rows[text[:t]][text[t]] for t in range(R)])
        stands = standing(proposal_of(candidates, scores, np.array(text)), np.log(p))
        by_text += p.prod() * expected_lengths(stands[None])[0]

    by_draft = 0.0
    for path in paths():
        draft = tuple(int(candidates[t, i]) for t, i in enumerate(path))
        share = 1.0
        for t in range(R):
            q = law(scores, path, t + 1) / law(scores, path, t)
            share *= min(1.0, rows[draft[:t]][draft[t]] / q)
            by_draft += law(scores, path, R) * share
    assert by_text == pytest.approx(by_draft, rel=1e-9)
    assert 0.2 < by_draft < R


def scored(hits: np.ndarray, *, left: list[int] | None = None, temperature: float = 0.0) -> Scored:
    count, rows = hits.shape
    ahead = np.array(left if left is not None else list(range(count, 0, -1)))
    places = np.where(hits, 0, np.arange(count * rows).reshape(count, rows) % 4)
    return Scored(temperature, 3, ahead, hits, places, None, hits * 0.5)


def test_accuracy_after_a_prefix_counts_only_blocks_that_came_so_far() -> None:
    hits = np.random.default_rng(3).random((40, R)) < 0.6
    for i, share in enumerate(after_prefix(hits)):
        reached = [row for row in hits if all(row[:i])]
        assert share == pytest.approx(sum(bool(row[i]) for row in reached) / len(reached))
    assert after_prefix(np.array([[False, True]])) == [0.0, None]


def test_recall_grows_with_k_up_to_the_number_of_candidates() -> None:
    places = np.random.default_rng(4).integers(0, 7, (30, R))
    found = recall(places, 6)
    assert list(found) == [1, 2, 4, 6]
    for k, shares in found.items():
        assert shares == [pytest.approx(sum(int(p) < k for p in places[:, i]) / 30) for i in range(R)]


def test_cycles_follow_each_other_and_are_cut_at_the_end() -> None:
    hits = np.zeros((9, 3), bool)
    hits[0] = True  # 4 tokens: anchors 0, 4
    hits[4, 0] = True  # 2 tokens: anchor 6
    hits[6] = True  # every draft right, but only 3 tokens of the text are left
    assert cycles_of(scored(hits)) == (9, 3)


def test_only_whole_blocks_count_for_means_and_temperatures_stay_apart() -> None:
    hits = np.ones((4, 3), bool)
    greedy, drawn = scored(hits), scored(hits, temperature=1.0)
    figures = arm_figures([greedy, drawn], consecutive=True)
    assert (figures.blocks, figures.sampled_blocks) == (2, 2)  # anchors with 4 and 3 tokens after them
    assert figures.tokens == 4.0
    assert figures.expected == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert figures.cycle_tokens == 4.0
    assert arm_figures([greedy], consecutive=False).cycle_tokens is None
    nothing = arm_figures([drawn], consecutive=True)
    assert (nothing.tokens, nothing.accuracy, nothing.top1, nothing.cycle_tokens) == (None, [], None, None)
