"""Work that goes on after its request was answered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dflash2_mlx.errors import DFlashError

log = logging.getLogger(__name__)

# Seconds in which what is wrong with the work itself shows, so that a refusal is told instead of "it goes on".
_MOMENT = 0.1
_going_on: set[asyncio.Future[Any]] = set()


async def ended_at_once(work: asyncio.Future[Any]) -> bool:
    """Whether it has ended, well or not, within a moment; else it goes on, and what becomes of it is only logged."""
    await asyncio.wait({work}, timeout=_MOMENT)
    if work.done():
        return True
    _going_on.add(work)  # the loop itself holds no reference
    work.add_done_callback(_ended)
    return False


def _ended(work: asyncio.Future[Any]) -> None:
    _going_on.discard(work)
    error = None if work.cancelled() else work.exception()
    if isinstance(error, DFlashError):
        log.warning("%s", error)
    elif error is not None:
        log.error("work that a request began has failed", exc_info=error)
