"""What a benchmark is told and what it gives: arms, prompts, samples, cells. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of decoding that is compared. `name` is unique in a plan; the first arm of a plan is the baseline.

    `backend` names where it runs, for plans over several pairs or endpoints. Block size None is automatic, verify
    mode "off" plain decoding.
    """

    name: str
    backend: str = "pair"
    block_size: int | None = None
    verify_mode: str = "dflash"
    temperature: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """A prompt of one kind of content. `messages` are chat messages; `context` is put before the last user message.

    `depth` is the number of tokens that the whole prompt is brought to by such context, 0: as it is.
    """

    id: str
    kind: str
    messages: Sequence[Mapping[str, str]]
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All arms run every prompt, in alternated order, `rounds` times; one warm-up of each arm is not counted.

    `cool_down` is in seconds before each sample, `concurrency` how many prompts are in flight at once (endpoints and
    a server's engine; 1 elsewhere).
    """

    arms: Sequence[Arm]
    prompts: Sequence[BenchPrompt]
    max_tokens: int = 128
    rounds: int = 3
    cool_down: float = 0.0
    concurrency: int = 1
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer. Seconds of prompt and of generation (first to last token); counts; a digest of its tokens or text.

    `tokens_per_cycle` is None where the backend does not tell; `note` is what disturbed it, such as other requests.
    """

    arm: str
    prompt: str
    kind: str
    depth: int
    round: int
    prompt_tokens: int
    generation_tokens: int
    prompt_seconds: float
    generation_seconds: float
    tokens_per_cycle: float | None = None
    acceptance_by_position: Sequence[float] = ()
    engine: str = ""
    block_size: int | None = None
    finish_reason: str | None = None
    digest: str = ""
    note: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first; 0 where there is no second."""
        if self.generation_tokens < 2 or self.generation_seconds <= 0:
            return 0.0
        return (self.generation_tokens - 1) / self.generation_seconds


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` of `total` samples; the `sample` that has just come."""

    done: int
    total: int
    sample: Sample | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """Samples with what they stand on: machine, versions, pairs, quantisations, the prompts' digest. JSON both ways.

    `cancelled`: it was ended before all samples were there.
    """

    plan: Plan
    facts: Mapping[str, str]
    samples: Sequence[Sample]
    started: float  # seconds since the epoch
    cancelled: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
