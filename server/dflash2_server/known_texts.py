"""Prompts with the answers that the model wrote to them, and their token ids: what the next prompt may begin with.

The tokens that a model chose need not be those that its text is encoded to, and the prefix cache holds the former.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

_CHARACTERS = 16_000_000  # kept in all: about 32 MB with the ids


class KnownTexts:
    """The last conversations' texts, at most `limit` characters of them. Any thread may use it."""

    def __init__(self, limit: int = _CHARACTERS) -> None:
        self._limit = limit
        self._size = 0
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, text: str, ids: Sequence[int]) -> None:
        """Keep a text that ends where an answer ended."""
        with self._lock:
            if self._ids.pop(text, None) is not None:
                self._size -= len(text)
            self._ids[text] = array("i", ids)
            self._size += len(text)
            while self._size > self._limit:
                oldest, _ = self._ids.popitem(last=False)
                self._size -= len(oldest)

    def __iter__(self) -> Iterator[tuple[str, Sequence[int]]]:
        with self._lock:
            return iter(list(self._ids.items()))
