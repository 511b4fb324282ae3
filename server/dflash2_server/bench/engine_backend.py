"""A loaded pair as a backend of a bench, through the engine: other requests take their turns meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from typing import Any

from dflash2_mlx.bench.local import LocalPair, parameters
from dflash2_mlx.bench.model import Arm, BenchPrompt, Sample
from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.engine.job import Job
from dflash2_mlx.engine.worker import Engine
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.text.stream import Generation, TextRun
from dflash2_server.bench.watch import Watch
from dflash2_server.served import ServedPair

DISTURBED = "other requests ran"

# Runs what uses a tokenizer where nobody else uses it.
WithTexts = Callable[[Callable[[], Any]], Future[Any]]

log = logging.getLogger(__name__)


def own_tokenizer(served: ServedPair) -> Any:
    """A copy, since one tokenizer serves one thread at a time: None where it cannot be copied, or there is none."""
    try:
        return deepcopy(served.pair.tokenizer)
    except Exception:  # of a kind that keeps something that cannot be copied
        log.warning("a bench shares the tokenizer of %s with requests", served.name, exc_info=True)
        return None


class EnginePair:
    """`bench.run.Backend` on one loaded pair: cold runs, without the prefix cache. It blocks its own thread only.

    Whoever uses it sees to it that the pair stays loaded. `stop` ends the sample under way, and all that follow.
    `tokenizer` is one that nobody else uses: prompts are prepared with it where `sample` is called, so that requests
    do not wait for long ones. None: they are prepared with the pair's, among the requests.
    """

    concurrent = False

    def __init__(
        self,
        engine: Engine,
        served: ServedPair,
        with_texts: WithTexts,
        *,
        tokenizer: Any,
        watch: Watch,
        prefill_step_size: int,
    ) -> None:
        """Raises RequestError where the pair has no tokenizer."""
        self._engine, self._served, self._with_texts, self._watch = engine, served, with_texts, watch
        self._prefill_step_size = prefill_step_size
        self._shares = tokenizer is None
        self._local = LocalPair(served.pair if self._shares else replace(served.pair, tokenizer=tokenizer))
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
        ids = self._prompt_ids(prompt)
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
        self._watch.begin()
        try:
            others, submitted = sum(self._engine.load), self._engine.totals.requests
            self._engine.submit(job)
            answer = listener.wait()
            alone = not others and self._engine.totals.requests == submitted + 1
        finally:
            with self._lock:
                self._job = None
        sample = self._local.sample_of(arm, prompt, answer)
        notes = [sample.note, *([] if alone else [DISTURBED]), *self._watch.seen()]
        return replace(sample, note="; ".join(filter(None, notes)))

    def _prompt_ids(self, prompt: BenchPrompt) -> list[int]:
        if not self._shares:
            return self._local.prompt_ids(prompt)
        waiting = self._with_texts(lambda: self._local.prompt_ids(prompt))
        ids: list[int] = waiting.result()
        return ids


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
