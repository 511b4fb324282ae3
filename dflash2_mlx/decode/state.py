"""The caches of one conversation, with the ids whose rows they hold; kept from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..drafter.context import DraftContext
from ..drafter.propose import Drafter
from ..errors import RequestError
from ..target.adapter import Target
from ..target.copies import compact_state, renewed
from ..target.one_by_one import OpenBlock
from ..target.rollback import flatten, is_trimmable

_MARKS_KEPT = 4  # the last turns' starts: enough for retry and undo; a mark of a sliding target pins a window


@dataclass(frozen=True)
class _Mark:
    """A point to return to: the state of every cache that cannot simply be trimmed, and the drafter's context."""

    length: int
    states: tuple[Any, ...]
    context: DraftContext | None


class DecodeState:
    """Target caches and drafter context after `tokens`. Always consistent: a change that breaks off empties it."""

    def __init__(self, target: Target, drafter: Drafter | None, *, keeps_marks: bool = True) -> None:
        self._target = target
        self._drafter = drafter
        self._keeps_marks = keeps_marks
        self._claims = 0
        self.pending: OpenBlock | None = None  # of a block that is being verified
        self.reset()

    def belongs_to(self, target: Target, drafter: Drafter | None) -> bool:
        """Whether it was made for that pair: other caches would be read without a word."""
        return self._target is target and self._drafter is drafter

    def claim(self) -> int:
        """Begin a request: what another one has left open is undone. The number tells whether one is still the last."""
        if self.pending is not None:
            self.pending.abort()
            self.pending = None
        self._claims += 1
        return self._claims

    def check_claim(self, claim: int) -> None:
        """Raises RequestError when another request has gone on with this state since `claim`."""
        if claim != self._claims:
            raise RequestError("its state went on with another request: this one has ended", param="state")

    def reset(self) -> None:
        """Forget everything."""
        self.tokens: list[int] = []
        self.caches: list[Any] = self._target.new_cache()
        self.context: DraftContext | None = self._drafter.new_context() if self._drafter else None
        self._marks: list[_Mark] = []

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around work that leaves caches and tokens out of step until it is done."""
        try:
            yield
        except BaseException:
            self.reset()
            raise

    @property
    def trimmable(self) -> bool:
        """Whether every cache can go back to any earlier point."""
        return all(is_trimmable(cache) for cache in flatten(self.caches))

    @property
    def needs_marks(self) -> bool:
        """Whether going back takes marks: some cache cannot be trimmed, and somebody may come back."""
        return self._keeps_marks and not self.trimmable

    def mark(self) -> None:
        """Remember this point, so that a later prompt may branch off from it."""
        states = tuple(None if is_trimmable(c) else compact_state(c) for c in flatten(self.caches))
        context = self.context.copy() if self.context else None
        earlier = [mark for mark in self._marks if mark.length < len(self.tokens)]
        self._marks = [*earlier[1 - _MARKS_KEPT :], _Mark(len(self.tokens), states, context)]

    def reuse(self, prompt: Sequence[int]) -> int:
        """Go back to the longest usable prefix of `prompt`, leaving at least its last token to run: its length."""
        common = _common_prefix(self.tokens, prompt[:-1])
        if common < len(self.tokens):
            with self.changing():
                self._go_back(common)
        return len(self.tokens)

    def _go_back(self, most: int) -> None:
        if self.trimmable:
            length = most
            if self.context:
                self.context.trim(most)
            states: tuple[Any, ...] = (None,) * len(flatten(self.caches))
        else:
            self._marks = [mark for mark in self._marks if mark.length <= most]
            if not self._marks:
                return self.reset()
            mark = self._marks[-1]
            length, states = mark.length, mark.states
            self.context = mark.context.copy() if mark.context else None
        excess = len(self.tokens) - length
        for cache, state in zip(flatten(self.caches), states, strict=True):
            if state is None:
                cache.trim(excess)
            else:
                cache.state = renewed(state)
        self.tokens = self.tokens[:length]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
