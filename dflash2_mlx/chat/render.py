"""Shows an answer as it comes: Markdown and dim thinking on a terminal, plain text elsewhere.

On a terminal only the block that is still growing is drawn anew; finished blocks are printed once and scroll
away. So the cost of a refresh does not grow with the answer, and a long one does not flicker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self, TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from dflash2_mlx.chat.visible import visible
from dflash2_mlx.text.reasoning import Kind, Piece

# A refresh every 80 ms reads as a stream; drawing may take a fifth of the time at most.
_REFRESH_S = 0.08
_DRAWING_SHARE = 5


class Screen(Protocol):
    """Where a chat is shown. `note` is for the chat's own lines, which are no answer."""

    def answer(self) -> Answer: ...

    def note(self, lines: str | Iterable[str]) -> None: ...

    def error(self, text: str) -> None: ...


class Answer(Protocol):
    """One answer that is being shown; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def feed(self, piece: Piece) -> None: ...

    def waiting(self, done: int, total: int) -> None: ...


class TerminalScreen:
    """Rich output on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def answer(self) -> TerminalAnswer:
        return TerminalAnswer(self.console)

    def note(self, lines: str | Iterable[str]) -> None:
        for line in [lines] if isinstance(lines, str) else lines:
            self.console.print(Text(visible(line), style="dim"))

    def error(self, text: str) -> None:
        self.console.print(Text(visible(text), style="red"))


class TerminalAnswer:
    """The live answer: finished blocks above, the growing one redrawn below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._kind: Kind = "answer"
        self._growing = ""
        self._last: Kind | None = None  # what was printed last
        self._next_refresh = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update("")
        self._live.stop()
        self._print(self._growing)

    def feed(self, piece: Piece) -> None:
        if piece.kind != self._kind:
            self._live.update("")
            self._print(self._growing)
            self._kind, self._growing = piece.kind, ""
        self._growing += visible(piece.text)
        started = time.monotonic()
        if started < self._next_refresh:
            return
        done = finished_thinking(self._growing) if self._kind == "thinking" else finished_markdown(self._growing)
        finished, self._growing = self._growing[:done], self._growing[done:]
        self._live.update(_Tail(_block(self._kind, self._growing)))
        self._print(finished)  # draws what is live below it, too
        if not finished:
            self._live.refresh()
        now = time.monotonic()
        self._next_refresh = now + max(_REFRESH_S, (now - started) * _DRAWING_SHARE)

    def waiting(self, done: int, total: int) -> None:
        """The prompt is still being read."""
        if done < total:
            self._live.update(Text(f"reading the prompt: {done} of {total} tokens", style="dim"), refresh=True)

    def _print(self, text: str) -> None:
        """Print finished blocks: an empty line before each, but none within one thought."""
        if not text.strip():
            return
        goes_on = self._kind == "thinking" == self._last
        block = _block(self._kind, text.removesuffix("\n") if goes_on else text.strip("\n"))
        self._console.print(block if self._last is None or goes_on else Group("", block))
        self._last = self._kind


class PlainScreen:
    """Text as it comes, without control sequences; the chat's own lines go to stderr."""

    def __init__(self, out: TextIO | None = None, notes: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._notes = notes or sys.stderr

    def answer(self) -> PlainAnswer:
        return PlainAnswer(self._out)

    def note(self, lines: str | Iterable[str]) -> None:
        for line in [lines] if isinstance(lines, str) else lines:
            print(line, file=self._notes, flush=True)

    def error(self, text: str) -> None:
        self.note(text)


class PlainAnswer:
    """Thinking stands between tags of its own, so that it can be told from the answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._kind: Kind = "answer"
        self._began = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn_to("answer")
        if self._began:
            self._write("\n")

    def feed(self, piece: Piece) -> None:
        self._began = True
        self._turn_to(piece.kind)
        self._write(piece.text)

    def waiting(self, done: int, total: int) -> None:
        """Nothing: a log needs no counter."""

    def _turn_to(self, kind: Kind) -> None:
        if kind != self._kind:
            self._write("<think>" if kind == "thinking" else "</think>")
            self._kind = kind

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def screen() -> Screen:
    """The screen for this process's stdout."""
    console = Console(highlight=False)
    return TerminalScreen(console) if console.is_terminal and not console.is_dumb_terminal else PlainScreen()


def finished_markdown(text: str) -> int:
    """Length of the leading blocks of Markdown that more text cannot change.

    The last block may still grow, and so may the one before it while a line is not complete: a `2` may yet
    become the next item of a list.
    """
    complete = text[: text.rfind("\n") + 1]
    starts = [
        token.map[0] for token in _PARSER.parse(complete) if token.level == 0 and token.map and token.nesting >= 0
    ]
    return len("\n".join(complete.split("\n")[: starts[-1]])) + 1 if len(starts) > 1 else 0


def finished_thinking(text: str) -> int:
    """Length of the complete lines before the last one that holds anything."""
    return text.rfind("\n", 0, len(text.rstrip())) + 1


# What rich parses with, but tags of HTML are text: rich would leave them out.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def _block(kind: Kind, text: str) -> RenderableType:
    if kind == "thinking":
        return Padding(Text(text, style="dim"), (0, 0, 0, 2))
    block = Markdown(text, hyperlinks=False, code_theme="ansi_dark")
    block.parsed = _PARSER.parse(text)
    return block


class _Tail:
    """The last lines of a block, as many as fit: what has left the screen cannot be redrawn."""

    def __init__(self, block: RenderableType) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._block, options.update(height=None), pad=False)[2 - console.height :]:
            yield from line
            yield Segment.line()
