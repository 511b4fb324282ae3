"""Token ids to text as they come: the joined pieces equal the full decode, and no piece is a broken character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\ufffd"
# A character has at most four bytes, so that one held back longer than this many tokens is broken for good.
_MOST_HELD = 8


class Decodes(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, ids: list[int]) -> str: ...


class Detokeniser:
    """Decodes a growing list of ids. Only the last few are decoded anew, since a token's text may depend on them."""

    def __init__(self, tokenizer: Decodes, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = list(context)
        self._shown = len(self._ids)  # ids before this are in the text already given
        self._anchor = self._shown  # ids from here on are decoded together

    def add(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; an unfinished character is held back."""
        pieces = []
        for token in ids:
            self._ids.append(token)
            pieces.append(self._step(final=False))
        return "".join(pieces)

    def finish(self) -> str:
        """What is still held back, at the end of the ids."""
        return self._step(final=True)

    def _step(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._anchor : self._shown])
        after = self._decode(self._ids[self._anchor :])
        held = len(self._ids) - self._shown
        if not final and after.endswith(_BROKEN) and held < _MOST_HELD:
            return ""
        if len(after) < len(before) or (not final and len(after) == len(before)):
            return ""
        self._anchor, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""
