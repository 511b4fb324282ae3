"""One block against the text that follows its anchor: pure functions of numpy arrays, row by row."""

from __future__ import annotations

import numpy as np


def greedy_walk(scores: np.ndarray) -> np.ndarray:
    """Indices (R,) of the path that takes the best successor at each row; `scores` (R, k, k)."""
    path = np.zeros(len(scores), dtype=np.int64)
    choice = 0
    for t, row in enumerate(scores):
        choice = int(row[choice].argmax())
        path[t] = choice
    return path


def walked(scores: np.ndarray, path: np.ndarray) -> np.ndarray:
    """The scores (R, k) of each row after the path's own choice at the row before."""
    before = np.concatenate([[0], path[:-1]])
    rows: np.ndarray = scores[np.arange(len(scores)), before]
    return rows


def ranks(candidates: np.ndarray, values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """How many candidates of each row stand before the true token, (R,); k where it is not among them.

    `candidates` and their `values` (R, k), `reference` (R,). Of equal values the earlier candidate stands first.
    """
    order = np.argsort(-values, axis=-1, kind="stable")
    found = np.take_along_axis(candidates, order, axis=-1) == reference[:, None]
    places: np.ndarray = np.where(found.any(axis=-1), found.argmax(axis=-1), candidates.shape[-1])
    return places


def proposal_of(candidates: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """q (R,): the probability, at temperature 1, that the walk proposes each true token after the true one before it.

    0 where it, or the one before it, is no candidate: the walk never comes there.
    """
    found = candidates == reference[:, None]
    index = np.where(found.any(axis=-1), found.argmax(axis=-1), -1)
    q = np.zeros(len(reference))
    before = 0
    for t, own in enumerate(index):
        if own < 0 or before < 0:
            break
        row = scores[t, before].astype(np.float64)
        weights = np.exp(row - row.max())
        q[t] = weights[own] / weights.sum()
        before = int(own)
    return q


def standing(q: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    """min(1, q / p) (R,) of each true token. Its mean over tokens drawn from p is the sum over x of min(p(x), q(x)).

    That sum is the probability that rejection sampling lets the draft stand, so that the mean over drawn texts of a
    product over rows is the probability that all of them stand: no draft need be drawn, nor verified.
    """
    return np.minimum(1.0, q / np.exp(log_p.astype(np.float64)))
