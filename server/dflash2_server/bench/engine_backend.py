"""A loaded pair as a backend of a bench, through the engine: other requests take their turns meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dflash2_mlx.bench.local import LocalPair, parameters
from dflash2_mlx.bench.model import Arm, BenchPrompt, Sample
from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.engine.job import Job
from dflash2_mlx.engine.worker import Engine
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.text.stream import Generation, TextRun
from dflash2_server.served import ServedPair

DISTURBED = "other requests ran"

# Runs what uses a tokenizer where nobody else uses it.
WithTexts = Callable[[Callable[[], list[int]]], Future[list[int]]]


class EnginePair:
    """`bench.run.Backend` on one loaded pair: cold runs, without the prefix cache. It blocks its own thread only.

    Whoever uses it sees to it that the pair stays loaded. `stop` ends the sample under way, and all that follow.
    """

    concurrent = False

    def __init__(self, engine: Engine, served: ServedPair, with_texts: WithTexts, *, prefill_step_size: int) -> None:
        """Raises RequestError where the pair has no tokenizer."""
        self._engine, self._served, self._with_texts = engine, served, with_texts
        self._prefill_step_size = prefill_step_size
        self._local = LocalPair(served.pair)
        self._lock = threading.Lock()
        self._stopped = False
        self._job: Job | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """As of a pair that is used alone, with the names that the models have here."""
        drafter = {"drafter": self._served.drafter} if self._served.drafter else {}
        return {**self._local.facts, "target": self._served.name, **drafter, "run by": "the server's engine"}

    def check(self, arm: Arm, prompt: BenchPrompt, max_tokens: int) -> None:
        """Raises RequestError for what this pair cannot do, without running it."""
        self._local.check(arm, prompt, max_tokens)

    def stop(self) -> None:
        """From any thread. The answer under way ends with its cycle or chunk, its reason is cancelled."""
        with self._lock:
            self._stopped = True
            job = self._job
        if job is not None:
            self._engine.cancel(job)

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample:
        """One answer. Raises DFlashError: what the engine refuses, and what its run ended with."""
        ids = self._with_texts(lambda: self._local.prompt_ids(prompt)).result()
        run = TextRun(
            self._served.pair,
            ids,
            prefill_step_size=self._prefill_step_size,
            **parameters(arm, max_tokens, seed=seed),
        )
        listener = _Gathered()
        job = Job(self._served.pair, run.request, listener, use_cache=False)
        with self._lock:
            if self._stopped:
                job.cancelled.set()
            self._job = job
        try:
            others, submitted = sum(self._engine.load), self._engine.totals.requests
            self._engine.submit(job)
            answer = listener.wait()
            alone = not others and self._engine.totals.requests == submitted + 1
        finally:
            with self._lock:
                self._job = None
        sample = self._local.sample_of(arm, prompt, answer)
        return sample if alone else replace(sample, note="; ".join(filter(None, (sample.note, DISTURBED))))


class _Gathered:
    """`engine.job.Listener`: a whole answer for whoever waits in another thread."""

    def __init__(self) -> None:
        self._answer = Generation()
        self._error: BaseException | None = None
        self._ended = threading.Event()

    def step(self, step: TokenStep) -> None:
        self._answer.tokens += step.tokens
        self._answer.finish_reason, self._answer.stats = step.finish_reason, step.stats

    def end(self, error: BaseException | None) -> None:
        self._error = error
        self._ended.set()

    def wait(self) -> Generation:
        """The answer; raises what it ended with, as a DFlashError."""
        self._ended.wait()
        error: Any = self._error
        if error is None:
            return self._answer
        if isinstance(error, DFlashError):
            raise error
        raise DFlashError(f"{type(error).__name__}: {error}") from error
