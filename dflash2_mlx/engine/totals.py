"""Counts over all requests since the start, for metrics and for telling how long a queue takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest

from ..decode.stats import Stats
from .job import Job

_RECENT = 0.2  # weight of the newest request in the moving average of service times


@dataclass
class Totals:
    """Sums over ended requests; `by_reason` counts how they ended."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    cycles: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    dropped_blocks: int = 0
    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    timed_cycles: int = 0
    timed_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # of their draft, verify and commit
    cycle_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    proposed_by_position: list[int] = field(default_factory=list)
    by_reason: Counter[str] = field(default_factory=Counter)
    service_seconds: float = 0.0  # moving average of what one request costs

    def count(self, job: Job) -> None:
        """Add an ended job."""
        self.by_reason[job.reason] += 1
        self.add(job.stats)
        if job.started is not None:
            self.queue_seconds += job.started - job.submitted
            weight = _RECENT if self.service_seconds else 1.0
            self.service_seconds += weight * (job.cost - self.service_seconds)

    def add(self, stats: Stats) -> None:
        """Add the figures of a request."""
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.generation_tokens += stats.generation_tokens
        self.cycles += stats.cycles
        self.drafted_tokens += sum(stats.proposed_by_position)
        self.accepted_tokens += stats.accepted_tokens
        self.dropped_blocks += stats.dropped_blocks
        self.prompt_seconds += stats.prompt_seconds
        self.generation_seconds += stats.generation_seconds
        self.cycle_tokens += stats.cycle_tokens
        self.timed_cycles += stats.timed_cycles
        self.timed_seconds = [a + b for a, b in zip(self.timed_seconds, stats.timed_seconds, strict=True)]
        self.accepted_by_position = _sums(self.accepted_by_position, stats.accepted_by_position)
        self.proposed_by_position = _sums(self.proposed_by_position, stats.proposed_by_position)

    def retry_after(self) -> int:
        """Seconds after which a place in the queue is likely: one request's time, between one and sixty."""
        return max(1, min(60, round(self.service_seconds)))


def _sums(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
