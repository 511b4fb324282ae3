"""Events of the process: published from any thread, kept in a ring, followed by any number of readers.

A reader has a place in the ring and no queue of its own: one that falls behind costs nothing, and is told that it
missed some.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Kind of the event that stands for those that the ring no longer has: what a reader knows is to be asked for anew.
MISSED = "missed"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. `time` is in seconds since the epoch."""

    id: int
    kind: str
    data: Mapping[str, Any]
    time: float = field(default_factory=time.time)


class EventBus:
    """The latest `keep` events. Ids grow by one.

    They begin with the time of the start in milliseconds, so that an id that a client kept over a restart is older
    than all that are there. `first` is another beginning, for tests.
    """

    def __init__(self, keep: int = 1000, *, first: int | None = None) -> None:
        self._lock = threading.Lock()
        self._ring: deque[Event] = deque(maxlen=keep)
        self._last_id = (time.time_ns() // 1_000_000 if first is None else first) - 1
        self._waiting: set[_Waiter] = set()
        self._closed = False

    @property
    def last_id(self) -> int:
        """Of the latest event; before the first one, what it would follow."""
        return self._last_id

    @property
    def closed(self) -> bool:
        return self._closed

    def publish(self, kind: str, data: Mapping[str, Any]) -> int:
        """From any thread. Returns the event's id."""
        with self._lock:
            self._last_id += 1
            number = self._last_id
            self._ring.append(Event(id=number, kind=kind, data=data))
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.wake()
        return number

    def since(self, last_id: int) -> list[Event]:
        """The events after that id. Where some of them are gone, or the id is none of ours, one that says so."""
        with self._lock:
            oldest = self._ring[0].id if self._ring else self._last_id + 1
            if not oldest - 1 <= last_id <= self._last_id:
                return [Event(id=self._last_id, kind=MISSED, data={"after": last_id})]
            skipped = last_id + 1 - oldest
            return [event for number, event in enumerate(self._ring) if number >= skipped]

    def subscribe(self, last_id: int | None = None) -> Subscription:
        """The events after that id, or from now on, as they come, until the bus is closed."""
        return Subscription(self, self._last_id if last_id is None else last_id)

    def close(self) -> None:
        """Readers come to their end once they have what was published."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.wake()

    async def wait_beyond(self, last_id: int) -> bool:
        """Returns when there is an event other than that one; False when none will come."""
        waiter = _Waiter()
        with self._lock:
            if self._last_id != last_id or self._closed:
                return self._last_id != last_id
            self._waiting.add(waiter)
        try:
            await waiter.woken.wait()
        finally:
            with self._lock:
                self._waiting.discard(waiter)
        return self._last_id != last_id


class Subscription(AsyncIterator[Event]):
    """A reader's place. It may be dropped at any time; nothing holds it."""

    def __init__(self, bus: EventBus, last_id: int) -> None:
        self._bus = bus
        self._last_id = last_id
        self._ready: deque[Event] = deque()

    async def __anext__(self) -> Event:
        while not self._ready:
            if not await self._bus.wait_beyond(self._last_id):
                raise StopAsyncIteration
            self._ready.extend(self._bus.since(self._last_id))
        event = self._ready.popleft()
        self._last_id = event.id
        return event


class _Waiter:
    """Wakes a task from any thread."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its task with it
            self._loop.call_soon_threadsafe(self.woken.set)
