"""Scripted proposers: drafts that are right, spoilt or random, and a context that checks what it is given."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.propose import Drafter, Proposal
from dflash2_mlx.target.adapter import Target


@dataclass(frozen=True)
class ContextShape:
    """`taps` arrays of (1, n, hidden) rows a call; a block sees the last `context_rows` (None: all)."""

    taps: int
    hidden: int
    context_rows: int | None = None
    sink_rows: int = 0


class RecordingContext:
    """In place of a drafter's context: keeps every tapped row, and refuses rows that do not follow on."""

    def __init__(self, config: ContextShape) -> None:
        self.config = config
        self.start = self.end = 0
        self._rows: list[mx.array] = []

    def append(self, taps: Sequence[mx.array], position: int) -> None:
        count = taps[0].shape[1]
        shape = (1, count, self.config.hidden)
        assert count >= 1
        assert [tap.shape for tap in taps] == [shape] * self.config.taps
        if position != self.end:
            # only prefill may leave out rows, those that no block will see
            assert self.config.context_rows is not None, (position, self.end)
            assert position > self.end
            self.start, self._rows = position, []
        self._rows.append(mx.concatenate(list(taps)))
        self.end = position + count

    defer = append

    def trim(self, end: int) -> None:
        if end < self.end:
            kept = self.rows()[:, : max(0, end - self.start)]
            self.start, self.end, self._rows = min(self.start, end), end, [kept]

    def copy(self) -> RecordingContext:
        twin = RecordingContext(self.config)
        twin.start, twin.end, twin._rows = self.start, self.end, list(self._rows)
        return twin

    def arrays(self) -> list[mx.array]:
        return self._rows

    def rows(self) -> mx.array:
        """The rows of positions `start` to `end`: (taps, n, hidden)."""
        return mx.concatenate(self._rows, axis=1)

    def check(self) -> None:
        """Every row that a block after `end` can see is there."""
        limit = self.config.context_rows
        wanted = self.end if limit is None else min(limit, self.end)
        assert self.end - self.start >= wanted
        assert sum(rows.shape[1] for rows in self._rows) == self.end - self.start


class Scripted:
    """Drafts the ids of `text` (prompt and answer): each right with probability `right`, else another id.

    It also asserts that the anchor is the id of `text` after the context, as it is in every greedy stream;
    `checked=False` is for the controls.
    """

    def __init__(
        self,
        target: Target,
        text: Sequence[int],
        shape: ContextShape,
        *,
        right: float = 1.0,
        seed: int = 0,
        checked: bool = True,
    ) -> None:
        self.text = list(text)
        self.vocab = target.vocab_size
        self.shape = shape
        self.right = right
        self.checked = checked
        self.rng = random.Random(seed)

    def new_context(self) -> Any:
        return RecordingContext(self.shape)

    def propose(
        self,
        target: Target,
        context: Any,
        anchor: mx.array,
        width: int,
        *,
        temperature: float = 0.0,
        key: mx.array | None = None,
    ) -> Proposal:
        assert anchor.shape == (1,)
        assert width >= 2
        assert (key is None) == (temperature == 0)
        if self.checked:
            if isinstance(context, RecordingContext):
                context.check()
            assert anchor.item() == self.text[context.end], f"position {context.end}"
        return certain(self.drafts(context.end + 1, width - 1))

    def drafts(self, position: int, count: int) -> list[int]:
        """Drafts for the positions from `position` on."""
        return [self._draft(at) for at in range(position, position + count)]

    def _draft(self, position: int) -> int:
        true = self.text[position] if position < len(self.text) else 0
        if self.rng.random() < self.right:
            return true
        return (true + self.rng.randrange(1, self.vocab)) % self.vocab


class Guessing(Scripted):
    """Drafts at random."""

    def drafts(self, position: int, count: int) -> list[int]:
        return [self.rng.randrange(self.vocab) for _ in range(count)]


class Helped(Scripted):
    """A real drafter with its own context, some of whose drafts are put right so that every commit occurs.

    `drafted` holds (position of the anchor, the drafter's own drafts) of every cycle.
    """

    def __init__(self, drafter: Drafter, *args: Any, right: float = 0.5, **options: Any) -> None:
        super().__init__(*args, right=right, **options)
        self.drafter = drafter
        self.drafted: list[tuple[int, list[int]]] = []

    def new_context(self) -> DraftContext:
        return self.drafter.new_context()

    def propose(self, target: Target, context: DraftContext, anchor: mx.array, width: int, **options: Any) -> Proposal:
        position = context.end
        scripted = super().propose(target, context, anchor, width)
        own = self.drafter.propose(target, context, anchor, width, **options)
        assert own.finite.item()
        self.drafted.append((position, own.tokens.tolist()))
        keep = mx.array([self.rng.random() < self.right for _ in range(width - 1)])
        return certain(mx.where(keep, scripted.tokens, own.tokens.astype(mx.int32)).tolist())

    def drafts(self, position: int, count: int) -> list[int]:
        return [self.text[at] if at < len(self.text) else 0 for at in range(position, position + count)]


def certain(drafts: Sequence[int], *, finite: bool = True) -> Proposal:
    """The proposal of a drafter that has no doubt."""
    return Proposal(mx.array(list(drafts), mx.int32), None, None, mx.array(finite))
