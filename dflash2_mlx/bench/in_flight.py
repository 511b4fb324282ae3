"""Several prompts in flight at once: a round of an arm is a pass over all prompts, timed as a whole."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..errors import DFlashError
from .model import Arm, Pass, Sample
from .order import Orders
from .runner import Runner, Turn

_WAKE_UP = 0.2  # seconds between looks at `cancelled` while answers are awaited


def run_passes(runner: Runner) -> None:
    """All passes of a plan, the arms in a balanced order in each round. Raises `Ended` as the runner does."""
    orders = Orders(runner.plan)
    for number in range(runner.plan.rounds):
        for arm in orders.next():
            runner.pause()
            _run_pass(runner, arm, number)


def _run_pass(runner: Runner, arm: Arm, number: int) -> None:
    pool = ThreadPoolExecutor(max_workers=runner.plan.concurrency)
    kept = len(runner.samples)
    begin = runner.clock()
    try:
        turns = {pool.submit(runner.answer, turn): turn for turn in _turns(runner, arm, number)}
        _collect(runner, turns)
    finally:
        # Whoever ends the run gets what is there at once; answers under way run out in their threads.
        pool.shutdown(wait=False, cancel_futures=True)
    seconds = runner.clock() - begin
    tokens = sum(sample.generation_tokens for sample in runner.samples[kept:])
    answers = len(runner.samples) - kept
    runner.passes.append(Pass(arm=arm.name, round=number, requests=answers, tokens=tokens, seconds=seconds))


def _turns(runner: Runner, arm: Arm, number: int) -> list[Turn]:
    return [Turn(arm, prompt, number) for prompt in runner.plan.prompts]


def _collect(runner: Runner, turns: dict[Future[Sample], Turn]) -> None:
    waiting = set(turns)
    while waiting:
        runner.look()
        done, waiting = wait(waiting, timeout=_WAKE_UP, return_when=FIRST_COMPLETED)
        for future in done:
            try:
                sample = future.result()
            except DFlashError as error:
                runner.fail(turns[future], error)
            else:
                runner.keep(turns[future], sample)
