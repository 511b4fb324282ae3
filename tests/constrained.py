"""Random answers under a constraint, without a model: token by token, or along drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import mlx.core as mx

from dflash2_mlx.decode.constraint import Constraint

# position in the answer and the allowed ids, in order → the id that stands there
Choose = Callable[[int, list[int]], int]


def allowed(row: mx.array) -> list[int]:
    """The ids that a row (V,) allows."""
    flags: list[bool] = row.tolist()  # type: ignore[assignment]
    return [token for token, flag in enumerate(flags) if flag]


def sampler(seed: int, ending: Collection[int] = ()) -> Choose:
    """A uniform choice that depends on the position and the seed alone; every second time one of `ending` if it may."""

    def choose(position: int, tokens: list[int]) -> int:
        rng = random.Random(seed * 100_003 + position)
        preferred = [token for token in tokens if token in ending]
        return rng.choice(preferred if preferred and rng.random() < 0.5 else tokens)

    return choose


def speller(seed: int, ending: Collection[int], phrases: Sequence[Sequence[int]]) -> Choose:
    """As `sampler`, but from time to time it writes one of the `phrases` as far as it may."""
    plain, writing = sampler(seed, ending), []

    def choose(position: int, tokens: list[int]) -> int:
        rng = random.Random(seed * 70_001 + position)
        if not writing and rng.random() < 0.3:
            writing.extend(rng.choice(phrases))
        if writing and writing[0] in tokens:
            return writing.pop(0)
        writing.clear()
        return plain(position, tokens)

    return choose


def single(constraint: Constraint, choose: Choose, ends: Collection[int], *, limit: int = 3000) -> list[int]:
    """An answer, token by token, with its end token."""
    answer: list[int] = []
    while not answer or answer[-1] not in ends:
        assert len(answer) < limit, "the answer does not end"
        (row,) = constraint.masks([])
        answer.append(choose(len(answer), allowed(row)))
        constraint.advance(answer[-1:])
    return answer


def drafted(
    constraint: Constraint, choose: Choose, ends: Collection[int], draft: Callable[[int], list[int]]
) -> list[int]:
    """The same along `draft(position)`: as many as are chosen anyway are accepted, and one token after them."""
    answer: list[int] = []
    while not answer or answer[-1] not in ends:
        drafts = draft(len(answer))
        rows = constraint.masks(drafts)
        assert rows.shape[0] == len(drafts) + 1
        emitted: list[int] = []
        for row in rows:
            emitted.append(choose(len(answer) + len(emitted), allowed(row)))
            if emitted[-1] in ends or [emitted[-1]] != drafts[len(emitted) - 1 : len(emitted)]:
                break
        constraint.advance(emitted)
        answer += emitted
    return answer
