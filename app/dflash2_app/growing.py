"""Text that grows in a page: what more text cannot change is sent once, only the end of it again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

from nicegui import ui

from dflash2_app.markdown import plain_to_html, to_html
from dflash2_mlx.chat.render import finished_markdown, finished_thinking

# Less than this stays with what still grows: each settled part is an element of its own.
_LEAST_SETTLED = 400
# Rendering may take this share of the processor at most, since it takes turns with the engine's thread; but however
# long it takes, a reader sees something new after these seconds.
_RENDERING_SHARE = 1 / 100
_LONGEST_PAUSE = 1.5


class GrowingText:
    """Shows `text` in an element. It is cheap to call with a text that has not changed, and with one that grew.

    `finished` tells how many characters more text cannot change, `render` makes HTML.
    """

    def __init__(self, finished: Callable[[str], int], render: Callable[[str], str]) -> None:
        self._finished, self._render = finished, render
        self._settled = 0  # characters that stand in elements of their own
        self._text = ""
        self._next = 0.0
        self.element = ui.element("div").classes("growing")
        self._tail: ui.html | None = None

    def show(self, text: str, *, last: bool = False) -> None:
        """`last` shows it whatever the time; without it, an update may be left to a later call."""
        if text == self._text or (time.monotonic() < self._next and not last):
            return
        started = time.thread_time()
        self._text = text
        growing = text[self._settled :]
        done = self._finished(growing)
        if done >= _LEAST_SETTLED:
            self._put(growing[:done])
            self._tail = None
            self._settled += done
            growing = growing[done:]
        if growing:
            self._put(growing)
        pause = (time.thread_time() - started) / _RENDERING_SHARE
        self._next = time.monotonic() + min(pause, _LONGEST_PAUSE)

    def _put(self, text: str) -> None:
        if self._tail is not None:
            self._tail.set_content(self._render(text))
            return
        with self.element:
            self._tail = ui.html(self._render(text))


def markdown() -> GrowingText:
    return GrowingText(finished_markdown, to_html)


def thoughts() -> GrowingText:
    return GrowingText(finished_thinking, plain_to_html)
