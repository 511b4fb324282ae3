"""The benches of the model manager: one at a time, on the event loop; the measuring itself is in a thread."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dflash2_mlx.bench.facts import machine_facts, prompt_facts
from dflash2_mlx.bench.model import Plan, Progress, Result
from dflash2_mlx.bench.plan import LOCAL
from dflash2_mlx.bench.run import run
from dflash2_mlx.errors import DFlashError, EngineBusy, RequestError
from dflash2_mlx.prompts import Prompt
from dflash2_server.bench.engine_backend import EnginePair, own_tokenizer
from dflash2_server.bench.request import check_on_disk, check_pair, plan_of
from dflash2_server.bench.store import BenchStore
from dflash2_server.bench.watch import Watch
from dflash2_server.catalog import Catalog
from dflash2_server.events import EventBus
from dflash2_server.pool.entry import Entry
from dflash2_server.service import EngineService
from dflash2_server.work import BenchJob, WorkRuns, WorkState, sample_json

log = logging.getLogger(__name__)

STOPPED = "the server was stopped"


@dataclass
class _Running:
    """The bench under way: what it measures, who ends it and why."""

    id: str
    plan: Plan
    prompts: Sequence[Prompt]
    task: asyncio.Task[None] | None = None
    backend: EnginePair | None = None  # once the model is loaded
    loading: bool = True
    asked_to_end: bool = False
    reason: str | None = None  # of an end that nobody has asked for


class Benches:
    """`work.BenchJobs`. Ended ones are in `store`, those of earlier runs too. Close it on the event loop."""

    def __init__(
        self,
        catalog: Catalog,
        service: EngineService,
        store: BenchStore,
        events: EventBus,
        *,
        at_work: Callable[[], Collection[str]] = tuple,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """`at_work` tells what else takes the machine's time now; `beside` raises for what no bench may run beside."""
        self._catalog, self._service, self._store, self._events = catalog, service, store, events
        self._at_work, self._beside = at_work, beside
        self._jobs = {job.id: job for job in store.read()}
        self._running: _Running | None = None
        self._closed = False

    def start(self, model: str, request: Mapping[str, Any]) -> BenchJob:
        """See `work.BenchJobs`."""
        local = self._catalog.find(model)
        plan, prompts = plan_of(request)
        entry = self._catalog.pool.entry(local.id)
        self._refuse_another()
        if entry.served is not None:
            check_pair(plan, entry.served.pair, local.id)
        else:
            check_on_disk(plan, self._catalog.job(local).plan, self._catalog.library, local.id)
        now = time.time()
        job = BenchJob(
            id=uuid.uuid4().hex[:12],
            model=local.id,
            state="running",
            created=now,
            request=dict(request),
            stage="load",
            total=plan.total,
            plan=plan,
        )
        running = self._running = _Running(job.id, plan, prompts)
        running.task = asyncio.create_task(self._run(running, entry))
        return self._put(job)

    def get(self, id: str) -> BenchJob:
        """See `work.BenchJobs`."""
        if id not in self._jobs:
            raise RequestError(f"there is no bench {id!r:.100}: it may have been forgotten", param="bench")
        return self._jobs[id]

    def cancel(self, id: str) -> BenchJob:
        """See `work.BenchJobs`."""
        job, running = self.get(id), self._running
        if running is None or running.id != id:
            raise RequestError(f"the bench {id} is {job.state} already", param="bench")
        self._end(running)
        return self._put(replace(job, stage="cancelling"))

    def list(self) -> Sequence[BenchJob]:
        """See `work.BenchJobs`."""
        return sorted(self._jobs.values(), key=lambda job: -job.created)

    async def close(self) -> None:
        """End the one that runs, and wait until what it has is kept."""
        self._closed = True
        running = self._running
        if running is not None and running.task is not None:
            running.reason = STOPPED
            self._end(running)
            await asyncio.wait([running.task])

    def _refuse_another(self) -> None:
        if self._closed:
            raise EngineBusy(STOPPED)
        self.refuse_beside()
        self._beside()

    def refuse_beside(self) -> None:
        """Raises WorkRuns while a bench runs, which what takes the machine's time would spoil."""
        if self._running is not None:
            job = self._jobs[self._running.id]
            raise WorkRuns(f"the bench {job.id} of {job.model} runs: wait for it, or cancel it", kind="bench")

    def _end(self, running: _Running) -> None:
        """Soon; what it has is kept."""
        if running.asked_to_end:
            return
        running.asked_to_end = True
        if running.backend is not None:
            running.backend.stop()
        elif running.loading and running.task is not None:  # the load goes on without it
            running.task.cancel()

    async def _run(self, running: _Running, entry: Entry) -> None:
        """From the load to the end, whatever comes."""
        state: WorkState = "failed"
        error: str | None = None
        result: Result | None = None
        try:
            result = await self._measured(running, entry)
            cut_off = result.cancelled and not running.asked_to_end
            error = running.reason or (str(result.extra.get("ended", "it was ended")) if cut_off else None)
            state = "failed" if cut_off else "cancelled" if result.cancelled else "completed"
        except asyncio.CancelledError:  # by `_end`, or with the loop
            state, error = "cancelled", running.reason
        except DFlashError as refused:
            error = running.reason or " ".join(str(refused).split())
            state = "cancelled" if running.asked_to_end else "failed"
        except Exception as unexpected:
            log.exception("a bench has failed")
            error = f"{type(unexpected).__name__}: {unexpected}"
        await self._ended(running, state, error, result)

    async def _measured(self, running: _Running, entry: Entry) -> Result:
        """What a bench is: load, check, run. Raises DFlashError."""
        catalog = self._catalog
        local = catalog.find(entry.id)
        with entry.waited_for():
            while entry.state != "ready":
                await catalog.pool.load(local.id, catalog.job(local))
            running.loading = False
            with entry.held_loaded() as served:
                check_pair(running.plan, served.pair, served.name)
                copying = self._service.with_texts(lambda: own_tokenizer(served))
                tokenizer = await asyncio.wrap_future(copying)
                backend = running.backend = EnginePair(
                    catalog.pool.engine,
                    served,
                    self._service.with_texts,
                    tokenizer=tokenizer,
                    watch=Watch(self._events, self._at_work),
                    prefill_step_size=catalog.server.prefill_step_size,
                )
                for arm in running.plan.arms:
                    for prompt in running.plan.prompts:
                        backend.check(arm, prompt, running.plan.max_tokens)
                loop = asyncio.get_running_loop()
                try:
                    return await asyncio.to_thread(self._blocking, running, backend, entry, loop)
                finally:
                    running.backend = None  # it holds the pair, which may be about to be unloaded

    def _blocking(
        self, running: _Running, backend: EnginePair, entry: Entry, loop: asyncio.AbstractEventLoop
    ) -> Result:
        """The measuring, in a thread."""

        def cancelled() -> bool:
            if entry.state != "ready" and not running.asked_to_end:
                running.reason = f"{entry.id} was unloaded"
                return True
            return running.asked_to_end

        def progress(told: Progress) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._hear, running.id, told)

        facts = {**machine_facts(), **prompt_facts(running.prompts)}
        return run(running.plan, {LOCAL: backend}, facts=facts, progress=progress, cancelled=cancelled)

    def _hear(self, id: str, told: Progress) -> None:
        """A sample, or a warm-up."""
        job = self._jobs[id]
        if job.ended:
            return
        sample = told.sample
        samples = (*job.samples, sample) if sample is not None else job.samples
        stage = job.stage if job.stage == "cancelling" else "sample" if told.seconds_left is not None else "warm-up"
        job = replace(job, done=told.done, samples=samples, stage=stage, seconds_left=told.seconds_left)
        self._put(job, sample_json(sample) if sample is not None else None)

    async def _ended(self, running: _Running, state: WorkState, error: str | None, result: Result | None) -> None:
        running.loading = False
        job = self._jobs[running.id]
        kept = result if result is not None and result.samples else None
        samples = tuple(kept.samples) if kept is not None else job.samples
        job = replace(job, state=state, error=error, result=kept, samples=samples, stage="sample", seconds_left=None)
        if error is not None:
            log.warning("the bench of %s is %s: %s", job.model, state, error)
        try:
            forgotten = await asyncio.to_thread(self._store.write, job)
        except DFlashError as unwritten:
            log.error("the bench is not kept: %s", unwritten)
            forgotten = []
        for id in forgotten:
            self._jobs.pop(id, None)
        self._running = None
        self._put(job)

    def _put(self, job: BenchJob, sample: Mapping[str, Any] | None = None) -> BenchJob:
        self._jobs[job.id] = job
        self._events.publish("bench", job.summary() | {"sample": sample})
        return job
