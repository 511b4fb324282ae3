"""A worker process, seen from its parent: start, read, kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .job import Job

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_VERBOSITY": "error"}


class WorkerProcess:
    """One download under way. The job goes through stdin, which stays open: the worker ends when it closes."""

    def __init__(self, job: Job) -> None:
        self._secret = job.token
        self._said: deque[str] = deque(maxlen=8)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dflash2_server.downloads.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **_QUIET},
            start_new_session=True,  # Ctrl-C in the terminal is for the server, which ends its workers
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already: its exit tells
            self._process.stdin.write(job.to_json() + "\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

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
        """At once and for sure: a transfer cannot be stopped in the middle otherwise. From any thread."""
        self._process.kill()

    def last_words(self) -> str:
        """What a process said that ended without a result, and how it ended."""
        words = " ".join(self._said)
        if self._secret:
            words = words.replace(self._secret, "[hidden]")
        return f"the download process ended with {self._process.returncode}" + (f": {words[-500:]}" if words else "")


def _message(line: str) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "event" in message else None
