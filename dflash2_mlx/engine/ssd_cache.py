"""The disk tier of the prefix cache: what one pair's conversations had computed when it left the RAM.

One file for each end of a branch, in a folder of the pair's own. Whatever is wrong with a file costs the file, never a
request; a write that fails turns the tier off until its settings change.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..pairs import Pair
from .prefix_limits import CacheFigures
from .prefix_tree import common_prefix
from .ssd_file import SUFFIX, Damaged, Packed, load, read_header, save
from .ssd_writer import Writer

# A file is read when it saves so many tokens of prefill, and at least one for so many that the file holds: reading
# takes some 0.02 to 0.1 ms a token (64 to 256 KB at 3 GB/s), prefill 0.2 to 5 ms. A judgement, not measured.
WORTH, _FILE_A_TOKEN = 256, 8
# Bytes: what is evicted while so much waits for a slow disk is let go, since it would go on taking memory.
_MOST_PENDING = 4 << 30
_WAIT = 10.0  # seconds that a request waits for the file of a conversation that was evicted a moment ago
_ABANDONED = 3600.0  # seconds after which an unfinished file has no writer any more

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Entry:
    """A file, or one that is being written. `used` is in seconds since the epoch."""

    path: Path
    tokens: tuple[int, ...]
    marks: tuple[int, ...]
    nbytes: int
    used: float
    written: threading.Event = field(default_factory=threading.Event)


def pair_folder(root: Path, model_name: str) -> Path:
    """Where the files of a model's pair lie: other drafters and settings of that model take the same place."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(model_name).name)[:40]
    return root / f"prefixes-{readable}-{hashlib.sha256(model_name.encode()).hexdigest()[:12]}"


def remove_files(root: Path, model_name: str) -> None:
    """Forget everything on disk of a model's pair."""
    shutil.rmtree(pair_folder(root, model_name), ignore_errors=True)


def fingerprint_of(pair: Pair) -> str | None:
    """Stands for all that decides what rows and states mean; None for a pair that was not loaded from folders."""
    if pair.identity is None:
        return None
    drafter = pair.drafter
    drafts = (drafter.config, drafter.quantization, str(drafter.dtype)) if drafter else None
    versions = (version("mlx"), version("mlx-lm"), str(mx.default_device()))
    return hashlib.sha256(repr((pair.identity, str(pair.target.dtype), drafts, versions)).encode()).hexdigest()


class SsdStore:
    """The files of one pair, at most `limit` bytes, the least recently used deleted first.

    With `by_rows` a file serves any prefix of its tokens, else those that end at its marks. Used on the engine's
    thread and on the writer's, with a lock around the index.
    """

    def __init__(
        self, folder: Path, fingerprint: str, limit: int, writer: Writer, figures: CacheFigures, *, by_rows: bool
    ) -> None:
        self.folder, self.limit, self._by_rows = folder, limit, by_rows
        self._fingerprint, self._writer, self._figures = fingerprint, writer, figures
        self._entries: list[Entry] = []
        self._off = False
        self._lock = threading.Lock()
        try:
            self._scan()
        except OSError as error:
            self.fail(error)

    def find(self, tokens: tuple[int, ...], known: int) -> Entry | None:
        """The file that saves most of `tokens`, where that is worth it beside the `known` ones."""
        best, most = None, 0
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            length = common_prefix(entry.tokens, tokens)
            if not self._by_rows:
                length = max((mark for mark in entry.marks if mark <= length), default=0)
            gain = length - known
            if gain > most and gain >= WORTH and gain * _FILE_A_TOKEN >= len(entry.tokens):
                best, most = entry, gain
        return best

    def read(self, entry: Entry) -> Any:
        """The tree that was written; None where the file is lost, damaged or late."""
        if not entry.written.wait(_WAIT) or entry not in self._entries:
            return None
        try:
            if read_header(entry.path).tokens != entry.tokens:
                raise Damaged("it is another one than it was")
            tree = load(entry.path)
        except (Damaged, OSError) as error:
            self.drop(entry, error)
            return None
        entry.used = time.time()
        with suppress(OSError):  # it only orders what is deleted first
            os.utime(entry.path, (entry.used, entry.used))
        return tree

    def drop(self, entry: Entry, why: object) -> None:
        """Delete a file that is of no use, and count it."""
        log.warning("SSD cache: %s is dropped: %s", entry.path.name, why)
        with self._lock:
            self._forget(entry)
            self._figures.ssd_dropped += 1

    def holds(self, tokens: tuple[int, ...]) -> bool:
        """Whether some file, perhaps still to be written, serves all of `tokens`."""
        with self._lock:
            return any(self._serves(entry, tokens) for entry in self._entries)

    def _serves(self, entry: Entry, tokens: tuple[int, ...]) -> bool:
        whole = entry.tokens[: len(tokens)] == tokens
        return whole and (self._by_rows or len(tokens) in entry.marks)

    def write(self, packed: Packed, *, always: bool = False) -> None:
        """Hand a prefix to the writer. `always`: also where much waits already."""
        if self._off or packed.nbytes > self.limit:
            return
        if not always and self._writer.pending > _MOST_PENDING:
            log.info("SSD cache: a prefix of %d tokens is let go: the disk is slow", len(packed.tokens))
            return
        path = self.folder / f"{uuid.uuid4().hex}{SUFFIX}"
        entry = Entry(path, packed.tokens, packed.marks, packed.nbytes, time.time())
        with self._lock:
            self._entries.append(entry)
            self._count()
        self._writer.add(packed.nbytes, lambda: self._write(entry, packed))

    def set_limit(self, limit: int) -> None:
        """Change the limit, and try again where a write had failed."""
        with self._lock:
            self.limit, self._off, self._figures.ssd_error = limit, False, None
            self._make_room()

    def clear(self) -> None:
        """Delete everything and write nothing more."""
        with self._lock:
            self._off = True
            for entry in self._entries:
                self._forget(entry)

    def _write(self, entry: Entry, packed: Packed) -> None:
        """On the writer's thread; raises nothing."""
        try:
            with self._lock:
                wanted = entry in self._entries and not self._off
                self._make_room()
            if wanted:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                entry.nbytes = save(entry.path, packed, self._fingerprint)
                self._written(entry)
            else:
                self._give_up(entry)
        except Exception as error:  # of the disk, or of MLX, which tells of a full one by a RuntimeError
            self._give_up(entry)
            self.fail(error)
        finally:
            entry.written.set()

    def _written(self, entry: Entry) -> None:
        """Files that the new one makes needless go."""
        with self._lock:
            if entry not in self._entries:
                entry.path.unlink(missing_ok=True)
                return
            for other in self._entries:
                if other is not entry and other.written.is_set() and self._serves(entry, other.tokens):
                    self._forget(other)
            self._figures.ssd_writes += 1
            self._make_room()

    def _give_up(self, entry: Entry) -> None:
        with self._lock:
            self._forget(entry)

    def fail(self, error: Exception) -> None:
        """Write nothing more until the settings change, and say why."""
        with self._lock:
            if self._off:
                return
            self._off = True
            self._figures.ssd_error = f"{self.folder} cannot be written: {error}"
        log.error("SSD cache: off until its settings change: %s", self._figures.ssd_error)

    def _scan(self) -> None:
        """Build the index from the headers of what lies in the folder."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                used = path.stat().st_mtime
            except OSError:  # another process has just deleted it
                continue
            if path.is_dir():
                continue
            if path.stem.endswith(".part"):
                if time.time() - used > _ABANDONED:
                    path.unlink(missing_ok=True)
                continue
            try:
                header = read_header(path)
                if header.fingerprint != self._fingerprint:
                    raise Damaged("it is of another pair, or of other settings or versions")
            except Damaged as error:
                self.drop(Entry(path, (), (), 0, used), error)
                continue
            except OSError as error:
                log.warning("SSD cache: %s is left alone: %s", path.name, error)
                continue
            entry = Entry(path, header.tokens, header.marks, header.nbytes, used)
            entry.written.set()
            self._entries.append(entry)
        with self._lock:
            self._make_room()

    def _make_room(self) -> None:
        """Delete what was used least recently until the rest fits, with what is being written; under the lock."""
        by_age = sorted(self._entries, key=lambda entry: entry.used)
        excess = sum(entry.nbytes for entry in by_age) - self.limit
        for entry in by_age:
            if excess <= 0:
                break
            excess -= entry.nbytes
            self._forget(entry)
        self._count()

    def _forget(self, entry: Entry) -> None:
        """Under the lock."""
        self._entries = [other for other in self._entries if other is not entry]
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("SSD cache: %s stays: %s", entry.path, error)
        self._count()

    def _count(self) -> None:
        self._figures.ssd_bytes = sum(entry.nbytes for entry in self._entries)
        self._figures.ssd_entries = len(self._entries)
