"""Benches and quantise jobs without models and processes: `tick` takes them on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash2_mlx.bench.model import Arm, BenchPrompt, Plan, Result, Sample
from dflash2_mlx.errors import EngineBusy, RequestError
from dflash2_server.management import ModelView
from dflash2_server.work import BenchJob, QuantizeJob, sample_json

Publish = Callable[[str, Mapping[str, Any]], object]

# As a request is completed. The names of its fields are those of the real one.
DEFAULTS: dict[str, Any] = {
    "block_sizes": [None],
    "verify_modes": ["dflash"],
    "kinds": ["code", "chat", "prose"],
    "prompts_per_kind": 2,
    "max_tokens": 128,
    "rounds": 2,
    "temperatures": [0.0],
    "depths": [0],
}
FACTS = {"chip": "a chip", "mlx": "0.32.2", "pair": "Qwen3-4B-4bit and Qwen3-4B-DFlash-b16", "prompts": "0a1b2c3d4e5f"}
# How much faster speculation is, by kind of content, and tokens that a cycle commits.
_GAIN = {"code": 2.3, "mathematics": 2.1, "chat": 1.4, "prose": 0.96, "structured": 2.6, "copy-edit": 2.9}
_QUANTIZE_STAGES = ("read", "quantize", "write")


class FakeBenches:
    """`dflash2_server.work.BenchJobs`. `tick` brings a sample, `fail` ends one with a reason."""

    def __init__(self, publish: Publish, model: Callable[[str], ModelView], *, seed: int = 1) -> None:
        self._publish, self._model = publish, model
        self._random = random.Random(seed)
        self._jobs: dict[str, BenchJob] = {}
        self._plans: dict[str, Plan] = {}
        self.samples_per_tick = 1

    def start(self, model: str, request: Mapping[str, Any]) -> BenchJob:
        view = self._model(model)
        if view.kind == "drafter":
            raise RequestError(f"{view.id} is a drafter: bench a model it fits", param="model")
        unknown = next((name for name in request if name not in DEFAULTS), None)
        if unknown is not None:
            raise RequestError(f"a bench has no {unknown}: it takes {', '.join(DEFAULTS)}", param=unknown)
        if request.get("rounds", 1) not in range(1, 51):
            raise RequestError(f"rounds is {request['rounds']!r}: it is a number from 1 to 50", param="rounds")
        running = next((job for job in self._jobs.values() if not job.ended), None)
        if running is not None:
            raise EngineBusy(f"the bench {running.id} of {running.model} runs: wait for it, or cancel it")
        plan = plan_of({**DEFAULTS, **request})
        job = BenchJob(
            id=f"b{len(self._jobs) + 1}",
            model=view.id,
            state="running",
            created=time.time(),
            request=dict(request),
            total=plan.total,
            plan=plan,
        )
        self._plans[job.id] = plan
        return self._put(job)

    def get(self, id: str) -> BenchJob:
        if id not in self._jobs:
            raise RequestError(f"there is no bench {id!r}", param="bench")
        return self._jobs[id]

    def cancel(self, id: str) -> BenchJob:
        return self._end(self._running(id), "cancelled", None)

    def list(self) -> Sequence[BenchJob]:
        return [*reversed(self._jobs.values())]

    def fail(self, id: str, error: str = "the model was unloaded") -> BenchJob:
        """It ends by itself, before its end."""
        return self._end(self._running(id), "failed", error)

    def model_gone(self, model: str) -> None:
        """A model was unloaded."""
        for job in list(self._jobs.values()):
            if job.model == model and not job.ended:
                self.fail(job.id)

    def tick(self) -> None:
        """The next samples of the one that runs."""
        for _ in range(self.samples_per_tick):
            job = next((job for job in self._jobs.values() if not job.ended), None)
            if job is None:
                return
            sample = self._sample(job)
            left = 4.5 * (job.total - job.done - 1)
            job = replace(job, done=job.done + 1, samples=(*job.samples, sample), seconds_left=left)
            self._put(job, sample)
            if job.done == job.total:
                self._end(job, "completed", None)

    def _running(self, id: str) -> BenchJob:
        job = self.get(id)
        if job.ended:
            raise RequestError(f"the bench {id} is {job.state} already", param="bench")
        return job

    def _end(self, job: BenchJob, state: Any, error: str | None) -> BenchJob:
        result = Result(
            plan=self._plans[job.id],
            facts=FACTS,
            samples=job.samples,
            started=job.created,
            cancelled=state != "completed",
        )
        return self._put(replace(job, state=state, error=error, result=result, seconds_left=None))

    def _put(self, job: BenchJob, sample: Sample | None = None) -> BenchJob:
        self._jobs[job.id] = job
        self._publish("bench", job.summary() | {"sample": sample and sample_json(sample)})
        return job

    def _sample(self, job: BenchJob) -> Sample:
        """All arms take turns at a prompt."""
        plan = self._plans[job.id]
        arm = plan.arms[job.done % len(plan.arms)]
        number = job.done // len(plan.arms)
        prompt = plan.prompts[number % len(plan.prompts)]
        gain = _GAIN.get(prompt.kind, 1.5) if arm.asks_for_speculation else 1.0
        speed = 28.0 * gain * self._random.uniform(0.97, 1.03) / (1 + prompt.depth / 60_000)
        return Sample(
            arm=arm.name,
            prompt=prompt.id,
            kind=prompt.kind,
            depth=prompt.depth,
            round=number // len(plan.prompts),
            prompt_tokens=max(60, prompt.depth),
            generation_tokens=plan.max_tokens,
            prompt_seconds=max(60, prompt.depth) / 1500,
            generation_seconds=(plan.max_tokens - 1) / speed,
            tokens_per_cycle=gain * 1.45 if gain != 1.0 else 1.0,
            acceptance_by_position=(0.8, 0.61, 0.44) if gain != 1.0 else (),
            engine="dflash" if gain != 1.0 else "plain",
            block_size=arm.block_size or (16 if gain != 1.0 else 1),
            finish_reason="length",
            digest=f"digest of {prompt.id}",
            note="other requests ran" if job.done == 3 else "",
        )


def plan_of(request: Mapping[str, Any]) -> Plan:
    """Plain decoding, and beside it each block size in each mode, at every temperature."""
    arms = []
    for temperature in request["temperatures"]:
        tail = f" at {temperature:g}" if temperature else ""
        arms.append(Arm(name=f"plain{tail}", verify_mode="off", temperature=temperature))
        for mode in request["verify_modes"]:
            for size in request["block_sizes"]:
                name = f"{mode} {size or 'automatic'}{tail}"
                arms.append(Arm(name=name, verify_mode=mode, block_size=size, temperature=temperature))
    prompts = [
        BenchPrompt(id=f"{kind}-{number}", kind=kind, messages=({"role": "user", "content": kind},), depth=depth)
        for depth in request["depths"]
        for kind in request["kinds"]
        for number in range(request["prompts_per_kind"])
    ]
    return Plan(arms=tuple(arms), prompts=tuple(prompts), max_tokens=request["max_tokens"], rounds=request["rounds"])


class FakeQuantizations:
    """`dflash2_server.work.Quantizations`. `tick` is a quarter of a stage; what is complete is told to `finished`."""

    def __init__(
        self, publish: Publish, model: Callable[[str], ModelView], finished: Callable[[str, int], object]
    ) -> None:
        self._publish, self._model, self._finished = publish, model, finished
        self._jobs: dict[str, QuantizeJob] = {}

    def start(self, drafter: str, spec: str, name: str | None = None) -> QuantizeJob:
        from dflash2_mlx.drafter.quantization import parse_spec

        view = self._model(drafter)
        if view.kind != "drafter":
            raise RequestError(f"{view.id} is a chat model: only drafters are quantised here", param="model")
        parse_spec(spec)
        folder = name or f"{view.id}-{spec.replace(':', '-')}"
        if folder in self._names():
            raise RequestError(f"{folder} is there already: choose another name", param="name")
        running = next((job for job in self._jobs.values() if not job.ended), None)
        if running is not None:
            raise EngineBusy(f"{running.drafter} is being quantised: wait for it, or cancel it")
        number = f"q{len(self._jobs) + 1}"
        job = QuantizeJob(
            id=number, drafter=view.id, spec=spec, name=folder, state="running", created=time.time(),
            stage=_QUANTIZE_STAGES[0], share=0.0,
        )  # fmt: skip
        return self._put(job)

    def get(self, id: str) -> QuantizeJob:
        if id not in self._jobs:
            raise RequestError(f"there is no quantise job {id!r}", param="job")
        return self._jobs[id]

    def cancel(self, id: str) -> QuantizeJob:
        return self._put(replace(self._running(id), state="cancelled", stage=None, share=None))

    def list(self) -> Sequence[QuantizeJob]:
        return [*reversed(self._jobs.values())]

    def fail(self, id: str, error: str = "group size 128 does not divide 64 columns") -> QuantizeJob:
        """It ends without a copy."""
        return self._put(replace(self._running(id), state="failed", error=error, stage=None, share=None))

    def tick(self) -> None:
        """A quarter of a stage of the one that runs."""
        job = next((job for job in self._jobs.values() if not job.ended), None)
        if job is None:
            return
        share = (job.share or 0.0) + 0.25
        stage = _QUANTIZE_STAGES.index(job.stage or _QUANTIZE_STAGES[0])
        if share < 1:
            self._put(replace(job, share=share))
        elif stage + 1 < len(_QUANTIZE_STAGES):
            self._put(replace(job, stage=_QUANTIZE_STAGES[stage + 1], share=0.0))
        else:
            self._complete(job)

    def _complete(self, job: QuantizeJob) -> None:
        size = self._model(job.drafter).size // 4
        self._finished(job.name, size)
        summary = f"{size / 1e9:.2f} GB, a quarter; mean relative error of a module 0.09"
        self._put(
            replace(
                job, state="completed", stage=None, share=None, path=f"/models/{job.name}", bytes=size, summary=summary
            )
        )

    def _running(self, id: str) -> QuantizeJob:
        job = self.get(id)
        if job.ended:
            raise RequestError(f"the quantise job {id} is {job.state} already", param="job")
        return job

    def _names(self) -> set[str]:
        return {job.name for job in self._jobs.values() if job.state in ("running", "completed")}

    def _put(self, job: QuantizeJob) -> QuantizeJob:
        self._jobs[job.id] = job
        self._publish("quantize", job.as_dict())
        return job
