"""Stop strings: text is held back while it may begin one, and cut exactly, over tokens and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import RequestError

_MOST = 4


def stop_strings(stop: Any) -> list[str]:
    """The checked list of a `stop` parameter: None, a string, or up to four; raises RequestError."""
    if stop is None:
        return []
    strings = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Sequence) else None
    if strings is None or len(strings) > _MOST or any(not isinstance(s, str) or not s for s in strings):
        raise RequestError(f"stop is {stop!r}: it must be a string or up to {_MOST}, none of them empty", param="stop")
    return strings


class StopFilter:
    """Passes text on up to the first stop string."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None  # the stop string that was met

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def add(self, text: str) -> str:
        """The part of all text so far that is safe to show and was not shown before."""
        if self.stopped:
            return ""
        if not self._strings:
            return text
        text = self._held + text
        # The one that is complete first counts, as if the text had come letter by letter; of those, the longest.
        found = [(at + len(s), at, s) for s in self._strings if (at := text.find(s)) >= 0]
        if found:
            _, at, self.found = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and turned out to begin no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
