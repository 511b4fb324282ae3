"""Prompts with the answers that the model wrote to them, and their token ids: what the next prompt may begin with.

The tokens that a model chose need not be those that its text is encoded to, and the prefix cache holds the former.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator

from dflash2_mlx.text.template import Known

_CHARACTERS = 16_000_000  # kept in all: about 32 MB with the ids


class KnownTexts:
    """The last conversations' texts, at most `limit` characters of them. Any thread may use it."""

    def __init__(self, limit: int = _CHARACTERS) -> None:
        self._limit = limit
        self._size = 0
        self._ids: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, known: Known) -> None:
        """Keep a prompt with its answer."""
        key = known.prompt, known.answer
        with self._lock:
            if self._ids.pop(key, None) is None:
                self._size += _characters(key)
            self._ids[key] = array("i", known.ids)
            while self._size > self._limit:
                oldest, _ = self._ids.popitem(last=False)
                self._size -= _characters(oldest)

    def __iter__(self) -> Iterator[Known]:
        with self._lock:
            return iter([Known(prompt, answer, ids) for (prompt, answer), ids in self._ids.items()])


def _characters(key: tuple[str, str]) -> int:
    return sum(map(len, key))
