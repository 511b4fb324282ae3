"""A point to which the caches of one conversation can go back once, whatever was fed after it, one row or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import TargetError
from .copies import renewed
from .rollback import flatten, is_trimmable


class Bookmark:
    """Made at the point to return to. Going back moves references only, as a transaction's abort does.

    Unlike a transaction it records nothing of a block, so that single rows may follow too, which a rotating cache
    writes over its oldest ones: caches that cannot be trimmed go on in new array objects, and the old ones stay here.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self._points = [
            (cache, cache.offset if is_trimmable(cache) else _set_aside(cache)) for cache in flatten(caches)
        ]

    def go_back(self) -> None:
        """Undo what was fed since; another return takes another bookmark. Raises TargetError if a cache cannot."""
        for cache, point in self._points:
            if not is_trimmable(cache):
                cache.state = point
                continue
            rows = cache.offset - point
            if cache.trim(rows) != rows:
                raise TargetError(f"{type(cache).__name__} did not trim {rows} rows")


def _set_aside(cache: Any) -> Any:
    """The state that `cache` had, which from now on holds the same values in other objects."""
    before = cache.state
    cache.state = renewed(before)
    return before
