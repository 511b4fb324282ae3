"""Run a plan: every arm on every prompt, alternated, so that a machine that warms up or slows down hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from ..errors import RequestError
from .in_flight import run_passes
from .model import Plan, Result
from .order import Orders
from .runner import Backend, Ended, Report, Runner, Turn

__all__ = ["Backend", "run", "turns"]


def run(
    plan: Plan,
    backends: Mapping[str, Backend],
    *,
    facts: Mapping[str, str] | None = None,
    progress: Report = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """All samples of a plan, or those that were there when `cancelled` said so or Ctrl-C came.

    A sample that fails is told in `Result.failures`; three in a row end the run. What fails in the warm-up, before
    anything is measured, is raised. Raises RequestError for a plan that these backends cannot run.
    """
    check_backends(plan, backends)
    runner = Runner(plan, backends, progress, cancelled, sleep, clock)
    started = time.time()
    try:
        runner.warm_up()
        if plan.concurrency > 1:
            run_passes(runner)
        else:
            for turn in turns(plan):
                runner.pause()
                runner.take(turn)
    except Ended as end:
        runner.ended = str(end)
    except KeyboardInterrupt:
        runner.ended = "interrupted"
    return Result(
        plan=plan,
        facts={**(facts or {}), **backend_facts(plan, backends)},
        samples=tuple(runner.samples),
        started=started,
        cancelled=bool(runner.ended),
        failures=tuple(runner.failures),
        passes=tuple(runner.passes),
        extra={"ended": runner.ended} if runner.ended else {},
    )


def turns(plan: Plan) -> Iterator[Turn]:
    """The order: by round and prompt, all arms one after another, balanced over kinds and depths."""
    orders = Orders(plan)
    for number in range(plan.rounds):
        for prompt in plan.prompts:
            for arm in orders.next(prompt.kind, prompt.depth):
                yield Turn(arm, prompt, number)


def check_backends(plan: Plan, backends: Mapping[str, Backend]) -> None:
    """Raises RequestError where an arm's backend is missing, or cannot have several answers in flight."""
    for arm in plan.arms:
        if arm.backend not in backends:
            raise RequestError(
                f"arm {arm.name!r} runs on {arm.backend!r}: there are {', '.join(backends)}", param="backend"
            )
        if plan.concurrency > 1 and not backends[arm.backend].concurrent:
            raise RequestError(
                f"concurrency is {plan.concurrency}, but {arm.backend!r} of arm {arm.name!r} answers one at a time: "
                "use 1, or --endpoint with a server",
                param="concurrency",
            )


def backend_facts(plan: Plan, backends: Mapping[str, Backend]) -> dict[str, str]:
    """What the backends in use tell of themselves; their names stand before it where there are several."""
    used = list(dict.fromkeys(arm.backend for arm in plan.arms))
    if len(used) == 1:
        return dict(backends[used[0]].facts)
    return {f"{name}: {key}": value for name in used for key, value in backends[name].facts.items()}
