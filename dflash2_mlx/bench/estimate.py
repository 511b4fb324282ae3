"""How long a run still takes, from its warm-up and then from the samples themselves."""

from __future__ import annotations

from collections import Counter, defaultdict

from .model import Plan, Sample

Key = tuple[str, int]  # arm, depth


class Estimate:
    """Seconds by arm and depth. Until an arm has a sample, it is taken to answer at full length."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        keys = [(arm.name, prompt.depth) for arm in plan.arms for prompt in plan.prompts]
        self._left = Counter(keys * plan.rounds)
        self._warm: dict[Key, float] = {}
        self._seconds: defaultdict[Key, list[float]] = defaultdict(list)

    def warm(self, arm: str, depth: int, sample: Sample) -> None:
        """Take in a warm-up."""
        speed = sample.tokens_per_second
        answer = (self._plan.max_tokens - 1) / speed if speed else sample.generation_seconds
        self._warm[arm, depth] = sample.prompt_seconds + answer

    def add(self, sample: Sample) -> None:
        """Take in a sample."""
        self._seconds[sample.arm, sample.depth].append(sample.prompt_seconds + sample.generation_seconds)
        self.skip(sample.arm, sample.depth)

    def skip(self, arm: str, depth: int) -> None:
        """One that is done without a figure."""
        self._left[arm, depth] -= 1

    @property
    def seconds_left(self) -> float:
        """For all samples that are still to come, cooling down included."""
        answers = sum(count * self._each(key) for key, count in self._left.items())
        pauses = sum(self._left.values()) / self._pause_every
        return answers / self._plan.concurrency + pauses * self._plan.cool_down

    @property
    def _pause_every(self) -> int:
        return len(self._plan.prompts) if self._plan.concurrency > 1 else 1

    def _each(self, key: Key) -> float:
        known = self._seconds.get(key)
        return sum(known) / len(known) if known else self._warm.get(key, 0.0)
