"""From the events of an answer to a response object, or to the events of its stream."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from dflash2_server.errors import wire_error
from dflash2_server.inference import Answer, Done, Event
from dflash2_server.openai.responses_object import ResponseObject, was_cut
from dflash2_server.openai.responses_output import Output, OutputStyle
from dflash2_server.openai.wire import no_end, split_end
from dflash2_server.sse import frame


def response(events: Sequence[Event], about: ResponseObject, style: OutputStyle) -> dict[str, Any]:
    """The response object of a whole answer. Raises DecodeError where it has no end."""
    parts, done = split_end(events)
    output = Output(style)
    for event in parts:
        list(output.feed(event))
    list(output.close(_last_status(done)))
    return about.ended(output.items, done)


class ResponseFrames:
    """The stream of one response: its events, numbered as they are sent, and signs of life between them."""

    def __init__(self, about: ResponseObject, style: OutputStyle) -> None:
        self._about = about
        self._output = Output(style)
        self._numbers = itertools.count()

    def keep_alive(self) -> str:
        """The response is still in progress: the protocol's own sign of life."""
        return self._frame({"type": "response.in_progress", "response": self._about.begun()})

    async def frames(self, answer: Answer) -> AsyncGenerator[str]:
        """All events; the last one is response.completed, response.incomplete or response.failed."""
        for kind in ("response.created", "response.in_progress"):
            yield self._frame({"type": kind, "response": self._about.begun()})
        try:
            async for event in answer:
                for wire in self._ending(event) if isinstance(event, Done) else self._output.feed(event):
                    yield self._frame(wire)
                if isinstance(event, Done):
                    return
            raise no_end()
        except Exception as error:
            for wire in self._failure(error):
                yield self._frame(wire)

    def _ending(self, done: Done) -> Iterator[dict[str, Any]]:
        yield from self._output.close(_last_status(done))
        kind = "response.incomplete" if was_cut(done) else "response.completed"
        yield {"type": kind, "response": self._about.ended(self._output.items, done)}

    def _failure(self, error: Exception) -> list[dict[str, Any]]:
        told = wire_error(error)
        failed = self._about.failed(self._output.abandon(), told)
        return [
            {"type": "error", "code": failed["error"]["code"], "message": told.message, "param": told.param},
            {"type": "response.failed", "response": failed},
        ]

    def _frame(self, wire: dict[str, Any]) -> str:
        return frame(wire | {"sequence_number": next(self._numbers)}, event=wire["type"])


def _last_status(done: Done) -> str:
    return "incomplete" if was_cut(done) else "completed"
