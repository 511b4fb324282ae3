"""Keeping a page at what the manager says, with as little work and as few messages as that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from nicegui import ui

from dflash2_server.management import Management

# How often the events are looked at, in seconds; the manager is asked only where there are new ones …
LOOK_SECONDS = 0.3
# … and at the latest after so long, for what no event tells of.
LATEST_SECONDS = 5.0

View = TypeVar("View")


def follow(manager: Management, update: Callable[[], None]) -> None:
    """Call `update` now, and in this page's context whenever something has changed, for as long as it is open."""
    news = News(manager)
    update()

    def look() -> None:
        if news.came():
            update()

    ui.timer(LOOK_SECONDS, look)


class News:
    """Whether the manager's events have gone on since the last look."""

    def __init__(self, manager: Management, now: Callable[[], float] = time.monotonic) -> None:
        self._events = manager.events
        self._now = now
        self._last = manager.events.last_id
        self._looked = now()

    def came(self) -> bool:
        newest = self._events.last_id
        if newest == self._last and self._now() - self._looked < LATEST_SECONDS:
            return False
        self._last, self._looked = newest, self._now()
        return True


class Part(Generic[View]):
    """A part of a page that is built again only when what it shows has changed.

    `key` gives all that `build` shows of a view; `build` makes elements.
    """

    def __init__(
        self, key: Callable[[View], Hashable], build: Callable[[View], None], *, classes: str = "", tag: str = "div"
    ) -> None:
        self._key = key
        self._build = build
        self._shown: Hashable = _NOTHING
        self.element = ui.element(tag).classes(classes)

    def show(self, view: View) -> None:
        key = self._key(view)
        if key == self._shown:
            return
        self._shown = key
        self.element.clear()
        with self.element:
            self._build(view)


_NOTHING = object()
