"""Cuts a streamed text at the markers of a model, also where a marker is split over several pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# mlx-lm's names of the states; a response format of its own brings further ones.
START = "start"  # nothing but blanks so far: the state is left for NORMAL when no marker of its own can follow
REASONING = "reasoning"
NORMAL = "normal"
TOOL = "tool"

Transitions = Mapping[str, Sequence[tuple[str, str]]]


class Stretch(NamedTuple):
    """Text between markers, or a part of it."""

    state: str
    text: str


class Marker(NamedTuple):
    """A marker, and the state before and after it."""

    text: str
    before: str
    after: str


class Markers:
    """A machine of states: `transitions` gives the (marker, next state) pairs that are looked for in each."""

    def __init__(self, transitions: Transitions, state: str) -> None:
        self._transitions = transitions
        self.state = state
        self._held = ""

    def feed(self, text: str) -> Iterator[Stretch | Marker]:
        """What is certain now. What may be the beginning of a marker is held back.

        To be used up. Whoever gets a marker may set `state` before asking for more.
        """
        self._held += text
        while (found := self._earliest()) is not None:
            position, marker, after = found
            yield from self._take(position)
            self._held = self._held[len(marker) :]
            before, self.state = self.state, after
            yield Marker(marker, before, after)
        yield from self._take(len(self._held) - self._possible_marker())

    def flush(self) -> list[Stretch]:
        """What was held back: the text has ended."""
        return self._take(len(self._held))

    def _earliest(self) -> tuple[int, str, str] | None:
        self._leave_start()
        found = [(self._held.find(marker), marker, state) for marker, state in self._wanted()]
        return min((f for f in found if f[0] >= 0), default=None, key=lambda f: f[0])

    def _leave_start(self) -> None:
        """What opens an answer does so before anything else is said; later the same characters are text."""
        head = self._held.lstrip()
        if self.state == START and not any(m.startswith(head) or head.startswith(m) for m, _ in self._wanted()):
            self.state = NORMAL

    def _wanted(self) -> Sequence[tuple[str, str]]:
        return self._transitions.get(self.state, ())

    def _possible_marker(self) -> int:
        """Length of the longest end of the held text that a marker could begin with."""
        longest = 0
        for marker, _ in self._wanted():
            for size in range(min(len(marker) - 1, len(self._held)), longest, -1):
                if self._held.endswith(marker[:size]):
                    longest = size
                    break
        return longest

    def _take(self, size: int) -> list[Stretch]:
        text, self._held = self._held[:size], self._held[size:]
        return [Stretch(self.state, text)] if text else []
