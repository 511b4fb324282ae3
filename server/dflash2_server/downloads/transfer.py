"""One file over one connection: what is missing is appended to the partial file, and the whole is checked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import get_session, hf_raise_for_status

from .faults import Damaged
from .hub import RemoteFile
from .job import Policy

_BLOCK = 1 << 20

Advance = Callable[[int], None]


class Stopped(Exception):
    """Another file has failed: this one is left as it is."""


def transfer(
    url: str,
    headers: dict[str, str],
    file: RemoteFile,
    part: Path,
    *,
    policy: Policy,
    advance: Advance,
    stop: threading.Event,
) -> None:
    """Complete and check `part`. `advance` gets bytes as they are written, negative for those that are dropped.

    Raises what the network raises (the partial file then is a beginning that the next call goes on from), OSError of
    the disk, Damaged (the partial file is gone), Stopped.
    """
    try:
        with Partial(file, part, advance) as partial:
            if partial.position < file.size:
                _receive(url, headers, partial, policy, stop)
            partial.check()
    except Damaged:
        part.unlink(missing_ok=True)
        raise


class Partial:
    """The beginning of a file on disk, with the hash of what is there."""

    def __init__(self, file: RemoteFile, path: Path, advance: Advance) -> None:
        self.file = file
        self._advance = advance
        self._out = path.open("a+b")
        self._begin()
        self._out.seek(0)
        while block := self._out.read(_BLOCK):
            self._count(block)
        if self.position > file.size:
            self.restart()

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._out.close()
        if isinstance(error, Damaged):
            self._advance(-self.position)

    def write(self, block: bytes) -> None:
        if self.position + len(block) > self.file.size:
            raise Damaged(f"more came than the {self.file.size} bytes that were announced")
        self._out.write(block)
        self._out.flush()  # what is told as done outlives this process
        self._count(block)
        self._advance(len(block))

    def restart(self) -> None:
        """Drop what is there."""
        self._out.truncate(0)
        self._advance(-min(self.position, self.file.size))
        self._begin()

    def check(self) -> None:
        """Raises Damaged where size or checksum are not the announced ones; else everything is on the disk."""
        if self.position != self.file.size:
            raise Damaged(f"{self.position} bytes came, and {self.file.size} were announced")
        if self._digest is not None and self._digest.hexdigest() != self.file.checksum:
            raise Damaged("the checksum is another than announced")
        os.fsync(self._out.fileno())

    def _begin(self) -> None:
        self.position = 0
        self._digest = self.file.digest()

    def _count(self, block: bytes) -> None:
        self.position += len(block)
        if self._digest is not None:
            self._digest.update(block)


def _receive(url: str, headers: dict[str, str], partial: Partial, policy: Policy, stop: threading.Event) -> None:
    # Compressed answers have no ranges.
    asked = {**headers, "Accept-Encoding": "identity"}
    if partial.position:
        asked["Range"] = f"bytes={partial.position}-"
    timeout = (policy.connect, policy.stall, policy.stall, policy.connect)
    with get_session().stream("GET", url, headers=asked, timeout=timeout) as response:
        if response.status_code == 416:
            raise Damaged(f"there is nothing from byte {partial.position} on, and {partial.file.size} were announced")
        hf_raise_for_status(response)
        first, total = _span(response)
        if total is not None and total != partial.file.size:
            raise Damaged(f"{total} bytes are offered, and {partial.file.size} were announced")
        if first != partial.position:  # a server without ranges
            partial.restart()
        if first != partial.position:
            raise Damaged(f"bytes from {first} on came, and those from {partial.position} on were asked for")
        for block in response.iter_bytes():
            if stop.is_set():
                raise Stopped
            partial.write(block)
    if partial.position < partial.file.size and total is None:
        raise ConnectionError("the connection was closed")


def _span(response: Any) -> tuple[int, int | None]:
    """Where an answer begins in the file, and the file's length as it says; None where it does not."""
    if response.status_code == 206:
        span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        first = span.split("-")[0]
        return int(first) if first.isdecimal() else 0, int(total) if total.isdecimal() else None
    length = response.headers.get("Content-Length", "")
    plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return 0, int(length) if plain and length.isdecimal() else None
