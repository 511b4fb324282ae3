"""Reads what the user says: a line editor on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

from dflash2_mlx.chat.commands import COMMANDS, QUOTES, is_open, quoted


class Reader(Protocol):
    """`read` gives one message or command, as `commands.parse` takes it.

    Raises EOFError when there is no more, KeyboardInterrupt when the user drops the line.
    """

    def read(self, default: str = "") -> str: ...


class PlainReader:
    """Lines of a stream that is no terminal; a text in triple quotes may go over several."""

    def __init__(self, lines: TextIO | None = None) -> None:
        self._lines = lines or sys.stdin

    def read(self, default: str = "") -> str:
        line = self._next()
        while is_open(line):
            try:
                line += "\n" + self._next()
            except EOFError:
                return line + QUOTES
        return line

    def _next(self) -> str:
        line = self._lines.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


class TerminalReader:
    """prompt_toolkit with history. Enter sends, Alt-Enter or open triple quotes begin a new line.

    What begins with a pasted `/` or quote is put in triple quotes, on the screen and in the history too:
    so it is text now, and still is when it is recalled.
    """

    def __init__(
        self,
        history: History | None = None,
        *,
        terminal_input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._pasted = False
        self._session: PromptSession[str] = PromptSession(
            message="> ",
            multiline=True,
            prompt_continuation=". ",
            history=history or history_on_disk(),
            key_bindings=self._bindings(),
            completer=CommandCompleter(),
            complete_while_typing=False,
            input=terminal_input,
            output=output,
        )
        self._session.default_buffer.on_text_changed += self._forget_paste

    def read(self, default: str = "") -> str:
        self._pasted = False
        return self._session.prompt(default=default)

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add(Keys.BracketedPaste)
        def _paste(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            first = not event.current_buffer.document.text_before_cursor.strip()
            event.current_buffer.insert_text(text)
            self._pasted = self._pasted or first

        @bindings.add("enter")
        def _enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._pasted and buffer.text.lstrip()[:1] in ("/", '"'):
                buffer.text = quoted(buffer.text)
            if is_open(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @bindings.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return bindings

    def _forget_paste(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._pasted = False


class CommandCompleter(Completer):
    """Completes the name of a command, with Tab."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if typed.startswith("/"):
            for name in COMMANDS:
                if name.startswith(typed):
                    yield Completion(name, start_position=-len(typed))


def history_on_disk() -> History:
    """The history in the user's state folder; one in memory where that cannot be written."""
    path = Path(platformdirs.user_state_dir("dflash2-mlx")) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What one says to a model is private: created for its owner only.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
