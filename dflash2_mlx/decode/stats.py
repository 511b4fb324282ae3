"""What one request did: counts and times, read live while it runs."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

log = logging.getLogger(__name__)

# Cycles before acceptance is judged, and the accepted drafts per cycle below which something is wrong: even a poor
# drafter passes 0.2 on text, while wrong taps, theta or weights give next to nothing.
ALARM_CYCLES = 48
_ALARM_RATE = 0.04
# One cycle in so many is timed by part: the cost of its further host syncs is spread over them.
TIMED_EVERY = 32


@dataclass
class Stats:
    """Figures of one request. `accepted_by_position[i]` of `proposed_by_position[i]` drafts at position i stood.

    `block_size` is the width of the latest cycle, `cycles_by_width[w - 1]` counts those of width w (1: plain steps).
    `timed_seconds` are those of draft, verify and commit, summed over the `timed_cycles` that were timed by part.
    """

    block_size: int = 1
    verify_mode: str = "off"
    draft_quant: str = "off"
    engine: str = "plain"
    fallback_reason: str | None = None
    pair_alarm: str | None = None  # of the requests before
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    cycles: int = 0
    cycle_tokens: int = 0
    accepted_tokens: int = 0
    dropped_blocks: int = 0
    cycles_by_width: list[int] = field(default_factory=list)
    width_reason: str | None = None  # of the latest choice
    accepted_by_position: list[int] = field(default_factory=list)
    proposed_by_position: list[int] = field(default_factory=list)
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    timed_cycles: int = 0
    timed_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    _since: float = field(default=0.0, repr=False)

    def start_prompt(self) -> None:
        mx.reset_peak_memory()
        self._since = time.perf_counter()

    def start_generation(self) -> None:
        now = time.perf_counter()
        self.prompt_seconds = now - self._since
        self._since = now

    def count_tokens(self, count: int) -> None:
        self.generation_tokens += count
        self.generation_seconds = time.perf_counter() - self._since

    def count_width(self, width: int, reason: str | None) -> None:
        """A cycle of `width` rows, or a plain step (1), has run, for that reason."""
        self.cycles_by_width += [0] * (width - len(self.cycles_by_width))
        self.cycles_by_width[width - 1] += 1
        self.block_size, self.width_reason = width, reason

    def count_cycle(self, accepted: int, proposed: int, *, emitted: int, dropped: bool) -> None:
        """One cycle in which `accepted` of `proposed` drafts stood and `emitted` tokens were left after any cut.

        Logs the alarm when it is due, once.
        """
        self.cycles += 1
        self.cycle_tokens += emitted
        self.accepted_tokens += min(accepted, emitted)
        self.dropped_blocks += dropped
        missing = proposed - len(self.proposed_by_position)
        self.accepted_by_position += [0] * missing
        self.proposed_by_position += [0] * missing
        for i in range(proposed):
            self.proposed_by_position[i] += 1
            self.accepted_by_position[i] += i < accepted
        if self.cycles == ALARM_CYCLES and self.alarm:
            log.warning("%s", self.alarm)

    @property
    def next_is_timed(self) -> bool:
        """Whether the next cycle is to be timed by part, which costs it a host sync or two."""
        return self.cycles % TIMED_EVERY == TIMED_EVERY - 1

    def time_parts(self, draft: float, verify: float, commit: float) -> None:
        """Seconds of one cycle's parts."""
        self.timed_cycles += 1
        self.timed_seconds = [a + b for a, b in zip(self.timed_seconds, (draft, verify, commit), strict=True)]

    @property
    def tokens_per_cycle(self) -> float:
        """Tokens committed per verify, 1 in plain decoding."""
        return self.cycle_tokens / self.cycles if self.cycles else 1.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of cycles in which the draft at each position stood."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return [accepted / proposed for accepted, proposed in pairs]

    @property
    def alarm(self) -> str | None:
        """What is wrong when next to no draft is ever accepted: the text stays right, only slow."""
        return alarm_of(self.cycles, self.accepted_tokens) or self.pair_alarm

    @property
    def engine_in_force(self) -> str:
        """What has decoded: an adaptive answer that drafted nothing is plain."""
        steps = sum(self.cycles_by_width)
        return "plain" if self.verify_mode == "adaptive" and steps and not self.cycles else self.engine

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for `--json` and for responses."""
        prompt = self.prompt_tokens - self.cached_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "cycles": self.cycles,
            "accepted_tokens": self.accepted_tokens,
            "tokens_per_cycle": round(self.tokens_per_cycle, 3),
            "acceptance_by_position": [round(share, 3) for share in self.acceptance_by_position],
            "prompt_tps": round(_rate(prompt, self.prompt_seconds), 2),
            "generation_tps": round(_rate(self.generation_tokens - 1, self.generation_seconds), 2),
            "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 3),
            "block_size": self.block_size,
            "verify_mode": self.verify_mode,
            "width_reason": self.width_reason,
            "cycles_by_width": {width: count for width, count in enumerate(self.cycles_by_width, 1) if count},
            "draft_quant": self.draft_quant,
            "engine": self.engine_in_force,
            "fallback_reason": self.fallback_reason,
            "dropped_blocks": self.dropped_blocks,
            "alarm": self.alarm,
        }


def alarm_of(cycles: int, accepted: int) -> str | None:
    """What is wrong when `accepted` drafts in so many cycles are next to none; None while that cannot be told."""
    if cycles < ALARM_CYCLES or accepted >= _ALARM_RATE * cycles:
        return None
    return (
        f"only {accepted} drafts accepted in {cycles} cycles: the drafter does not fit this "
        "target (wrong pair, taps or weights); the text is right but slower than without it (--draft none)"
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
