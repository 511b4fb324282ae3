"""The bus of events: nothing is lost between ring and live, nothing grows, and who missed something is told."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dflash2_server.events import MISSED, Event, EventBus


async def taken(reader: object, count: int) -> list[Event]:
    async with asyncio.timeout(5):
        return [await anext(reader) for _ in range(count)]  # type: ignore[call-overload]


def numbers(events: list[Event]) -> list[object]:
    return [event.data.get("n") for event in events]


def test_ids_grow_by_one_and_begin_after_those_of_an_earlier_process() -> None:
    bus = EventBus()
    first = bus.publish("a", {})
    assert abs(first / 1000 - time.time()) < 60
    assert bus.publish("a", {}) == first + 1 == bus.last_id


def test_what_is_kept_can_be_asked_for_again() -> None:
    bus = EventBus(keep=3, first=1)
    for n in range(1, 6):
        bus.publish("step", {"n": n})
    assert numbers(bus.since(2)) == [3, 4, 5]
    assert numbers(bus.since(4)) == [5]
    assert bus.since(5) == []


@pytest.mark.parametrize("after", [0, 1, 6, 10**15])
def test_what_is_gone_or_was_never_there_is_told_as_missed(after: int) -> None:
    bus = EventBus(keep=3, first=1)
    for n in range(1, 6):
        bus.publish("step", {"n": n})
    (event,) = bus.since(after)
    assert (event.kind, event.id, event.data) == (MISSED, 5, {"after": after})


def test_a_bus_without_events_has_nothing_to_miss() -> None:
    bus = EventBus(first=10)
    assert bus.since(bus.last_id) == []
    assert [event.kind for event in bus.since(3)] == [MISSED]


def test_a_reader_gets_what_was_published_after_it_came_and_before_it_looks() -> None:
    async def run() -> list[object]:
        bus = EventBus(first=1)
        bus.publish("step", {"n": 1})
        reader = bus.subscribe()
        bus.publish("step", {"n": 2})
        return numbers(await taken(reader, 1))

    assert asyncio.run(run()) == [2]


def test_a_reader_goes_on_from_the_ring_to_what_comes() -> None:
    async def run() -> list[object]:
        bus = EventBus(first=1)
        for n in (1, 2, 3):
            bus.publish("step", {"n": n})
        reader = bus.subscribe(1)
        first = await taken(reader, 2)
        asyncio.get_running_loop().call_later(0.01, bus.publish, "step", {"n": 4})
        return numbers(first + await taken(reader, 1))

    assert asyncio.run(run()) == [2, 3, 4]


def test_four_threads_publish_and_two_readers_lose_nothing() -> None:
    async def run() -> None:
        bus = EventBus(keep=10_000, first=1)
        readers = [bus.subscribe(), bus.subscribe(0)]

        def publish(thread: int) -> None:
            for n in range(500):
                bus.publish("step", {"n": (thread, n)})

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for events in await asyncio.gather(*(taken(reader, 2000) for reader in readers)):
            assert [event.id for event in events] == list(range(1, 2001))
            for thread_number in range(4):
                mine = [n for thread, n in numbers(events) if thread == thread_number]  # type: ignore[misc]
                assert mine == list(range(500)), "each thread's own order"
        for thread in threads:
            thread.join()

    asyncio.run(run())


def test_a_slow_reader_costs_nothing_and_is_told_once() -> None:
    async def run() -> list[Event]:
        bus = EventBus(keep=10, first=1)
        reader = bus.subscribe()
        bus.publish("step", {"n": 1})
        assert numbers(await taken(reader, 1)) == [1]
        for n in range(2, 1000):
            bus.publish("step", {"n": n})
        (missed,) = await taken(reader, 1)
        bus.publish("step", {"n": 1000})
        return [missed, *await taken(reader, 1)]

    missed, following = asyncio.run(run())
    assert (missed.kind, missed.id, missed.data) == (MISSED, 999, {"after": 1})
    assert (following.id, following.data) == (1000, {"n": 1000})


def test_a_reader_that_is_dropped_or_cancelled_leaves_nothing_behind() -> None:
    async def run() -> None:
        bus = EventBus()
        reader = bus.subscribe()
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert len(bus._waiting) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not bus._waiting, "and nothing else of the bus knows of readers"

    asyncio.run(run())


def test_readers_end_when_the_bus_is_closed_with_what_was_published() -> None:
    async def run() -> tuple[list[object], list[Event]]:
        bus = EventBus(first=1)
        behind, waiting = bus.subscribe(), bus.subscribe()
        bus.publish("step", {"n": 1})
        assert numbers(await taken(waiting, 1)) == [1]
        ending = asyncio.ensure_future(_rest(waiting))
        await asyncio.sleep(0)
        bus.close()
        async with asyncio.timeout(5):
            return numbers(await _rest(behind)), await ending

    assert asyncio.run(run()) == ([1], [])


def test_publishing_to_a_loop_that_is_gone_is_no_error() -> None:
    bus = EventBus()
    loop = asyncio.new_event_loop()
    reader = bus.subscribe()
    waiting = loop.create_task(reader.__anext__())
    loop.run_until_complete(asyncio.sleep(0))
    registered = set(bus._waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.close()
    bus._waiting |= registered  # as when the loop closes between the look and the call
    assert registered
    bus.publish("step", {})


async def _rest(reader: object) -> list[Event]:
    return [event async for event in reader]  # type: ignore[attr-defined]
