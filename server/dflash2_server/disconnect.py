"""Noticing that a client has left, so that its answer does not go on without a reader."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from dflash2_server.inference import Answer, Event


class ClientLeft(Exception):
    """The client closed its connection before the answer was complete; nobody reads what follows."""


async def until_left(receive: Receive) -> None:
    """Returns when the client has left. To be called once the request's body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(request: Request, answer: Answer) -> list[Event]:
    """A whole answer, for a response that is not streamed. The answer is closed in the end, however it went.

    Raises ClientLeft as soon as the client has left, and what iterating the answer raises.
    """
    gathering = asyncio.ensure_future(_gather(answer))
    leaving = asyncio.ensure_future(until_left(request.receive))
    try:
        await asyncio.wait({gathering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not gathering.done():
            raise ClientLeft
        return gathering.result()
    finally:
        await stop(gathering, leaving)
        await answer.aclose()


async def stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gather(answer: Answer) -> list[Event]:
    return [event async for event in answer]
