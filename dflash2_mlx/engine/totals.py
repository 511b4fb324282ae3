"""Counts over all requests since the start, for metrics and for telling how long a queue takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

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
    accepted_by_position: list[int] = field(default_factory=list)
    by_reason: Counter[str] = field(default_factory=Counter)
    service_seconds: float = 0.0  # moving average of what one request costs

    def count(self, job: Job) -> None:
        """Add an ended job."""
        stats = job.stats
        self.by_reason[job.reason] += 1
        self.prompt_tokens += stats.prompt_tokens
        self.cached_tokens += stats.cached_tokens
        self.generation_tokens += stats.generation_tokens
        self.cycles += stats.cycles
        self.drafted_tokens += sum(stats.proposed_by_position)
        self.accepted_tokens += stats.accepted_tokens
        self.dropped_blocks += stats.dropped_blocks
        self.prompt_seconds += stats.prompt_seconds
        self.generation_seconds += stats.generation_seconds
        missing = len(stats.accepted_by_position) - len(self.accepted_by_position)
        self.accepted_by_position += [0] * missing
        for i, accepted in enumerate(stats.accepted_by_position):
            self.accepted_by_position[i] += accepted
        if job.started is not None:
            self.queue_seconds += job.started - job.submitted
            weight = _RECENT if self.service_seconds else 1.0
            self.service_seconds += weight * (job.cost - self.service_seconds)

    def retry_after(self) -> int:
        """Seconds after which a place in the queue is likely: one request's time, between one and sixty."""
        return max(1, min(60, round(self.service_seconds)))
