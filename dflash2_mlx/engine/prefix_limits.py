"""What a pair may keep in the prefix cache, and the figures that tell what it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CacheLimits:
    """Of one pair, beside the limit of the whole cache. None: no limit of its own.

    An entry is the end of a branch: the latest state of one conversation, with all that leads to it. `ssd_bytes` 0
    turns the disk tier off; it also takes a folder, and a pair that was loaded from one.
    """

    enabled: bool = True
    max_entries: int | None = None
    max_bytes: int | None = None
    ssd_bytes: int = 0

    @property
    def uses_ssd(self) -> bool:
        return self.enabled and self.ssd_bytes > 0


@dataclass
class CacheFigures:
    """Counts since the start, and what is held. `ssd_error` says why the disk tier is off although it is wanted."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    nbytes: int = 0
    nodes: int = 0
    marks: int = 0
    entries: int = 0
    ssd_hits: int = 0
    ssd_writes: int = 0
    ssd_dropped: int = 0  # files that were damaged or not this pair's
    ssd_bytes: int = 0
    ssd_entries: int = 0
    ssd_error: str | None = None

    def __add__(self, other: CacheFigures) -> CacheFigures:
        """Sums; the first error of the two."""
        mine, theirs = vars(self), vars(other)
        sums = {name: mine[name] + theirs[name] for name in mine if name != "ssd_error"}
        return CacheFigures(**sums, ssd_error=self.ssd_error or other.ssd_error)

    def counts_only(self) -> CacheFigures:
        """What stays true when nothing is held any more."""
        return CacheFigures(
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
            ssd_hits=self.ssd_hits,
            ssd_writes=self.ssd_writes,
            ssd_dropped=self.ssd_dropped,
        )
