"""Whether a prompt fits into the memory that is left, told before it is run: running out would end the process."""

from __future__ import annotations

import mlx.core as mx

from ..errors import EngineBusy
from ..pairs import Pair
from ..target.copies import arrays_in, take_rows
from ..target.rollback import flatten, is_trimmable
from .prefix_cache import PrefixCache

_PROBE = 2  # rows


def memory_limit() -> int:
    """Bytes that MLX should not go beyond: what Metal recommends, elsewhere MLX's own limit."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    return int(recommended) if isinstance(recommended, int | float) else int(mx.get_memory_limit())


class Memory:
    """Admits prompts by what their rows will take. Used on the thread that runs the models."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = memory_limit() if limit is None else limit
        self._row_bytes: dict[int, tuple[Pair, int]] = {}  # by id; the pair is kept, so that its id is no other's

    def admit(self, pair: Pair, tokens: int, cache: PrefixCache) -> None:
        """Make room for the rows of `tokens` tokens by forgetting prefixes; raises EngineBusy where there is none."""
        needed = self.row_bytes(pair) * tokens
        missing = mx.get_active_memory() + needed - self.limit
        if missing > 0:
            cache.give_back(missing)
            mx.clear_cache()
            missing = mx.get_active_memory() + needed - self.limit
        if missing > 0:
            raise EngineBusy(
                f"the prompt of {tokens} tokens needs {needed / 1e9:.2f} GB, {missing / 1e9:.2f} GB more than is left: "
                "shorten it, or wait until other requests have ended"
            )

    def row_bytes(self, pair: Pair) -> int:
        """Bytes that one more token takes in the target's caches, where they grow with the text."""
        known = self._row_bytes.get(id(pair))
        if known is None:
            caches = pair.target.new_cache()
            mx.eval(pair.target(mx.zeros((1, _PROBE), dtype=mx.int32), caches))
            rows = [take_rows(cache, 0, _PROBE) for cache in flatten(caches) if is_trimmable(cache)]
            known = pair, sum(array.nbytes for array in arrays_in(rows)) // _PROBE
            self._row_bytes[id(pair)] = known
        return known[1]

    def drop(self, pair: Pair) -> None:
        """Forget a pair."""
        self._row_bytes.pop(id(pair), None)
