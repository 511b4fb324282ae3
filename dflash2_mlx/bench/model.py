"""What a benchmark is told and what it gives: arms, prompts, samples, cells. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of decoding that is compared. `name` is unique in a plan; `Plan.baseline` tells what with.

    `backend` names where it runs, for plans over several pairs or endpoints. Block size None is automatic, verify
    mode "off" plain decoding, "server" whatever an endpoint is set to.
    """

    name: str
    backend: str = "pair"
    block_size: int | None = None
    verify_mode: str = "dflash"
    temperature: float = 0.0

    @property
    def asks_for_speculation(self) -> bool:
        """Whether plain decoding would not be what was asked for."""
        return self.verify_mode not in ("off", "server") and self.block_size != 1


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """A prompt of one kind of content. `messages` are chat messages.

    `depth` is the number of tokens that the whole prompt is brought to, by a text put before the last user message;
    0: as it is. The same prompt at two depths has one `id`.
    """

    id: str
    kind: str
    messages: Sequence[Mapping[str, str]]
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All arms run every prompt, in alternated order, `rounds` times, after a warm-up of each that is not counted.

    `cool_down` is in seconds before each sample, `concurrency` how many prompts are in flight at once (endpoints and
    a server's engine; 1 elsewhere): above 1 each arm runs all prompts in one pass, and `cool_down` is before a pass.
    """

    arms: Sequence[Arm]
    prompts: Sequence[BenchPrompt]
    max_tokens: int = 128
    rounds: int = 3
    cool_down: float = 0.0
    concurrency: int = 1
    seed: int = 0

    def baseline(self, arm: Arm) -> Arm:
        """What an arm is compared with: the first arm at its temperature, which may be itself."""
        return next(other for other in self.arms if other.temperature == arm.temperature)

    @property
    def total(self) -> int:
        """Samples of the whole plan."""
        return len(self.arms) * len(self.prompts) * self.rounds


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer. Seconds of prompt and of generation (first to last token); counts; a digest of its tokens or text.

    A digest of tokens begins with `tokens:`; only digests of one kind are compared.
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
    cycles_by_width: Sequence[int] = ()  # index 0 is width 1, which is plain decoding
    # Of `proposed_by_position[i]` drafts at position i, so many stood; both empty where the backend does not tell.
    accepted_by_position: Sequence[int] = ()
    proposed_by_position: Sequence[int] = ()
    cached_tokens: int = 0  # of the prompt, which a server had kept: its first token was not computed from the start

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first; 0 where there is no second."""
        if self.generation_tokens < 2 or self.generation_seconds <= 0:
            return 0.0
        return (self.generation_tokens - 1) / self.generation_seconds


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` of `total` samples; the `sample` that has just come, None in the warm-up.

    `seconds_left` is an estimate, told from the end of the warm-up on.
    """

    done: int
    total: int
    sample: Sample | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A sample that is missing, and why."""

    arm: str
    prompt: str
    depth: int
    round: int
    error: str


@dataclass(frozen=True, kw_only=True)
class Pass:
    """All prompts of a round through one arm with several in flight: what the backend gave in all."""

    arm: str
    round: int
    requests: int
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Samples with what they stand on: machine, versions, pairs, quantisations, the prompts' digest. JSON both ways.

    `cancelled`: it was ended before all samples were there, by whom or what `extra["ended"]` tells.
    """

    plan: Plan
    facts: Mapping[str, str]
    samples: Sequence[Sample]
    started: float  # seconds since the epoch
    cancelled: bool = False
    failures: Sequence[Failure] = ()
    passes: Sequence[Pass] = ()  # with concurrency above 1
    extra: Mapping[str, Any] = field(default_factory=dict)
