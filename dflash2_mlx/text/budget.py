"""Constraints around reasoning: its end after so many tokens, and a grammar that waits for the answer.

All follow `decode.constraint`. Markers are token ids, as mlx-lm gives them (`think_start_tokens`,
`think_end_tokens`). Reasoning stands at the very start of an answer or goes on from the prompt (`starts_inside`); a
marker that comes later is text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import mlx.core as mx

from ..decode.constraint import Constraint
from ..errors import RequestError


@dataclass(frozen=True)
class Place:
    """How far an answer is: `opened` tokens of the start marker have come, inside `count`, and at their end `closed`
    tokens of the end marker. It is `over` behind that, or where the answer began with something else.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    opened: int = 0
    count: int = 0
    closed: int = 0
    over: bool = False

    @property
    def undecided(self) -> bool:
        """Nothing has come yet that says whether there is reasoning."""
        return not self.over and not self.opened and bool(self.start)

    @property
    def inside(self) -> bool:
        return not self.over and self.opened == len(self.start)

    def after(self, token: int) -> Place:
        """The place behind one more token."""
        if self.over:
            return self
        if not self.inside:
            fits = token == self.start[self.opened]
            return replace(self, opened=self.opened + 1) if fits else replace(self, over=True)
        closed = _matched(self.end, self.closed, token)
        return replace(self, count=self.count + 1, closed=closed, over=closed == len(self.end))


def _first_place(start: Sequence[int], end: Sequence[int], starts_inside: bool) -> Place:
    over = not end or not (starts_inside or start)
    return Place(tuple(start), tuple(end), opened=len(start) if starts_inside else 0, over=over)


def _matched(marker: Sequence[int], so_far: int, token: int) -> int:
    """How many tokens of a marker a text ends with, which ended with `so_far` of them, after one more token."""
    seen = [*marker[:so_far], token]
    return next((n for n in range(len(seen), 0, -1) if seen[-n:] == list(marker[:n])), 0)


class ThinkingBudget:
    """Leaves everything free for `limit` tokens of reasoning, then asks for the tokens that end it.

    Nothing is put before these, such as a newline: the limit stays exact, and no word in the answer is ours but the
    marker, which does not count. Half of it counts until the rest has come.
    """

    def __init__(
        self, limit: int, end_ids: Sequence[int], starts_inside: bool, start_ids: Sequence[int], vocab_size: int
    ) -> None:
        if limit < 0:
            raise RequestError(f"thinking_budget is {limit}: it must be at least 0", param="thinking_budget")
        self._limit = limit
        self._place = _first_place(start_ids, end_ids, starts_inside)
        self._vocab_size = vocab_size

    def free(self, rows: int) -> bool:
        place = self._place
        return place.over or len(place.start) - place.opened + self._limit - place.count >= rows

    def masks(self, tokens: Sequence[int]) -> mx.array:
        """See `decode.constraint`."""
        place = self._place
        forced = [self._forced(place)]
        for token in tokens:
            place = place.after(token)
            forced.append(self._forced(place))
        wanted = mx.array(forced)[:, None]  # (R + 1, 1)
        return (wanted < 0) | (wanted == mx.arange(self._vocab_size))

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._place = self._place.after(token)

    def _forced(self, place: Place) -> int:
        """The one token that may follow, -1 for any."""
        return place.end[place.closed] if place.inside and place.count >= self._limit else -1


class AfterReasoning:
    """Applies `inner` to what follows the reasoning, or at once where the answer begins with none.

    The reasoning is free but for the end tokens, since the answer must still come. `inner` hears nothing of it. An
    answer may begin with the start marker, whatever `inner` allows there; once begun, the marker is completed.
    """

    def __init__(
        self,
        inner: Constraint,
        end_ids: Sequence[int],
        starts_inside: bool,
        start_ids: Sequence[int],
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
    ) -> None:
        self._inner = inner
        self._place = _first_place(start_ids, end_ids, starts_inside)
        self._vocab_size, self._eos_token_ids = vocab_size, tuple(eos_token_ids)

    # At first use, which is on the thread that decodes: an array belongs to the thread that made it.
    @cached_property
    def _tokens(self) -> mx.array:
        return mx.arange(self._vocab_size)[None]

    @cached_property
    def _no_end(self) -> mx.array:
        ends = mx.array([-1, *self._eos_token_ids])[:, None]
        return (ends != self._tokens).all(axis=0, keepdims=True)  # (1, V)

    def free(self, rows: int) -> bool:
        return self._place.over and self._inner.free(rows)

    def masks(self, tokens: Sequence[int]) -> mx.array:
        """See `decode.constraint`."""
        place = self._place
        rows: list[mx.array] = []
        for i, token in enumerate(tokens):
            if _answers(place, token):
                return mx.concatenate([*rows, self._rows(place, tokens[i:])])
            rows.append(self._rows(place, []))
            place = place.after(token)
        return mx.concatenate([*rows, self._rows(place, [])])

    def advance(self, tokens: Sequence[int]) -> None:
        answer = []
        for token in tokens:
            if _answers(self._place, token):
                answer.append(token)
            self._place = self._place.after(token)
        self._inner.advance(answer)

    def _rows(self, place: Place, answer: Sequence[int]) -> mx.array:
        """The row at `place`, and those after the tokens of the `answer`, where it begins here."""
        if place.inside:
            return self._no_end
        if place.over:
            return self._inner.masks(answer)
        begins = self._tokens == place.start[place.opened]
        if not place.undecided:
            return begins
        rows = self._inner.masks(answer)
        return mx.concatenate([rows[:1] | begins, rows[1:]])


def _answers(place: Place, token: int) -> bool:
    """Whether a token that comes at `place` is one of the answer proper."""
    return place.over or (place.undecided and token != place.start[0])


class All:
    """What every one of the constraints allows; where they leave nothing together, the earlier ones count."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._constraints = list(constraints)

    def free(self, rows: int) -> bool:
        return all(constraint.free(rows) for constraint in self._constraints)

    def masks(self, tokens: Sequence[int]) -> mx.array:
        """See `decode.constraint`."""
        binding = [c for c in self._constraints if not c.free(len(tokens) + 1)] or self._constraints[:1]
        allowed = binding[0].masks(tokens)
        for constraint in binding[1:]:
            both = allowed & constraint.masks(tokens)
            allowed = mx.where(both.any(axis=1, keepdims=True), both, allowed)
        return allowed

    def advance(self, tokens: Sequence[int]) -> None:
        for constraint in self._constraints:
            constraint.advance(tokens)
