"""Server-sent events: one frame, and a response that keeps the line alive and closes the answer when nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dflash2_server.disconnect import stop, until_left
from dflash2_server.inference import Answer
from dflash2_server.strict_json import strict_json

# A proxy must neither store nor gather the events.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(data: Mapping[str, Any] | str, *, event: str | None = None) -> str:
    """One event's text. A mapping is sent as JSON (ValueError for NaN and infinities), a text as it is."""
    text = data if isinstance(data, str) else strict_json(data)
    head = "" if event is None else f"event: {event}\n"
    # The separators of the format: a lone carriage return would end a line too.
    lines = "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"{head}{lines}\n"


def comment(text: str = "keep-alive") -> str:
    """A frame that every reader skips."""
    return f": {text}\n\n"


def stream(
    frames: AsyncIterator[str], *, answer: Answer | None = None, keep_alive: Callable[[], str], every: float
) -> StreamingResponse:
    """A response of frames. When nothing was sent for `every` seconds (0: never) it sends `keep_alive()`.

    `answer`, where the frames are of one, is closed when they end and as soon as the client leaves, also while no
    frame is due.
    """
    return _EventStream(frames, answer, keep_alive, every)


class _EventStream(StreamingResponse):
    def __init__(
        self, frames: AsyncIterator[str], answer: Answer | None, keep_alive: Callable[[], str], every: float
    ) -> None:
        super().__init__(frames, headers=HEADERS, media_type="text/event-stream")
        self._frames = frames
        self._answer = answer
        self._keep_alive = keep_alive
        self._every = every if every > 0 else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_frames(send, leaving)
        except OSError:
            pass  # the server's way to say that the client has left
        finally:
            await stop(leaving)
            if self._answer is not None:
                await self._answer.aclose()
            if isinstance(self._frames, AsyncGenerator):
                await self._frames.aclose()
        if self.background is not None:
            await self.background()

    async def _send_frames(self, send: Send, leaving: asyncio.Future[Any]) -> None:
        """Send what comes, until it ends or the client leaves."""
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(self._frames, None))
        try:
            while True:
                await asyncio.wait({coming, leaving}, timeout=self._every, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    return
                text = await coming if coming.done() else self._keep_alive()
                if text is None:
                    break
                await send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True})
                if coming.done():
                    coming = asyncio.ensure_future(anext(self._frames, None))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await stop(coming)
