"""Figures that move as those of a busy machine do, from a generator with a seed."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import replace

from dflash2_server.management import ActiveRequest, LiveFigures, PairFigures

GIB = 1 << 30
_ACCEPTANCE = (0.86, 0.71, 0.58, 0.44, 0.33, 0.24, 0.17)


class Figures:
    """The samples of the last five minutes, and the running requests. `tick` takes it on by one second."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self.requests: list[ActiveRequest] = []
        self._number = 0
        self.pairs: dict[str, PairFigures] = {}
        self.history: deque[LiveFigures] = deque(maxlen=300)
        self.weights: dict[str, int] = {}
        self.sample()

    def begin(self, model: str, engine: str, *, prompt_tokens: int, waiting: bool = False) -> ActiveRequest:
        """A request of that model."""
        self._number += 1
        request = ActiveRequest(
            number=self._number, model=model, phase="waiting" if waiting else "prefill", seconds=0.0,
            prompt_tokens=prompt_tokens, prompt_done=0, cached_tokens=prompt_tokens // 3, generation_tokens=0,
            tokens_per_second=0.0, tokens_per_cycle=1.0, engine=engine,
        )  # fmt: skip
        self.requests.append(request)
        return request

    def tick(self) -> LiveFigures:
        """One second passes."""
        self.requests = [self._onward(request) for request in self.requests]
        self.requests = [request for request in self.requests if request.generation_tokens < 600]
        for request in self.requests:
            if request.phase == "decode":
                self.pairs[request.model] = self._more(self.pairs.get(request.model, PairFigures()), request)
        return self.sample()

    def sample(self, now: float | None = None) -> LiveFigures:
        """The state as it is, added to the history."""
        decoding = [request for request in self.requests if request.phase == "decode"]
        prefilling = [request for request in self.requests if request.phase == "prefill"]
        taken = sum(request.prompt_done + request.generation_tokens for request in self.requests)
        figures = LiveFigures(
            time=time.time() if now is None else now,
            prompt_tps=1500.0 * len(prefilling) * self._random.uniform(0.9, 1.1),
            generation_tps=sum(request.tokens_per_second for request in decoding),
            tokens_per_cycle=max((request.tokens_per_cycle for request in decoding), default=1.0),
            running=len(decoding) + len(prefilling),
            waiting=len(self.requests) - len(decoding) - len(prefilling),
            weights_bytes=sum(self.weights.values()),
            prefix_cache_bytes=sum(pair.cache_bytes for pair in self.pairs.values()),
            request_bytes=taken * 140_000,
            free_cache_bytes=int(GIB * self._random.uniform(0.2, 0.4)) if self.weights else 0,
            memory_limit=24 * GIB,
            by_model=dict(self.pairs),
        )
        self.history.append(figures)
        return figures

    def _onward(self, request: ActiveRequest) -> ActiveRequest:
        seconds = request.seconds + 1
        if request.phase == "waiting":
            return replace(request, seconds=seconds, phase="prefill" if seconds >= 2 else "waiting")
        left = request.prompt_tokens - request.cached_tokens - request.prompt_done
        if request.phase == "prefill" and left > 0:
            return replace(request, seconds=seconds, prompt_done=request.prompt_done + min(left, 1500))
        fast = request.engine != "plain"
        cycle = self._random.uniform(3.2, 4.4) if fast else 1.0
        speed = cycle * self._random.uniform(24, 27)
        return replace(
            request, seconds=seconds, phase="decode", tokens_per_cycle=cycle, tokens_per_second=speed,
            generation_tokens=request.generation_tokens + int(speed),
        )  # fmt: skip

    def _more(self, pair: PairFigures, request: ActiveRequest) -> PairFigures:
        tokens = int(request.tokens_per_second)
        cycles = int(tokens / request.tokens_per_cycle)
        speculating = request.engine != "plain"
        positions = tuple(min(1.0, max(0.0, at + self._random.uniform(-0.04, 0.04))) for at in _ACCEPTANCE)
        return replace(
            pair,
            requests=max(pair.requests, request.number),
            prompt_tokens=pair.prompt_tokens + (request.prompt_tokens if not pair.cycles else 0),
            cached_tokens=pair.cached_tokens + (request.cached_tokens if not pair.cycles else 0),
            generation_tokens=pair.generation_tokens + tokens,
            cycles=pair.cycles + cycles,
            tokens_per_cycle=(pair.generation_tokens + tokens) / max(1, pair.cycles + cycles),
            draft_share=1 - (pair.cycles + cycles) / max(1, pair.generation_tokens + tokens),
            acceptance_by_position=positions if speculating else (),
            prompt_seconds=pair.prompt_seconds + 0.02,
            generation_seconds=pair.generation_seconds + 1,
            draft_seconds=(pair.draft_seconds or 0.0) + 0.13 if speculating else None,
            verify_seconds=(pair.verify_seconds or 0.0) + 0.78 if speculating else None,
            commit_seconds=(pair.commit_seconds or 0.0) + 0.06 if speculating else None,
            cache_hits=pair.cache_hits + (pair.cycles == 0),
            cache_misses=max(1, pair.cache_misses),
            cache_bytes=min(2 * GIB, pair.cache_bytes + 40_000_000),
            cache_entries=min(4, pair.cache_entries + 1),
        )
