"""Acceptance as pure functions on the device: how many drafts stand, and the token of the target's own after them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Verdict:
    """`accepted` (scalar, 0 to R) drafts stand; `bonus` (scalar) is the token after them."""

    accepted: mx.array
    bonus: mx.array


def accept_greedy(drafts: mx.array, choices: mx.array, *, usable: mx.array) -> Verdict:
    """Drafts (R,) stand while they equal the target's choices (R + 1,); the first other choice replaces them.

    No draft stands where the boolean scalar `usable` is false.
    """
    matches = ((drafts == choices[:-1]) & usable).astype(mx.int32)
    accepted = mx.cumprod(matches).sum()
    return Verdict(accepted, choices[accepted])


def accept_sampled(
    drafts: mx.array,
    log_law: mx.array,
    candidates: mx.array | None,
    proposal: mx.array | None,
    *,
    usable: mx.array,
    accept_key: mx.array,
    residual_key: mx.array,
) -> Verdict:
    """Rejection sampling, after which every token follows the target's law exactly.

    `drafts` (R,) were drawn from `proposal` (R, k) over `candidates` (R, k), or are certain where both are None;
    `log_law` (R + 1, V) is the target's law, an unnormalised logarithm. A draft d stands with probability
    min(1, p(d) / q(d)); after the first that falls, the residual max(p - q, 0) is sampled, or p where that is all
    zero; after all, p of the last row. No draft stands where the boolean scalar `usable` is false.
    """
    p = mx.softmax(log_law, axis=-1)
    rows = drafts.shape[0]
    if candidates is None or proposal is None:
        candidates, proposal = drafts[:, None], mx.ones((rows, 1), p.dtype)
    p_draft = mx.take_along_axis(p[:-1], drafts[:, None], axis=1)[:, 0]
    q_draft = mx.where(candidates == drafts[:, None], proposal, 0).sum(axis=-1)
    stands = mx.random.uniform(shape=(rows,), key=accept_key) * q_draft < p_draft
    accepted = mx.cumprod((stands & usable).astype(mx.int32)).sum()

    row = p[accepted]
    # After the last draft nothing was proposed: its q is zero, and the residual is p itself.
    fell = mx.minimum(accepted, rows - 1)
    q_row = mx.where((accepted < rows) & usable, proposal[fell], 0)
    residual = mx.maximum(row.at[candidates[fell]].subtract(q_row), 0)
    residual = mx.where(residual.sum() > 0, residual, row)
    return Verdict(accepted, mx.random.categorical(mx.log(residual), key=residual_key))
