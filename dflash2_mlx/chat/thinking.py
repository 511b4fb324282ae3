"""Splits streamed text into thinking and answer, at the markers of the model. Knows text only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["thinking", "answer"]

# States of the splitter; a response format of mlx-lm brings further names, whose text is answer.
_START = "start"
_THINKING = "reasoning"
_ANSWER = "normal"
_HIDDEN = "header"

Transitions = Mapping[str, Sequence[tuple[str, str]]]


class Piece(NamedTuple):
    """A part of an answer, without the markers."""

    kind: Kind
    text: str


class Splitter:
    """Cuts a text at markers, also where a marker is split over several calls."""

    def __init__(self, transitions: Transitions, state: str) -> None:
        self._transitions = transitions
        self._state = state
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now. What may be the beginning of a marker is held back."""
        self._held += text
        pieces = []
        while (found := self._earliest()) is not None:
            position, marker, state = found
            pieces.append(self._take(position))
            self._held = self._held[len(marker) :]
            self._state = state
        pieces.append(self._take(len(self._held) - self._possible_marker()))
        return [piece for piece in pieces if piece is not None]

    def flush(self) -> list[Piece]:
        """What was held back: the text has ended."""
        piece = self._take(len(self._held))
        return [] if piece is None else [piece]

    def _earliest(self) -> tuple[int, str, str] | None:
        self._leave_start()
        found = [(self._held.find(marker), marker, state) for marker, state in self._markers()]
        return min((f for f in found if f[0] >= 0), default=None, key=lambda f: f[0])

    def _leave_start(self) -> None:
        """Thinking opens before anything else is said; later the same characters are text."""
        head = self._held.lstrip()
        if self._state == _START and not any(m.startswith(head) or head.startswith(m) for m, _ in self._markers()):
            self._state = _ANSWER

    def _markers(self) -> Sequence[tuple[str, str]]:
        return self._transitions.get(self._state, ())

    def _possible_marker(self) -> int:
        """Length of the longest end of the held text that a marker could begin with."""
        longest = 0
        for marker, _ in self._markers():
            for size in range(min(len(marker) - 1, len(self._held)), longest, -1):
                if self._held.endswith(marker[:size]):
                    longest = size
                    break
        return longest

    def _take(self, size: int) -> Piece | None:
        text, self._held = self._held[:size], self._held[size:]
        if not text or self._state == _HIDDEN:
            return None
        return Piece("thinking" if self._state == _THINKING else "answer", text)


def splitter_for(tokenizer: Any, prompt: str) -> Splitter:
    """The splitter of a model (mlx-lm's `TokenizerWrapper`) for the answer to a rendered prompt.

    Some templates open the thinking in the prompt: then the answer begins inside it.
    """
    formats = getattr(tokenizer, "response_transitions", None)
    if formats:
        return Splitter(formats, tokenizer.response_initial_state or _ANSWER)
    start = getattr(tokenizer, "think_start", None) or "<think>"
    end = getattr(tokenizer, "think_end", None) or "</think>"
    opened = prompt.rstrip().endswith(start)
    return Splitter({_START: [(start, _THINKING)], _THINKING: [(end, _ANSWER)]}, _THINKING if opened else _START)


def split(splitter: Splitter, text: str) -> tuple[str, str]:
    """(thinking, answer) of a whole text, blank edges removed from both where there was thinking."""
    parts: dict[Kind, str] = {"thinking": "", "answer": ""}
    for piece in [*splitter.feed(text), *splitter.flush()]:
        parts[piece.kind] += piece.text
    if not parts["thinking"]:
        return "", parts["answer"]
    return parts["thinking"].strip(), parts["answer"].lstrip("\n")
