"""Plans and a backend with a speed and noise of its own: no time passes, nothing is run."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash2_mlx.bench.model import Arm, BenchPrompt, Plan, Sample
from dflash2_mlx.errors import DFlashError

PLAIN = Arm(name="plain", block_size=1, verify_mode="off")
BLOCK = Arm(name="block 5", block_size=5)


def prompts(count: int = 4, kinds: Sequence[str] = ("code", "chat"), depth: int = 0) -> list[BenchPrompt]:
    """Prompts of kinds that take turns."""
    return [
        BenchPrompt(
            id=f"p{i}",
            kind=kinds[i % len(kinds)],
            messages=({"role": "user", "content": f"question {i}"},),
            depth=depth,
        )
        for i in range(count)
    ]


def plan(*arms: Arm, **options: Any) -> Plan:
    given: dict[str, Any] = {"prompts": tuple(prompts()), "rounds": 3, "max_tokens": 32, **options}
    return Plan(arms=arms or (PLAIN, BLOCK), **given)


def sample(arm: str = "plain", **values: Any) -> Sample:
    """A sample of 10 tokens per second."""
    given: dict[str, Any] = {
        "prompt": "p0",
        "kind": "code",
        "depth": 0,
        "round": 0,
        "prompt_tokens": 8,
        "generation_tokens": 21,
        "prompt_seconds": 0.5,
        "generation_seconds": 2.0,
        **values,
    }
    return Sample(arm=arm, **given)


@dataclass
class NoisyBackend:
    """Tokens per second by arm (10 by default), times lognormal `noise`, less and less by `drift` from call to call.

    `fails` says which calls do, by their number; `at_call` is called with it.
    """

    speeds: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    drift: float = 0.0
    seed: int = 0
    concurrent: bool = False
    engines: Mapping[str, str] = field(default_factory=dict)
    fails: Callable[[int], bool] = lambda number: False
    at_call: Callable[[int], None] = lambda number: None
    facts: Mapping[str, str] = field(default_factory=lambda: {"target": "a fake"})
    calls: list[tuple[str, str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._lock = threading.Lock()

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample:
        with self._lock:
            number = len(self.calls)
            self.calls.append((arm.name, prompt.id, max_tokens, seed))
            luck = math.exp(self._chance.gauss(0, self.noise))
        self.at_call(number)
        if self.fails(number):
            raise DFlashError(f"call {number} failed")
        speed = self.speeds.get(arm.name, 10.0) * luck * math.exp(-self.drift * number)
        return sample(
            arm.name,
            generation_tokens=max_tokens,
            generation_seconds=(max_tokens - 1) / speed,
            tokens_per_cycle=2.0 if arm.asks_for_speculation else 1.0,
            acceptance_by_position=(0.6, 0.4) if arm.asks_for_speculation else (),
            engine=self.engines.get(arm.name, "dflash2" if arm.asks_for_speculation else "plain"),
            block_size=arm.block_size,
            finish_reason="length",
            digest=f"{prompt.id} {prompt.depth}",
        )
