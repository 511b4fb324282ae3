"""Splits streamed text into thinking and answer, at the markers of the model. Knows text only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from .markers import NORMAL, REASONING, START, Marker, Markers, Stretch, Transitions

Kind = Literal["thinking", "answer"]

_HIDDEN = "header"  # a state of mlx-lm's response formats: its text says whom a message is for


class Piece(NamedTuple):
    """A part of an answer, without the markers."""

    kind: Kind
    text: str


class Splitter:
    """Cuts a text at markers, also where a marker is split over several calls."""

    def __init__(self, transitions: Transitions, state: str) -> None:
        self._markers = Markers(transitions, state)

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now. What may be the beginning of a marker is held back."""
        return _pieces(self._markers.feed(text))

    def flush(self) -> list[Piece]:
        """What was held back: the text has ended."""
        return _pieces(self._markers.flush())


def thinking_markers(tokenizer: Any) -> tuple[str, str]:
    """What opens and closes thinking; a model without such tokens may still write the usual tags as text."""
    start = getattr(tokenizer, "think_start", None) or "<think>"
    return start, getattr(tokenizer, "think_end", None) or "</think>"


def thinking_transitions(tokenizer: Any, prompt: str) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """The transitions around thinking, for the answer to a rendered prompt, and the state that it begins in.

    Some templates open the thinking in the prompt: then the answer begins inside it.
    """
    formats: Transitions | None = getattr(tokenizer, "response_transitions", None)
    if formats:
        return {state: list(edges) for state, edges in formats.items()}, tokenizer.response_initial_state or NORMAL
    start, end = thinking_markers(tokenizer)
    opened = prompt.rstrip().endswith(start)
    return {START: [(start, REASONING)], REASONING: [(end, NORMAL)]}, REASONING if opened else START


def splitter_for(tokenizer: Any, prompt: str) -> Splitter:
    """The splitter of a model (mlx-lm's `TokenizerWrapper`) for the answer to a rendered prompt."""
    return Splitter(*thinking_transitions(tokenizer, prompt))


def split(splitter: Splitter, text: str) -> tuple[str, str]:
    """(thinking, answer) of a whole text, blank edges removed from both where there was thinking."""
    parts: dict[Kind, str] = {"thinking": "", "answer": ""}
    for piece in [*splitter.feed(text), *splitter.flush()]:
        parts[piece.kind] += piece.text
    if not parts["thinking"]:
        return "", parts["answer"]
    return parts["thinking"].strip(), parts["answer"].lstrip("\n")


def _pieces(found: Iterable[Stretch | Marker]) -> list[Piece]:
    shown = [one for one in found if isinstance(one, Stretch) and one.state != _HIDDEN]
    return [Piece("thinking" if one.state == REASONING else "answer", one.text) for one in shown]
