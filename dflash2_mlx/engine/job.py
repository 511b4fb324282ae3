"""One request on the engine: who hears of it, how long it was served, and its own run of token steps."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import traceback
from collections.abc import Generator
from dataclasses import replace
from typing import Protocol

from ..decode.generate import TokenStep, generate_tokens
from ..decode.request import Request
from ..decode.state import DecodeState
from ..decode.stats import Stats
from ..errors import DFlashError
from ..pairs import Pair
from .memory import Memory
from .prefix_cache import PrefixCache

# Tokens: borders within so many of a regular one make it needless, and of those so close one serves for all. Chosen
# small beside a chunk of 2,048 and larger than a turn's head; not measured.
_NEAR, _CLOSE = 256, 32
# Templates word a turn's head anew in the next prompt, so that a point to come back to has to lie before it.
_BEFORE_END = 16

log = logging.getLogger(__name__)

_numbers = itertools.count(1)


class Listener(Protocol):
    """Who asked. Both are called on the engine's thread, or on the one that ended the request."""

    def step(self, step: TokenStep) -> None:
        """New tokens, of which the last step has a finish_reason."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Exactly once, after the last step; `error` where there was no last step."""
        ...


class Job:
    """A request with its pair. `borders` are positions in its prompt that other prompts may branch off from.

    Without `use_cache` it takes no prefix up and leaves none.
    """

    def __init__(
        self,
        pair: Pair,
        request: Request,
        listener: Listener,
        *,
        borders: frozenset[int] = frozenset(),
        use_cache: bool = True,
    ) -> None:
        self.pair, self.request, self.listener, self.borders = pair, request, listener, borders
        self.use_cache = use_cache
        self.number = next(_numbers)
        self.stats: Stats = pair.new_stats(request.block_size, request.verify_mode)
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.cost = 0.0  # seconds of its turns
        self.served = 0.0  # the same for the order of turns, with a head start where others have run before
        self.reason = "cancelled"  # how it ended: a finish reason, or "error"
        self.error: Exception | None = None
        self.enough = False  # cancelled since all that was wanted is there
        self.cancelled = threading.Event()
        self.state: DecodeState | None = None
        self._steps: Generator[TokenStep] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def turn(self, cache: PrefixCache, memory: Memory, snapshot_every: int) -> bool:
        """One chunk of the prompt, or one cycle; false when it was the last. What goes wrong is left in `error`."""
        try:
            if self._steps is None:
                memory.admit(self.pair, len(self.request.prompt), cache)
                self._steps = self._begin(cache, snapshot_every)
            step = next(self._steps)
            if (step.tokens or step.finish_reason) and not self.ended:
                self.listener.step(step)
            if step.finish_reason is None:
                return not self.ended
            if not self.ended:
                self.reason = "stop" if self.enough else step.finish_reason
        except Exception as error:  # of the model, or of whoever listens: the next request must not suffer
            log.error("request %d failed: %s", self.number, error, exc_info=not isinstance(error, DFlashError))
            traceback.clear_frames(error.__traceback__)  # they hold the caches
            self.reason, self.error = "error", error
            return False
        self._keep(cache)
        return False

    def end(self, error: BaseException | None = None) -> None:
        """Tell the listener, once; any thread may."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        try:
            self.listener.end(error)
        except Exception:
            log.exception("request %d: its listener failed", self.number)

    @property
    def ended(self) -> bool:
        return self._ended

    def close(self) -> None:
        """Leave the models alone; on the engine's thread."""
        if self._steps is not None:
            self._steps.close()
        self._steps = self.state = None

    def _begin(self, cache: PrefixCache, snapshot_every: int) -> Generator[TokenStep]:
        self.started = time.monotonic()
        request = replace(self.request, cancelled=self.cancelled.is_set, turns=True)
        if self.use_cache:
            prompt = self.request.prompt
            restored = cache.restore(self.pair, prompt)
            self.state = restored.state
            wanted = {*self.borders, restored.known}
            request = replace(
                request,
                borders=snapshot_points(len(restored.state.tokens), len(prompt), wanted, snapshot_every),
                at_border=lambda state: cache.store(self.pair, state),
            )
        else:
            drafter = self.pair.drafter if request.block_size > 1 else None
            self.state = DecodeState(self.pair.target, drafter, keeps_marks=False)
        chooser = self.pair.chooser(request)
        return generate_tokens(self.pair.target, self.pair.drafter, request, self.state, self.stats, chooser)

    def _keep(self, cache: PrefixCache) -> None:
        """The whole of it, a cancelled prefill too."""
        if not self.use_cache:
            return
        try:
            if self._steps is not None and self.state is not None:
                self._steps.close()  # the caches stand at the emitted tokens then
                cache.store(self.pair, self.state)
        except Exception:  # the answer is whole all the same
            log.exception("request %d: its prefix is not kept", self.number)


def snapshot_points(start: int, length: int, wanted: set[int], every: int) -> frozenset[int]:
    """Where a prefill from `start` of a prompt of `length` tokens stops for a snapshot.

    At `wanted` positions (of some that are close together at the first), shortly before the end where none of these
    is, and every so many tokens where none is near.
    """
    end = length - 1
    points: list[int] = []
    for point in sorted(p for p in wanted if start < p < end):
        if not points or point - points[-1] >= _CLOSE:
            points.append(point)
    if end - _BEFORE_END > max([start, *(p + _CLOSE for p in points)]):
        points.append(end - _BEFORE_END)
    regular = range((start // every + 1) * every, end, every)
    return frozenset([*points, *(p for p in regular if all(abs(p - q) >= _NEAR for q in points))])
