"""What else the machine does beside a sample: loads, downloads and quantise jobs, which all take its time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dflash2_server.events import EventBus

LOADED = "a model was loaded or unloaded"
DOWNLOADED = "a download ran"
QUANTIZED = "a quantise job ran"

_BY_KIND = {"load": LOADED, "model": LOADED, "download": DOWNLOADED, "quantize": QUANTIZED}


class Watch:
    """From `begin` to `seen`, by the events between them and by what is `at_work` at both ends. From any thread."""

    def __init__(self, events: EventBus, at_work: Callable[[], Collection[str]]) -> None:
        self._events, self._at_work = events, at_work
        self._since = events.last_id
        self._before: Collection[str] = ()

    def begin(self) -> None:
        """A sample begins."""
        self._since = self._events.last_id
        self._before = self._at_work()

    def seen(self) -> list[str]:
        """What has run since then, in words."""
        told = {_BY_KIND.get(event.kind) for event in self._events.since(self._since)}
        found = told | {*self._before} | {*self._at_work()}
        return [words for words in (LOADED, DOWNLOADED, QUANTIZED) if words in found]
