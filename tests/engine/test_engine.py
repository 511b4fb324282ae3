"""The engine's thread: turns, the queue, cancelling at every stage, the watchdog, and leaving nobody without an end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.engine.job import Job
from dflash2_mlx.engine.worker import Engine, EngineOptions
from dflash2_mlx.errors import DecodeError, EngineBusy, QueueFull
from dflash2_mlx.pairs import Pair
from tests import tiny
from tests.running import Subject, decode, real_drafter

WAIT = 60.0


class Heard:
    """A listener that keeps what it hears; `gate` is called at every step, on the engine's thread."""

    def __init__(self, gate: Callable[[], None] = lambda: None) -> None:
        self.tokens: list[int] = []
        self.reasons: list[str] = []
        self.error: BaseException | None = None
        self.ends = 0
        self.times: list[float] = []
        self.finished = threading.Event()
        self.first = threading.Event()
        self._gate = gate

    def step(self, step: TokenStep) -> None:
        assert not self.ends
        self.times.append(time.monotonic())
        self.tokens += step.tokens
        if step.finish_reason:
            self.reasons.append(step.finish_reason)
        self.first.set()
        self._gate()

    def end(self, error: BaseException | None) -> None:
        self.ends += 1
        self.error = error
        self.finished.set()

    def wait(self) -> Heard:
        assert self.finished.wait(WAIT), "the job has not ended"
        return self


class Bench:
    """An engine with a tiny pair that was made on its thread."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.engine = Engine(EngineOptions(**options))
        self.engine.start()
        self.pair = self.engine.call(lambda: self._load(folder)).result(WAIT)

    def _load(self, folder: Path) -> Pair:
        self.of = Subject(tiny.build("llama"), tiny.build("llama"))
        return Pair(self.of.target, real_drafter(folder, self.of, block_size=4))

    def job(self, prompt: Sequence[int], heard: Heard, **parameters: Any) -> Job:
        request = make_request(
            prompt,
            vocab_size=self.pair.target.vocab_size,
            checkpoint_block_size=self.pair.block_size,
            **{"max_tokens": 10, "prefill_step_size": 16, **parameters},
        )
        return Job(self.pair, request, heard)

    def ask(self, prompt: Sequence[int], heard: Heard | None = None, **parameters: Any) -> tuple[Job, Heard]:
        heard = heard or Heard()
        job = self.job(prompt, heard, **parameters)
        self.engine.submit(job)
        return job, heard

    def cold(self, prompts: Sequence[Sequence[int]], count: int = 10) -> list[list[int]]:
        """The plain answers, by the same target."""
        return self.engine.call(
            lambda: [decode(self.of.target, None, prompt, max_tokens=count).tokens for prompt in prompts]
        ).result(WAIT)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), **options))
        return made[-1]

    yield bench
    for each in made:
        each.engine.close()


def test_many_requests_from_many_threads_are_neither_lost_nor_mixed(make: Callable[..., Bench]) -> None:
    bench = make(max_queue=200, cache_bytes=2_000_000)
    prompts = [tiny.random_prompt(20 + i % 7, seed=i % 11) for i in range(200)]
    expected = dict(zip(map(tuple, prompts), bench.cold(prompts[:77]) * 3, strict=False))

    def client(mine: list[list[int]]) -> list[Heard]:
        return [bench.ask(prompt)[1].wait() for prompt in mine]

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(client, [prompts[i::16] for i in range(16)]))
    for i, heard_of_client in enumerate(answers):
        for prompt, heard in zip(prompts[i::16], heard_of_client, strict=True):
            assert heard.tokens == expected[tuple(prompt)]
            assert (heard.reasons, heard.ends, heard.error) == (["length"], 1, None)
    assert bench.engine.cache.figures.nbytes <= 2_000_000
    assert bench.engine.totals.by_reason == {"length": 200}
    assert bench.engine.load == (0, 0)


def test_memory_stays_bounded_over_many_requests(make: Callable[..., Bench]) -> None:
    bench = make(cache_bytes=1_000_000)
    seen = []
    for i in range(60):
        bench.ask(tiny.random_prompt(64, seed=i))[1].wait()
        if i % 20 == 19:
            seen.append(bench.engine.call(mx.get_active_memory).result(WAIT))
    assert seen[2] <= seen[0] * 1.05


def test_a_short_request_is_not_held_up_by_a_long_prompt(make: Callable[..., Bench]) -> None:
    bench = make()
    _, long = bench.ask(tiny.random_prompt(3000), max_tokens=2)
    _, short = bench.ask(tiny.random_prompt(8), max_tokens=3)
    short.wait()
    assert not long.finished.is_set()
    assert len(long.wait().tokens) == 2


def test_requests_that_wait_come_in_order_of_arrival(make: Callable[..., Bench]) -> None:
    bench = make(max_active=1)
    heard = [bench.ask(tiny.random_prompt(10, seed=i))[1] for i in range(5)]
    for each in heard:
        each.wait()
    firsts = [each.times[0] for each in heard]
    assert firsts == sorted(firsts)
    assert all(a.times[-1] <= b.times[0] for a, b in pairwise(heard))
    bench.engine.call(lambda: None).result(WAIT)
    assert bench.engine.totals.queue_seconds > heard[3].times[-1] - heard[0].times[-1]


def test_active_requests_take_turns(make: Callable[..., Bench]) -> None:
    bench = make()
    held = threading.Event()
    a = Heard(lambda: held.wait(WAIT) and None)
    bench.ask(tiny.random_prompt(10, seed=1), a, max_tokens=60, verify_mode="off")
    b = bench.ask(tiny.random_prompt(10, seed=2), max_tokens=60, verify_mode="off")[1]
    held.set()
    a.wait()
    b.wait()
    assert a.times[0] < b.times[-1]
    assert b.times[0] < a.times[-1]


def test_a_full_queue_refuses_and_tells_when_to_come_again(make: Callable[..., Bench]) -> None:
    bench = make(max_active=1, max_queue=2)
    held = threading.Event()
    first = Heard(lambda: held.wait(WAIT) and None)
    bench.ask(tiny.random_prompt(5), first)
    assert first.first.wait(WAIT)
    waiting = [bench.ask(tiny.random_prompt(5, seed=i))[1] for i in range(2)]
    with pytest.raises(QueueFull, match=r"2 requests wait already.*--max-queue") as refused:
        bench.ask(tiny.random_prompt(5))
    assert 1 <= refused.value.retry_after <= 60
    held.set()
    for each in (first, *waiting):
        assert each.wait().reasons == ["length"]
    assert bench.engine.totals.refused == 1


def test_cancelling_a_waiting_request_ends_it_at_once(make: Callable[..., Bench]) -> None:
    bench = make(max_active=1)
    held = threading.Event()
    first = Heard(lambda: held.wait(WAIT) and None)
    bench.ask(tiny.random_prompt(5), first)
    assert first.first.wait(WAIT)
    job, heard = bench.ask(tiny.random_prompt(5, seed=1))
    bench.engine.cancel(job)
    assert heard.finished.is_set()
    assert (heard.reasons, heard.tokens, heard.error) == (["cancelled"], [], None)
    held.set()
    assert first.wait().reasons == ["length"]
    bench.engine.cancel(job)  # once more does nothing
    assert heard.ends == 1


def test_cancelling_a_prefill_keeps_its_chunks(make: Callable[..., Bench]) -> None:
    bench = make(snapshot_every=1 << 30)
    prompt = tiny.random_prompt(4000)
    job, heard = bench.ask(prompt)
    while job.state is None or len(job.state.tokens) < 64:
        time.sleep(0.001)
    bench.engine.cancel(job)
    assert heard.wait().reasons == ["cancelled"]
    again, heard = bench.ask(prompt, max_tokens=2)
    heard.wait()
    assert 64 <= again.stats.cached_tokens < 3999
    assert heard.tokens == bench.cold([prompt], 2)[0]


def test_cancelling_an_answer_ends_it_within_a_cycle(make: Callable[..., Bench]) -> None:
    bench = make()
    prompt = tiny.random_prompt(12)
    held, job = threading.Event(), None
    heard = Heard(lambda: held.wait(WAIT) and None)
    job, _ = bench.ask(prompt, heard, max_tokens=500)
    assert heard.first.wait(WAIT)
    bench.engine.cancel(job)
    before = len(heard.tokens)
    held.set()
    assert heard.wait().reasons == ["cancelled"]
    assert len(heard.tokens) - before <= bench.pair.block_size
    assert bench.ask(prompt)[1].wait().tokens == bench.cold([prompt])[0]


def test_an_error_ends_its_own_request_only(make: Callable[..., Bench]) -> None:
    bench = make()

    def breaks() -> None:
        raise DecodeError("the target is at fault")

    broken = bench.ask(tiny.random_prompt(9), Heard(breaks))[1]
    prompt = tiny.random_prompt(9, seed=1)
    sound = bench.ask(prompt)[1]
    assert isinstance(broken.wait().error, DecodeError)
    assert broken.ends == 1
    assert sound.wait().tokens == bench.cold([prompt])[0]
    assert bench.engine.totals.by_reason["error"] == 1


def test_closing_gives_everybody_an_end(make: Callable[..., Bench]) -> None:
    bench = make(max_active=1)
    heard = [bench.ask(tiny.random_prompt(2000, seed=i), max_tokens=500)[1] for i in range(3)]
    bench.engine.close()
    for each in heard:
        assert each.finished.is_set()
        assert isinstance(each.error, EngineBusy)
        assert each.ends == 1
    with pytest.raises(EngineBusy, match="shutting down"):
        bench.ask(tiny.random_prompt(3))
    assert bench.engine.readiness() == (False, "the server is shutting down")
    totals = bench.engine.totals
    assert sum(totals.by_reason.values()) == totals.requests == 3
    assert totals.by_reason == {"error": 3}


def test_the_watchdog_ends_what_stands_still_and_the_engine_recovers(make: Callable[..., Bench]) -> None:
    bench = make(max_active=1, watchdog_seconds=0.4)
    bench.ask(tiny.random_prompt(4))[1].wait()  # warm: nothing of it takes that long again
    held = threading.Event()
    stuck = Heard(lambda: held.wait(WAIT) and None)
    bench.ask(tiny.random_prompt(5), stuck)
    waits = bench.ask(tiny.random_prompt(5, seed=1))[1]
    for each in (stuck, waits):
        assert isinstance(each.wait().error, EngineBusy)
    ready, reason = bench.engine.readiness()
    assert not ready
    assert "0.4 s" in reason
    with pytest.raises(EngineBusy, match="stands still"):
        bench.ask(tiny.random_prompt(3))
    held.set()
    deadline = time.monotonic() + WAIT
    while not bench.engine.readiness()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert bench.ask(tiny.random_prompt(5))[1].wait().reasons == ["length"]


def test_a_listener_that_fails_at_its_end_harms_nobody(make: Callable[..., Bench]) -> None:
    bench = make()

    class Fails(Heard):
        def end(self, error: BaseException | None) -> None:
            super().end(error)
            raise ZeroDivisionError

    bench.ask(tiny.random_prompt(5), Fails())[1].wait()
    assert bench.ask(tiny.random_prompt(5))[1].wait().reasons == ["length"]
    assert bench.engine.readiness() == (True, "ready")


def test_a_failure_of_the_engine_itself_is_survived(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    fails = iter([True])
    count = bench.engine.totals.count

    def once(job: Job) -> None:
        if next(fails, False):
            raise ZeroDivisionError
        count(job)

    monkeypatch.setattr(bench.engine.totals, "count", once)
    bench.ask(tiny.random_prompt(5))
    assert bench.ask(tiny.random_prompt(5, seed=1))[1].wait().reasons == ["length"]


def test_an_engine_that_does_not_run_takes_nothing(make: Callable[..., Bench]) -> None:
    with pytest.raises(EngineBusy, match="does not run"):
        Engine().call(lambda: None)
    with pytest.raises(EngineBusy, match="does not run"):
        Engine().check_room(0)


def test_calls_that_wait_when_the_engine_closes_fail(make: Callable[..., Bench]) -> None:
    bench = make()
    held = threading.Event()
    bench.engine.call(lambda: held.wait(WAIT))
    waits = bench.engine.call(lambda: None)
    closing = threading.Thread(target=bench.engine.close)
    closing.start()
    while bench.engine.readiness()[0]:
        time.sleep(0.001)
    held.set()
    closing.join(WAIT)
    with pytest.raises(EngineBusy):
        waits.result(WAIT)


def test_nothing_of_a_request_stays_behind(make: Callable[..., Bench]) -> None:
    bench = make(cache_bytes=0)
    gc.disable()
    try:
        for error in (None, DecodeError("at fault")):
            held = threading.Event()
            job, heard = bench.ask(tiny.random_prompt(9), Heard(partial(_wait_then, held, error)))
            assert heard.first.wait(WAIT)
            assert job.state is not None
            state = weakref.ref(job.state)
            held.set()
            heard.wait()
            assert (heard.error is None) == (error is None)
            bench.engine.call(lambda: None).result(WAIT)
            assert state() is None
    finally:
        gc.enable()


def _wait_then(held: threading.Event, error: Exception | None) -> None:
    held.wait(WAIT)
    if error is not None:
        raise error


def test_what_a_request_costs_is_its_own_time(make: Callable[..., Bench]) -> None:
    bench = make()
    for _ in range(2):
        asked = [bench.ask(tiny.random_prompt(20, seed=i)) for i in range(8)]
        for _, heard in asked:
            heard.wait()
    bench.engine.call(lambda: None).result(WAIT)
    costs = [job.cost for job, _ in asked]
    assert bench.engine.totals.service_seconds < 2 * max(costs)


def test_a_prompt_that_does_not_fit_is_refused_and_prefixes_make_room(make: Callable[..., Bench]) -> None:
    bench = make()
    memory, cache = bench.engine.memory, bench.engine.cache
    each = bench.engine.call(lambda: memory.row_bytes(bench.pair)).result(WAIT)
    assert each == 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, their size, float32
    bench.ask(tiny.random_prompt(600))[1].wait()
    held = cache.figures.nbytes
    assert held > 600 * each
    active = bench.engine.call(mx.get_active_memory).result(WAIT)
    memory.limit = active + 100 * each
    assert bench.ask(tiny.random_prompt(200, seed=1))[1].wait().reasons == ["length"]
    assert cache.figures.evictions > 0
    refused = bench.ask(tiny.random_prompt(200_000 // 64, seed=2) * 64)[1].wait()
    assert isinstance(refused.error, EngineBusy)
    assert "shorten it" in str(refused.error)
    assert not refused.tokens
    assert bench.ask(tiny.random_prompt(5))[1].wait().reasons == ["length"]


def test_calls_run_on_the_engines_thread_and_hand_errors_back(make: Callable[..., Bench]) -> None:
    bench = make()
    assert bench.engine.call(threading.current_thread).result(WAIT).name == "mlx"
    with pytest.raises(ZeroDivisionError):
        bench.engine.call(lambda: 1 // 0).result(WAIT)
    assert bench.engine.readiness() == (True, "ready")


def test_unloading_forgets_the_prefixes(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.ask(tiny.random_prompt(30))[1].wait()
    assert bench.engine.cache.figures.nbytes > 0
    bench.engine.unload(bench.pair).result(WAIT)
    assert bench.engine.cache.figures.nbytes == 0
