"""The rows of a data folder's conversations: from disk where they are kept, otherwise computed when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ...target.adapter import Target
from ..data.tokens import Conversation
from ..folder_lock import waited_for
from ..lanes import Lanes
from .hidden import Rows, compute_rows, read_rows, rows_path, write_rows

GB = 10**9


def rows_folder(data: Path, fingerprint: str, taps: Sequence[int]) -> Path:
    """Where the rows of one target's layers for that data are kept."""
    key = hashlib.sha256(f"{fingerprint} {list(taps)}".encode()).hexdigest()[:12]
    return data / f"rows-{key}"


class RowStore:
    """Rows by (shard, place). `prepare` fills the disk up to a limit; what is beyond it is computed each time."""

    def __init__(
        self, target: Target, shards: Sequence[Sequence[Conversation]], folder: Path, limit: int, lanes: Lanes
    ) -> None:
        self.target = target
        self.shards = shards
        self.folder = folder
        self.limit = limit  # bytes
        self._lanes = lanes
        self._kept = {i for i in range(len(shards)) if rows_path(folder, i).exists()}

    @property
    def kept(self) -> int:
        """How many shards have their rows on disk."""
        return len(self._kept)

    def prepare(
        self,
        progress: Callable[[int, int], None] = lambda done, total: None,
        cancelled: Callable[[], bool] = bool,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Compute and keep the rows of every shard, in order, until the limit.

        Another training on the same data may be at it: this one waits (`waiting` is called once then), and
        takes what is there then. Raises CheckpointError on a full disk: what is kept so far stays.
        """
        if self.limit > 0:
            with waited_for(self.folder, cancelled, waiting):
                self._fill(progress, cancelled)

    def _fill(self, progress: Callable[[int, int], None], cancelled: Callable[[], bool]) -> None:
        self._kept = {i for i in range(len(self.shards)) if rows_path(self.folder, i).exists()}
        used = sum(path.stat().st_size for path in self.folder.glob("rows-*.safetensors"))
        for number, shard in enumerate(self.shards):
            if cancelled():
                return
            if number not in self._kept:
                if used + self._expected(shard) > self.limit:
                    return
                path = rows_path(self.folder, number)
                write_rows(path, compute_rows(self.target, shard, self._lanes))
                used += path.stat().st_size
                self._kept.add(number)
            progress(number + 1, len(self.shards))

    def rows(self, places: Sequence[tuple[int, int]]) -> list[Rows]:
        """The rows of the conversations at (shard, place), in that order."""
        found: dict[int, Rows] = {}
        for i, (shard, place) in enumerate(places):
            if shard in self._kept:
                found[i] = read_rows(rows_path(self.folder, shard))[place]
        missing = [i for i in range(len(places)) if i not in found]
        if missing:
            wanted = [self.shards[shard][place] for shard, place in (places[i] for i in missing)]
            found |= dict(zip(missing, compute_rows(self.target, wanted, self._lanes), strict=True))
        return [found[i] for i in range(len(places))]

    def _expected(self, shard: Sequence[Conversation]) -> int:
        width = len(self.target.tapped_layers) * self.target.hidden_size
        return sum(map(len, shard)) * (2 * width + 16 * (4 + 4))
