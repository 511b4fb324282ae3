"""Benches on the real engine with tiny pairs: measured, cancelled, cut off, kept."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.bench.model import Result
from dflash2_mlx.errors import EngineBusy, ModelNotFound, RequestError
from dflash2_server.bench.engine_backend import DISTURBED
from dflash2_server.bench.jobs import STOPPED
from dflash2_server.bench.request import plan_of
from dflash2_server.bench.store import BenchStore
from dflash2_server.bench.watch import DOWNLOADED, LOADED, QUANTIZED, Watch
from dflash2_server.events import EventBus
from dflash2_server.manager import Manager
from dflash2_server.work import BenchJob, WorkRuns
from tests.manager.managing import answered, ask, managed, until, write_models

DFLASH = {"dflash_enabled": True, "dflash_draft_model": "drafter"}
SHORT: dict[str, Any] = {"kinds": ["chat"], "prompts_per_kind": 1, "rounds": 2, "max_tokens": 6, "block_sizes": [4]}
LONG = SHORT | {"rounds": 1000}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, originals: Path) -> Callable[..., None]:
    def run(test: Callable[[Manager], Awaitable[None]], **settings: Any) -> None:
        async def whole() -> None:
            async with managed(tmp_path, originals, **settings) as manager, asyncio.timeout(60):
                await manager.save_settings("one", DFLASH)
                await test(manager)

        asyncio.run(whole())

    return run


async def ended(manager: Manager, id: str) -> BenchJob:
    await until(lambda: manager.benches.get(id).ended)
    return manager.benches.get(id)


async def measuring(manager: Manager, request: dict[str, Any] = LONG) -> BenchJob:
    """A bench with its first sample."""
    job = manager.benches.start("one", request)
    await until(lambda: manager.benches.get(job.id).samples)
    return manager.benches.get(job.id)


def kept_in(folder: Path) -> list[BenchJob]:
    return BenchStore(folder / "benches").read()


def test_a_bench_loads_measures_and_is_kept(run: Callable[..., None], tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    async def test(manager: Manager) -> None:
        first = manager.events.last_id
        job = manager.benches.start("one", SHORT | {"verify_modes": ["dflash", "adaptive"]})
        assert (job.state, job.stage, job.total) == ("running", "load", 6)
        job = await ended(manager, job.id)
        assert (job.state, job.error, job.done) == ("completed", None, 6)
        assert {sample.arm for sample in job.samples[:3]} == {"plain", "block 4", "adaptive up to 4"}, "in any order"
        assert len({sample.digest for sample in job.samples}) == 1, "greedy text is the same in every arm"
        assert {sample.generation_tokens for sample in job.samples} == {6}
        assert all(sample.prompt_seconds > 0 and not sample.note for sample in job.samples)
        assert job.result is not None
        assert (job.result.facts["target"], job.result.facts["drafter"]) == ("one", "drafter")
        assert not job.result.cancelled
        figures = manager.model("one").running.figures  # type: ignore[union-attr]
        assert (figures.cache_entries, figures.cache_hits, figures.cached_tokens) == (0, 0, 0), "samples are cold runs"
        seen.extend(dict(event.data) for event in manager.events.since(first) if event.kind == "bench")

    run(test)
    assert [event["done"] for event in seen if event["sample"] is not None] == [1, 2, 3, 4, 5, 6]
    assert {event["stage"] for event in seen} == {"load", "warm-up", "sample"}
    assert seen[-1]["state"] == "completed"
    (kept,) = kept_in(tmp_path)
    assert kept.result is not None
    assert (kept.state, kept.done, len(kept.samples)) == ("completed", 6, 6)

    async def after_a_restart(manager: Manager) -> None:
        assert [job.id for job in manager.benches.list()] == [kept.id]
        assert manager.benches.get(kept.id) == kept

    run(after_a_restart)


def test_other_requests_go_on_and_are_noted(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        job = await measuring(manager)
        assert (await answered(manager, ask("one", 30))).completion_tokens == 30
        assert not manager.benches.get(job.id).ended
        manager.benches.cancel(job.id)
        notes = [sample.note for sample in (await ended(manager, job.id)).samples]
        assert DISTURBED in notes
        assert "" in notes

    run(test)


def test_one_at_a_time_and_a_cancelled_one_keeps_what_it_has(run: Callable[..., None], tmp_path: Path) -> None:
    async def test(manager: Manager) -> None:
        job = await measuring(manager)
        with pytest.raises(EngineBusy, match=f"the bench {job.id} of one runs"):
            manager.benches.start("one", SHORT)
        assert manager.benches.cancel(job.id).stage == "cancelling"
        job = await ended(manager, job.id)
        assert (job.state, job.error) == ("cancelled", None)
        assert 0 < job.done == len(job.samples) < job.total
        assert job.result is not None
        assert job.result.cancelled
        assert all(sample.finish_reason != "cancelled" for sample in job.samples)
        with pytest.raises(RequestError, match="cancelled already"):
            manager.benches.cancel(job.id)
        await ended(manager, manager.benches.start("one", SHORT).id)
        assert [one.state for one in manager.benches.list()] == ["completed", "cancelled"]

    run(test)
    assert [job.state for job in kept_in(tmp_path)] == ["cancelled", "completed"]


def test_cancelled_at_once_it_ends_without_a_result(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        job = manager.benches.start("one", LONG)
        await asyncio.sleep(0)
        manager.benches.cancel(job.id)
        manager.benches.cancel(job.id)  # impatient
        job = await ended(manager, job.id)
        assert (job.state, job.error, job.result, job.done) == ("cancelled", None, None, 0)
        await until(lambda: manager.model("one").state == "ready")  # the load went on

    run(test)


def test_unloading_ends_it_and_gives_the_memory_back(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        job = await measuring(manager)
        weights = manager.model("one").running.memory_bytes  # type: ignore[union-attr]
        assert (await manager.unload("one")).freed >= weights
        job = await ended(manager, job.id)
        assert (job.state, job.error) == ("failed", "one was unloaded")
        assert job.samples
        assert job.result is not None
        assert manager.model("one").state == "unloaded"

    run(test)


def test_a_reload_waits_for_it(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        job = await measuring(manager)
        saved = await manager.save_settings("one", {"dflash_enabled": False})
        assert saved.reload == "when idle"
        assert not manager.benches.get(job.id).ended
        manager.benches.cancel(job.id)
        assert (await ended(manager, job.id)).state == "cancelled"
        await until(lambda: not manager.model("one").requires_reload and manager.model("one").state == "ready")
        assert manager.model("one").running.engine == "plain"  # type: ignore[union-attr]

    run(test)


def test_the_end_of_the_server_ends_it(run: Callable[..., None], tmp_path: Path) -> None:
    async def test(manager: Manager) -> None:
        await measuring(manager)

    run(test)
    (job,) = kept_in(tmp_path)
    assert (job.state, job.error) == ("cancelled", STOPPED)
    assert job.samples


def test_a_load_that_fails_is_told(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        await manager.save_settings("two", {"dflash_enabled": True})
        manager._store.put("two", {"dflash_draft_model": "stranger"})
        job = await ended(manager, manager.benches.start("two", SHORT).id)
        assert job.state == "failed"
        assert job.error is not None
        assert "vocabulary" in job.error
        assert job.result is None

    run(test)


def test_what_the_pair_cannot_do_is_refused(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        for load in (False, True):  # told from the disk, then by what is loaded
            for name in ("one", "two") if load else ():
                await manager.load(name)
            with pytest.raises(RequestError, match="1 to 8") as refused:
                manager.benches.start("one", SHORT | {"block_sizes": [99]})
            assert refused.value.param == "block_sizes"
            with pytest.raises(RequestError, match=r"two runs without a drafter \(DFlash is off"):
                manager.benches.start("two", SHORT)
            assert {manager.model(name).state for name in ("one", "two")} == {"ready" if load else "unloaded"}
        with pytest.raises(ModelNotFound, match="is a drafter"):
            manager.benches.start("drafter", SHORT)
        with pytest.raises(RequestError) as unknown:
            manager.benches.get("b1")
        assert unknown.value.param == "bench"
        assert manager.benches.list() == []

    run(test)


def test_a_bench_and_a_quantise_job_refuse_each_other(run: Callable[..., None], monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("QUANTIZE_SCRIPT", "hang")

    async def test(manager: Manager) -> None:
        manager.quantizations._worker = "tests.manager.quantize_worker"
        bench = await measuring(manager)
        with pytest.raises(WorkRuns, match=f"the bench {bench.id} of one runs") as refused:
            manager.quantizations.start("drafter", "w4a16:gs64")
        assert refused.value.kind == "bench"
        manager.benches.cancel(bench.id)
        await ended(manager, bench.id)
        job = manager.quantizations.start("drafter", "w4a16:gs64")
        with pytest.raises(WorkRuns, match=f"the quantise job {job.id} of drafter runs") as refused:
            manager.benches.start("one", SHORT)
        assert refused.value.kind == "quantize"

    run(test)


def test_a_load_beside_a_sample_is_noted(run: Callable[..., None]) -> None:
    async def test(manager: Manager) -> None:
        job = await measuring(manager)
        await manager.load("three")
        after = manager.benches.get(job.id).done + 2
        await until(lambda: manager.benches.get(job.id).done > after)
        manager.benches.cancel(job.id)
        notes = [sample.note for sample in (await ended(manager, job.id)).samples]
        assert LOADED in notes
        assert notes[0] == notes[-1] == ""

    run(test)


def test_what_the_machine_does_beside_a_sample() -> None:
    events, at_work = EventBus(), [DOWNLOADED]
    watch = Watch(events, lambda: list(at_work))
    watch.begin()
    at_work.clear()
    assert watch.seen() == [DOWNLOADED]
    watch.begin()
    events.publish("figures", {})
    assert watch.seen() == []
    for kind in ("quantize", "load", "download"):
        events.publish(kind, {})
    at_work.append(LOADED)
    assert watch.seen() == [LOADED, DOWNLOADED, QUANTIZED]


def test_prompts_are_prepared_beside_the_requests(run: Callable[..., None], monkeypatch: Any) -> None:
    from dflash2_mlx.bench.local import LocalPair

    threads, tokenizers = set(), set()
    prepare = LocalPair.prompt_ids

    def noted(self: LocalPair, prompt: Any) -> list[int]:
        threads.add(threading.current_thread().name)
        tokenizers.add(self.pair.tokenizer)
        return prepare(self, prompt)

    monkeypatch.setattr(LocalPair, "prompt_ids", noted)

    async def test(manager: Manager) -> None:
        await ended(manager, manager.benches.start("one", SHORT).id)
        served = manager.catalog.pool.entry("one").served
        assert served is not None
        assert threads
        assert not any(name.startswith("text") for name in threads)
        assert len(tokenizers) == 1
        assert served.pair.tokenizer not in tokenizers, "requests use that one meanwhile"

    run(test)


def test_a_tokenizer_that_cannot_be_copied_is_shared(run: Callable[..., None], monkeypatch: Any) -> None:
    def refuse(given: Any) -> Any:
        raise TypeError("it cannot be copied")

    monkeypatch.setattr("dflash2_server.bench.engine_backend.deepcopy", refuse)

    async def test(manager: Manager) -> None:
        assert (await ended(manager, manager.benches.start("one", SHORT).id)).state == "completed"

    run(test)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"colour": 1}, "colour"),
        ({"block_sizes": 4}, "block_sizes"),
        ({"block_sizes": []}, "block_sizes"),
        ({"block_sizes": [0]}, "block_sizes"),
        ({"block_sizes": [True]}, "block_sizes"),
        ({"block_sizes": list(range(1, 40))}, "block_sizes"),
        ({"verify_modes": ["ddtree"]}, "verify_modes"),
        ({"kinds": ["poetry"]}, "kinds"),
        ({"prompts_per_kind": 0}, "prompts_per_kind"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"rounds": "3"}, "rounds"),
        ({"rounds": 1_000_000}, "rounds"),
        ({"temperatures": [-1.0]}, "temperatures"),
        ({"temperatures": [float("nan")]}, "temperatures"),
        ({"depths": [-5]}, "depths"),
        ({"depths": None}, "depths"),
    ],
)
def test_wrong_requests_are_refused_by_name(request_: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        plan_of(SHORT | request_)
    assert refused.value.param == param


def test_a_request_without_anything_is_a_plan() -> None:
    plan, prompts = plan_of({})
    assert [arm.name for arm in plan.arms] == ["plain", "automatic block"]
    assert len(prompts) == len(plan.prompts) == 14


def job_of(number: int, result: Result | None = None) -> BenchJob:
    return BenchJob(id=f"{number:012x}", model="one", state="completed", created=float(number), result=result)


def test_the_oldest_are_forgotten_and_what_is_damaged_is_left(tmp_path: Path) -> None:
    store = BenchStore(tmp_path / "benches", kept=2)
    assert store.read() == []
    for number in (1, 2):
        assert store.write(job_of(number)) == []
        os.utime(tmp_path / "benches" / f"{number:012x}.json", (-number, -number))  # as after a restore
    assert store.write(job_of(3)) == [f"{1:012x}"]
    assert [job.id for job in store.read()] == [f"{2:012x}", f"{3:012x}"]
    damaged = tmp_path / "benches" / f"{2:012x}.json"
    for text in ("{", "[]", json.dumps({"version": 9}), json.dumps({"version": 1, "result": {}}), "[" * 100_000):
        damaged.write_text(text)
        assert [job.id for job in store.read()] == [f"{3:012x}"]
    whole = json.loads((tmp_path / "benches" / f"{3:012x}.json").read_text())
    wrong: dict[str, Any] = {"model": 3, "request": [], "created": float("nan"), "total": "2", "error": 5, "state": 1}
    for name, value in wrong.items():
        damaged.write_text(json.dumps(whole | {"id": damaged.stem, name: value}))
        assert [job.id for job in BenchStore(damaged.parent).read()] == [f"{3:012x}"], name
    damaged.write_text("{")
    assert damaged.exists()
    store.write(replace(job_of(4), state="failed", error="why"))
    assert store.read()[-1].error == "why"


def test_forgotten_is_the_oldest_by_its_beginning_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "benches"
    for number in (2, 1, 3):
        BenchStore(folder).write(job_of(number))
    assert BenchStore(folder, kept=3).write(job_of(4)) == [f"{1:012x}"]
