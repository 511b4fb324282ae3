"""One window a user: a lock that ends with its process, and a way to call the process that holds it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_SHOWN = b"shown"
# A window may take a moment to come to the front; who does not answer by then does not answer.
_ANSWER_SECONDS = 5.0


def default_path() -> Path:
    from platformdirs import user_state_path

    return user_state_path("dflash2-mlx", appauthor=False) / "app.lock"


@dataclass(frozen=True)
class Holder:
    """Who holds the lock. `url` None: its server is still starting. `port` is where it is called; None: no window."""

    pid: int
    url: str | None = None
    port: int | None = None
    key: str = ""


class Lock:
    """A context manager that holds the lock if it is free (`held`); the kernel frees it when the process ends.

    What a process that was killed left in the file says nothing: the lock on the file decides.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.held = False

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
            self.tell(Holder(os.getpid()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            if self.held:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
        self._descriptor, self.held = None, False

    def tell(self, holder: Holder) -> None:
        """Write down who holds it and how to reach them."""
        assert self._descriptor is not None
        content = json.dumps(asdict(holder)).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def holder(self) -> Holder | None:
        """Who holds it, as far as they have said; None while they have not."""
        try:
            return Holder(**json.loads(self._path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class Calls:
    """Answers calls to show the window, from a thread of its own, until the end of the block.

    It listens on a free port of loopback. A caller has to know the key, which stands where only this user can read.
    """

    def __init__(self, show: Callable[[], None]) -> None:
        self._show = show
        self._ended = False
        self.key = secrets.token_hex(32)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._answer, name="calls", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        with suppress(OSError):  # wakes the thread, which waits for a call
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._thread.join(2 * _ANSWER_SECONDS)
        self._listener.close()

    def _answer(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                if self._ended:
                    return
                connection.settimeout(_ANSWER_SECONDS)
                if secrets.compare_digest(_line(connection), self.key.encode()):
                    self._show()
                    connection.sendall(_SHOWN + b"\n")


def call(holder: Holder) -> bool:
    """Ask the holder to bring its window to the front; whether it did."""
    if holder.port is None:
        return False
    try:
        with socket.create_connection(("127.0.0.1", holder.port), _ANSWER_SECONDS) as connection:
            connection.sendall(f"{holder.key}\n".encode())
            return _line(connection) == _SHOWN
    except OSError:
        return False


def _line(connection: socket.socket) -> bytes:
    """The first line that comes, without its end."""
    with connection.makefile("rb") as stream:
        return stream.readline(200).rstrip()
