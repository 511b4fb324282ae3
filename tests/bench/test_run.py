"""A run: its order, what it keeps, how it ends."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from dflash2_mlx.bench.model import Arm, Plan, Progress, Result
from dflash2_mlx.bench.run import run, turns
from dflash2_mlx.bench.runner import MOST_FAILURES, WARM_UP_TOKENS
from dflash2_mlx.errors import DFlashError, RequestError
from tests.bench.benching import BLOCK, PLAIN, NoisyBackend, plan, prompts

THIRD = Arm(name="third", block_size=3)


def ran(of: Plan, backend: NoisyBackend, **options: object) -> Result:
    return run(of, {"pair": backend}, **options)  # type: ignore[arg-type]


def test_every_arm_answers_every_prompt_in_every_round_after_one_short_warm_up() -> None:
    backend = NoisyBackend()
    result = ran(plan(rounds=2), backend)
    assert backend.calls[:2] == [("plain", "warm-up", WARM_UP_TOKENS, 0), ("block 5", "warm-up", WARM_UP_TOKENS, 0)]
    counted = Counter((sample.arm, sample.prompt, sample.round) for sample in result.samples)
    assert counted == {(arm, f"p{i}", r): 1 for arm in ("plain", "block 5") for i in range(4) for r in range(2)}
    assert not result.cancelled
    assert {call[2] for call in backend.calls[2:]} == {32}


def test_the_warm_up_is_at_every_depth() -> None:
    backend = NoisyBackend()
    ran(plan(prompts=(*prompts(2), *prompts(2, depth=512))), backend)
    assert len([call for call in backend.calls if call[2] == WARM_UP_TOKENS]) == 4


def test_each_arm_comes_first_as_often_as_the_others() -> None:
    of = plan(PLAIN, BLOCK, THIRD, prompts=tuple(prompts(3)), rounds=3)
    order = [turn.arm.name for turn in turns(of)]
    places = Counter((order[i], i % 3) for i in range(len(order)))
    assert set(places.values()) == {3}
    assert [turn.prompt.id for turn in turns(of)][:6] == ["p0"] * 3 + ["p1"] * 3


def test_arms_share_the_seed_of_a_prompt_and_round() -> None:
    backend = NoisyBackend()
    ran(plan(rounds=2), backend)
    seeds: dict[tuple[str, str], list[int]] = {}
    for arm, prompt, _, seed in backend.calls[2:]:
        seeds.setdefault((arm, prompt), []).append(seed)
    assert all(seeds["plain", f"p{i}"] == seeds["block 5", f"p{i}"] for i in range(4))
    assert len({seed for (arm, _), found in seeds.items() if arm == "plain" for seed in found}) == 8
    assert all(seed < 1 << 31 for found in seeds.values() for seed in found)
    other = NoisyBackend()
    ran(plan(rounds=2, seed=1), other)
    assert other.calls[5][3] != backend.calls[5][3]


def test_facts_are_the_callers_and_the_backends() -> None:
    one = ran(plan(), NoisyBackend())
    assert run(plan(), {"pair": NoisyBackend()}, facts={"machine": "m"}).facts == {"machine": "m", "target": "a fake"}
    assert one.facts == {"target": "a fake"}
    arms = (PLAIN, Arm(name="there", backend="server", verify_mode="server"))
    two = run(
        plan(*arms), {"pair": NoisyBackend(), "server": NoisyBackend(facts={"url": "u"}), "unused": NoisyBackend()}
    )
    assert two.facts == {"pair: target": "a fake", "server: url": "u"}


def test_progress_tells_each_sample_and_how_long_it_takes_from_the_warm_up_on() -> None:
    seen: list[Progress] = []
    backend = NoisyBackend(speeds={"plain": 10.0, "block 5": 20.0})
    ran(plan(rounds=1, cool_down=2.0), backend, progress=seen.append, sleep=lambda seconds: None)
    assert [progress.seconds_left is None for progress in seen[:3]] == [True, True, False]
    # 4 prompts: half a second to the first token, 31 tokens at 10 and at 20 a second, 2 seconds of rest each.
    assert seen[2].seconds_left == pytest.approx(4 * (3.6 + 2.05) + 8 * 2.0)
    assert [progress.done for progress in seen[2:]] == list(range(9))
    assert seen[-1].seconds_left == pytest.approx(0.0)
    assert seen[-1].sample is not None
    assert all(progress.total == 8 for progress in seen)


def test_it_cools_down_before_each_sample_and_not_in_the_warm_up() -> None:
    slept: list[float] = []
    ran(plan(rounds=1, cool_down=0.5), NoisyBackend(), sleep=slept.append)
    assert sum(slept) == pytest.approx(8 * 0.5)


def test_ctrl_c_keeps_what_is_there() -> None:
    def interrupt(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    result = ran(plan(), NoisyBackend(at_call=interrupt))
    assert len(result.samples) == 3
    assert result.cancelled
    assert result.extra == {"ended": "interrupted"}


def test_it_is_cancelled_between_samples_and_while_it_cools_down() -> None:
    backend = NoisyBackend()
    result = ran(plan(), backend, cancelled=lambda: len(backend.calls) >= 6)
    assert (len(result.samples), result.cancelled) == (4, True)
    slept: list[float] = []
    result = ran(plan(cool_down=60.0), NoisyBackend(), sleep=slept.append, cancelled=lambda: len(slept) == 3)
    assert (len(slept), len(result.samples), result.cancelled) == (3, 0, True)


def test_a_sample_that_was_broken_off_does_not_count() -> None:
    class Broken(NoisyBackend):
        def sample(self, *args, **options):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            given = super().sample(*args, **options)
            return replace(given, finish_reason="cancelled") if len(self.calls) == 6 else given

    result = ran(plan(), Broken())
    assert (len(result.samples), result.cancelled, result.failures) == (3, True, ())


def test_a_failed_sample_is_told_and_the_run_goes_on() -> None:
    result = ran(plan(), NoisyBackend(fails=lambda number: number == 4))
    assert len(result.samples) == 23
    (failure,) = result.failures
    assert (failure.arm, failure.prompt, failure.round) == (list(turns(plan()))[2].arm.name, "p1", 0)
    assert failure.error == "call 4 failed"
    assert not result.cancelled


def test_a_run_ends_when_sample_after_sample_fails() -> None:
    result = ran(plan(), NoisyBackend(fails=lambda number: number >= 4))
    assert (len(result.samples), len(result.failures)) == (2, MOST_FAILURES)
    assert result.cancelled
    assert "in a row failed: call 6 failed" in result.extra["ended"]


def test_what_fails_in_the_warm_up_is_raised() -> None:
    with pytest.raises(DFlashError, match="call 1 failed"):
        ran(plan(), NoisyBackend(fails=lambda number: number == 1))


def test_an_arm_on_a_backend_that_is_not_there_is_refused() -> None:
    backend = NoisyBackend()
    with pytest.raises(RequestError, match="'lost' runs on 'nowhere': there are pair"):
        ran(plan(PLAIN, Arm(name="lost", backend="nowhere")), backend)
    assert not backend.calls


def test_several_in_flight_are_refused_where_one_is_answered_at_a_time() -> None:
    backend = NoisyBackend()
    with pytest.raises(RequestError, match="concurrency is 3, but 'pair'"):
        ran(plan(concurrency=3), backend)
    assert not backend.calls


def test_so_many_prompts_are_in_flight_at_once() -> None:
    together = threading.Barrier(4, timeout=20)

    def meet(number: int) -> None:
        if number >= 2:  # past the warm-up
            together.wait()

    ticks = iter(range(100))
    backend = NoisyBackend(concurrent=True, at_call=meet)
    result = ran(plan(concurrency=4, rounds=2), backend, clock=lambda: float(next(ticks)))
    assert len(result.samples) == 16
    first, second, third, fourth = [(one.arm, one.round) for one in result.passes]
    assert (first[1], second[1], third[1], fourth[1]) == (0, 0, 1, 1)
    assert first[0] == fourth[0] != second[0] == third[0], "each begins a round, and follows itself once"
    assert {(one.requests, one.tokens, one.seconds) for one in result.passes} == {(4, 4 * 32, 1.0)}
    assert {call[0] for call in backend.calls[2:6]} == {first[0]}


def test_a_pass_that_is_cancelled_gives_what_is_there_at_once() -> None:
    go_on = threading.Event()

    def hang(number: int) -> None:
        if number >= 4:
            go_on.wait(20)

    backend = NoisyBackend(concurrent=True, at_call=hang)
    try:
        seen: list[Progress] = []
        cancelled = lambda: len(seen) > 0 and seen[-1].done == 2  # noqa: E731
        result = ran(plan(concurrency=2), backend, progress=seen.append, cancelled=cancelled)
    finally:
        go_on.set()
    assert (len(result.samples), result.passes, result.cancelled) == (2, (), True)


def test_failures_in_flight_are_told() -> None:
    result = ran(plan(concurrency=2), NoisyBackend(concurrent=True, fails=lambda number: number == 3))
    assert (len(result.samples), len(result.failures), result.passes[0].requests) == (23, 1, 3)
