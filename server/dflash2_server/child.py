"""A Python process of this program's own, seen from its parent: start, read its messages, kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any


class Child:
    """`python -m module arguments`. Its stdin stays open: it is to end when that closes, as it does with the parent.

    It writes one JSON object with an "event" a line; other lines are kept as its last words. `line` is the first one
    that it reads.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        line: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._said: deque[str] = deque(maxlen=8)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C in the terminal is for the server, which ends its children
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already: its exit tells
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Once the messages have ended."""
        return self._process.returncode

    @property
    def said(self) -> Sequence[str]:
        """The last lines that were no messages."""
        return list(self._said)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Until the process ends, from any thread, once."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        for line in self._process.stdout:
            message = _message(line)
            if message is not None:
                yield message
            elif line.strip():
                self._said.append(line.strip())
        self._process.wait()
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """At once and for sure. From any thread."""
        self._process.kill()


def _message(line: str) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "event" in message else None
