"""A model that is loaded, being loaded, or was tried: its state, as everybody is shown it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlx.utils import tree_flatten

from dflash2_mlx.errors import EngineBusy
from dflash2_mlx.pairs import Pair
from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.management import ModelState
from dflash2_server.served import ServedPair


class LoadCancelled(EngineBusy):
    """A load that somebody has stopped."""


@dataclass
class Entry:
    """Changed on the event loop; `stage`, `share` and `stop` also by the thread that loads."""

    id: str
    state: ModelState = "unloaded"
    stage: str | None = None
    share: float | None = None
    error: str | None = None
    served: ServedPair | None = None
    loaded_with: ModelSettings | None = None  # None: not loaded from saved settings alone
    loaded_at: float = 0.0  # seconds since the epoch, as the next
    last_used: float = 0.0
    memory_bytes: int = 0
    coming: int = 0  # requests on their way to the engine
    awaited: int = 0  # requests that wait for it to be loaded
    held: int = 0  # benches on it: they end within a sample of its unloading
    reloading: bool = False  # unloaded only to be loaded again
    refused: ModelSettings | None = None  # a reload with these has failed: it is not tried again
    task: asyncio.Task[None] | None = field(default=None, repr=False)  # the load under way
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    settled: asyncio.Event = field(default_factory=asyncio.Event, repr=False)  # unloading has ended

    @property
    def pair(self) -> Pair | None:
        return self.served.pair if self.served is not None else None

    @property
    def idle_seconds(self) -> float:
        """Since the last request, as far as it is known."""
        return max(0.0, time.time() - self.last_used)

    def begins(self, state: ModelState) -> None:
        self.state, self.stage, self.share, self.error = state, None, None, None

    def fails(self, error: BaseException) -> None:
        self.begins("unloaded" if isinstance(error, LoadCancelled) else "failed")
        self.error = None if isinstance(error, LoadCancelled) else " ".join(str(error).split()) or type(error).__name__
        self.served = self.loaded_with = None

    def is_ready(self, served: ServedPair, loaded_with: ModelSettings | None) -> None:
        self.begins("ready")
        self.served, self.loaded_with = served, loaded_with
        self.loaded_at = self.last_used = time.time()
        self.memory_bytes = weights_of(served.pair)

    def is_gone(self) -> None:
        self.begins("unloaded")
        self.served = self.loaded_with = None
        self.memory_bytes = 0
        self.settled.set()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Around a wait for its load: what somebody waits for is not unloaded to make room for another."""
        self.awaited += 1
        try:
            yield
        finally:
            self.awaited -= 1

    @contextmanager
    def held_loaded(self) -> Iterator[ServedPair]:
        """Around work of many requests: between them it does not count as idle, and unloading waits for its end.

        Whoever holds it looks at `state`, and ends where that is not ready any more.
        """
        assert self.served is not None, "only what is ready is held"
        self.held += 1
        try:
            yield self.served
        finally:
            self.held -= 1
            self.last_used = time.time()

    @contextmanager
    def claimed(self) -> Iterator[ServedPair]:
        """Around what leads a request to the engine: it is not unloaded meanwhile."""
        assert self.served is not None, "only what is ready is claimed"
        self.coming += 1
        try:
            yield self.served
        finally:
            self.coming -= 1
            self.last_used = time.time()


def weights_of(pair: Pair) -> int:
    """Bytes of a pair's weights; arrays that two modules share count once."""
    modules = [pair.target.model, *([pair.drafter.model] if pair.drafter else [])]
    leaves: list[Any] = [leaf for module in modules for leaf in tree_flatten(module.parameters())]
    arrays = {id(array): array for _, array in leaves}
    return sum(array.nbytes for array in arrays.values())
