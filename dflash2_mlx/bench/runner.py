"""How one sample is taken, kept and told: what `run` does in order, and `in_flight` several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..errors import DFlashError
from .estimate import Estimate
from .model import Arm, BenchPrompt, Failure, Pass, Plan, Progress, Sample
from .seeds import seed_of

WARM_UP_TOKENS = 16
_WARM_UP = "Before we begin: which three things would you pack for a walk along a windy coast, and why these?"
MOST_FAILURES = 3  # in a row: what fails so often will go on failing
_WAKE_UP = 0.2  # seconds between looks at `cancelled` while cooling down

Report = Callable[[Progress], None]


class Backend(Protocol):
    """What answers. `sample` blocks until the answer is there; it runs in several threads only where `concurrent`.

    A finish reason "cancelled" says that the answer was broken off: such a sample does not count.
    """

    @property
    def concurrent(self) -> bool: ...

    @property
    def facts(self) -> Mapping[str, str]: ...

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample: ...


class Turn(NamedTuple):
    """One sample to be taken."""

    arm: Arm
    prompt: BenchPrompt
    round: int


class Ended(Exception):
    """The run ends before its plan does; the text says why."""


def warm_up_prompt(depth: int) -> BenchPrompt:
    """A prompt that no plan has: what a backend keeps of it makes no sample's first token come sooner."""
    return BenchPrompt(id="warm-up", kind="warm-up", messages=({"role": "user", "content": _WARM_UP},), depth=depth)


class Runner:
    """The samples taken so far, and how one is taken."""

    def __init__(
        self,
        plan: Plan,
        backends: Mapping[str, Backend],
        progress: Report,
        cancelled: Callable[[], bool],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.plan, self.backends, self.clock = plan, backends, clock
        self._progress, self._cancelled, self._sleep = progress, cancelled, sleep
        self._estimate = Estimate(plan)
        self._failures_in_a_row = 0
        self.samples: list[Sample] = []
        self.failures: list[Failure] = []
        self.passes: list[Pass] = []
        self.ended = ""

    def warm_up(self) -> None:
        """One short answer of every arm at every depth: kernels are compiled, and costs become known."""
        most = min(WARM_UP_TOKENS, self.plan.max_tokens)
        prompts = [warm_up_prompt(depth) for depth in dict.fromkeys(prompt.depth for prompt in self.plan.prompts)]
        for arm in self.plan.arms:
            for prompt in prompts:
                self.look()
                self._report(None)
                sample = self.backends[arm.backend].sample(arm, prompt, max_tokens=most, seed=self.plan.seed)
                self._estimate.warm(arm.name, prompt.depth, sample)
        self._report(None, self._estimate.seconds_left)

    def take(self, turn: Turn) -> None:
        """Take a sample and keep it, or its failure."""
        try:
            sample = self.answer(turn)
        except DFlashError as error:
            self.fail(turn, error)
        else:
            self.keep(turn, sample)

    def answer(self, turn: Turn) -> Sample:
        """A sample, not kept yet; may run in several threads. Raises what the backend raises."""
        backend = self.backends[turn.arm.backend]
        seed = seed_of(self.plan.seed, turn.prompt, turn.round)
        return backend.sample(turn.arm, turn.prompt, max_tokens=self.plan.max_tokens, seed=seed)

    def keep(self, turn: Turn, sample: Sample) -> None:
        """Add a sample; Ended when it was broken off."""
        if sample.finish_reason == "cancelled":
            raise Ended("cancelled")
        arm, prompt = turn.arm.name, turn.prompt
        kept = replace(sample, arm=arm, prompt=prompt.id, kind=prompt.kind, depth=prompt.depth, round=turn.round)
        self._failures_in_a_row = 0
        self.samples.append(kept)
        self._estimate.add(kept)
        self._report(kept, self._estimate.seconds_left)

    def fail(self, turn: Turn, error: DFlashError) -> None:
        """Note a failure; Ended when it is one too many."""
        arm, prompt = turn.arm.name, turn.prompt
        self.failures.append(Failure(arm=arm, prompt=prompt.id, depth=prompt.depth, round=turn.round, error=str(error)))
        self._estimate.skip(arm, prompt.depth)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MOST_FAILURES:
            raise Ended(f"{MOST_FAILURES} samples in a row failed: {error}")

    def pause(self) -> None:
        """Cool down; Ended when the run is cancelled meanwhile."""
        left = self.plan.cool_down
        self.look()
        while left > 0:
            self._sleep(min(left, _WAKE_UP))
            left -= _WAKE_UP
            self.look()

    def look(self) -> None:
        """Ended when the run is cancelled."""
        if self._cancelled():
            raise Ended("cancelled")

    def _report(self, sample: Sample | None, seconds_left: float | None = None) -> None:
        done = len(self.samples) + len(self.failures)
        self._progress(Progress(done=done, total=self.plan.total, sample=sample, seconds_left=seconds_left))
