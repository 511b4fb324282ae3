"""Token ids to text as they come: the joined pieces equal the full decode, and no piece is a broken character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\ufffd"
# A character has at most four bytes. Where more ids than that complete none, the bytes are broken for good, and only
# the last three may still begin one. Until then all may change: a SentencePiece decoder breaks a whole run of bytes.
_BYTES = 4
# While bytes make no character, this many ids are decoded together, and then only the last of them.
_MOST, _KEPT = 64, 16


class Decodes(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, ids: list[int]) -> str: ...


class Detokeniser:
    """Decodes a growing list of ids. Only the last few are decoded anew, since a token's text may depend on them."""

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # decoded together
        self._given = 0  # so many characters of their text were given before
        self._settled = 0  # so many of the ids are behind that text

    def add(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; an unfinished character is held back."""
        pieces = []
        for token in ids:
            self._ids.append(token)
            pieces.append(self._step())
        return "".join(pieces)

    def finish(self) -> str:
        """What is still held back, at the end of the ids."""
        return self._take(self._decode(self._ids))

    def _step(self) -> str:
        text = self._decode(self._ids)
        unfinished = len(text) - len(text.rstrip(_BROKEN))
        if len(self._ids) - self._settled > _BYTES:
            unfinished = min(unfinished, _BYTES - 1)
        piece = self._take(text[: len(text) - unfinished])
        if piece and not unfinished:
            # The ids behind this piece stay, as what the next ones are decoded after.
            self._ids = self._ids[self._settled :]
            self._settled = len(self._ids)
            self._given = len(self._decode(self._ids))
        elif len(self._ids) > _MOST:
            self._ids, self._settled = self._ids[-_KEPT:], 0
            self._given = max(0, len(self._decode(self._ids)) - unfinished)
        return piece

    def _take(self, text: str) -> str:
        piece = text[self._given :]
        self._given = max(self._given, len(text))
        return piece

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""
