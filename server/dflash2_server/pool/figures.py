"""Figures of loaded pairs and of the whole process: what has ended and what runs, counted together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import mlx.core as mx

from dflash2_mlx.engine.job import Job
from dflash2_mlx.engine.totals import Totals
from dflash2_mlx.engine.worker import Engine
from dflash2_mlx.pairs import Pair
from dflash2_server.management import ActiveRequest, LiveFigures, PairFigures
from dflash2_server.pool.entry import Entry

HISTORY_SECONDS = 300


def pair_figures(engine: Engine, pair: Pair) -> PairFigures:
    """What a pair has done since it was loaded."""
    total = engine.sums(pair)
    cache = engine.cache.figures_of(pair)
    draft, verify, commit = _parts(total)
    # Of a running request one list may just be longer than the other.
    by_position = zip(total.accepted_by_position, total.proposed_by_position, strict=False)
    return PairFigures(
        requests=total.requests,
        prompt_tokens=total.prompt_tokens,
        cached_tokens=total.cached_tokens,
        generation_tokens=total.generation_tokens,
        cycles=total.cycles,
        tokens_per_cycle=total.cycle_tokens / total.cycles if total.cycles else 1.0,
        draft_share=total.accepted_tokens / total.generation_tokens if total.generation_tokens else 0.0,
        acceptance_by_position=tuple(accepted / proposed for accepted, proposed in by_position if proposed),
        prompt_seconds=total.prompt_seconds,
        generation_seconds=total.generation_seconds,
        draft_seconds=draft,
        verify_seconds=verify,
        commit_seconds=commit,
        cache_hits=cache.hits,
        cache_misses=cache.misses,
        cache_bytes=cache.nbytes,
        cache_entries=cache.entries,
    )


def active_request(job: Job, model: str) -> ActiveRequest:
    """A request of the engine as it is shown."""
    stats, length = job.stats, len(job.request.prompt)
    state = job.state
    done = min(length, len(state.tokens)) if state is not None else 0
    waiting = job.started is None
    decoding = stats.generation_tokens > 0
    rate = (stats.generation_tokens - 1) / stats.generation_seconds if stats.generation_seconds > 0 else 0.0
    return ActiveRequest(
        number=job.number,
        model=model,
        phase="waiting" if waiting else "decode" if decoding else "prefill",
        seconds=time.monotonic() - job.submitted,
        prompt_tokens=length,
        prompt_done=length if decoding else done,
        cached_tokens=stats.cached_tokens,
        generation_tokens=stats.generation_tokens,
        tokens_per_second=rate,
        tokens_per_cycle=stats.tokens_per_cycle,
        engine=stats.engine,
    )


class Sampler:
    """Takes a sample of the process each second or so and keeps those of the last minutes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: tuple[float, int, int, int, int] | None = None
        self.history: deque[LiveFigures] = deque(maxlen=HISTORY_SECONDS)

    def sample(self, entries: Sequence[Entry]) -> LiveFigures:
        """The rates are those since the last sample."""
        engine = self._engine
        jobs = engine.jobs()
        total = engine.sums()
        prompt = engine.totals.prompt_tokens - engine.totals.cached_tokens + sum(map(_prompt_work, jobs))
        now = (time.monotonic(), prompt, total.generation_tokens, total.cycle_tokens, total.cycles)
        before, self._before = self._before or now, now
        seconds = now[0] - before[0]
        prompt_tps, generation_tps = (max(0, now[i] - before[i]) / seconds if seconds else 0.0 for i in (1, 2))
        cycles = now[4] - before[4]
        weights = sum(entry.memory_bytes for entry in entries)
        cache = engine.cache.figures
        running, waiting = engine.load
        figures = LiveFigures(
            time=time.time(),
            prompt_tps=prompt_tps,
            generation_tps=generation_tps,
            tokens_per_cycle=(now[3] - before[3]) / cycles if cycles > 0 else 1.0,
            running=running,
            waiting=waiting,
            weights_bytes=weights,
            prefix_cache_bytes=cache.nbytes,
            request_bytes=max(0, mx.get_active_memory() - weights - cache.nbytes),
            free_cache_bytes=mx.get_cache_memory(),
            memory_limit=engine.memory.limit,
            by_model=_by_model(engine, entries),
        )
        self.history.append(figures)
        return figures


def _by_model(engine: Engine, entries: Sequence[Entry]) -> Mapping[str, PairFigures]:
    return {entry.id: pair_figures(engine, entry.pair) for entry in entries if entry.pair is not None}


def _prompt_work(job: Job) -> int:
    """Prompt tokens that a running request has run itself."""
    state = job.state
    if state is None:
        return 0
    return max(0, min(len(state.tokens), len(job.request.prompt)) - job.stats.cached_tokens)


def _parts(total: Totals) -> tuple[float | None, float | None, float | None]:
    """Seconds of draft, verify and commit over all cycles, by the share of those that were timed."""
    if not total.timed_cycles:
        return None, None, None
    scale = total.cycles / total.timed_cycles
    draft, verify, commit = (seconds * scale for seconds in total.timed_seconds)
    return draft, verify, commit
