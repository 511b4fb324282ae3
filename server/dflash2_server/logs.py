"""The latest lines of the log, for the pages and the admin API, without keys and tokens."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

LOGGERS = ("dflash2_mlx", "dflash2_server", "dflash2_app", "uvicorn", "nicegui")
HIDDEN = "[hidden]"
# What looks like a secret wherever it comes from; the first group, where there is one, stays.
_PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{6,}"),
    re.compile(r"(\bbearer\s+)[^\s\"',;]+", re.IGNORECASE),
    re.compile(r"(\bx-api-key[\"']?\s*[:=,]\s*b?[\"']?)[^\s\"',;]+", re.IGNORECASE),
    re.compile(r"(\b\w*(?:api_?key|token|password|secret)[\"']?\s*[:=]\s*[\"']?)[^\s&\"',;]+", re.IGNORECASE),
    re.compile(r"(://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
_WHOLE_WORD_BELOW = 8  # a secret shorter than this may be a part of any word


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One record. `number` grows by one; `time` is in seconds since the epoch; `level` is a name such as WARNING."""

    number: int
    time: float
    level: str
    name: str
    message: str


class Redactor:
    """Replaces secrets in texts: those that were configured, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: re.Pattern[str] | None = None
        self._known: set[str] = set()
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        self._known.update(secret for secret in secrets if secret)
        alternatives = [_literally(secret) for secret in sorted(self._known, key=len, reverse=True)]
        self._secrets = re.compile("|".join(alternatives)) if alternatives else None

    def __call__(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\g<1>{HIDDEN}" if pattern.groups else HIDDEN, text)
        return text


class LogBuffer(logging.Handler):
    """The latest `keep` records. It is a handler; `attach` adds it to the loggers of this program."""

    def __init__(self, keep: int = 2000, *, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self.redact = Redactor(secrets)
        self._entries: deque[tuple[int, LogEntry]] = deque(maxlen=keep)
        self._number = 0
        self._entries_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.redact(self.format(record))
        except Exception:
            self.handleError(record)
            return
        with self._entries_lock:
            self._number += 1
            entry = LogEntry(
                number=self._number, time=record.created, level=record.levelname, name=record.name, message=message
            )
            self._entries.append((record.levelno, entry))

    def entries(self, level: str | None = None, text: str = "", limit: int = 500, after: int = 0) -> list[LogEntry]:
        """The latest, oldest first: of that level or above, with that text in name or message, after that number.

        Raises ValueError for an unknown level.
        """
        least = 0 if level is None else level_number(level)
        wanted = text.casefold()
        with self._entries_lock:
            kept = list(self._entries)
        found = [
            entry
            for number, entry in kept
            if entry.number > after
            and number >= least
            and (wanted in entry.message.casefold() or wanted in entry.name.casefold())
        ]
        return found[-limit:] if limit > 0 else []

    def attach(self, names: Iterable[str] = LOGGERS) -> None:
        for name in names:
            logging.getLogger(name).addHandler(self)

    def detach(self, names: Iterable[str] = LOGGERS) -> None:
        for name in names:
            logging.getLogger(name).removeHandler(self)


def level_number(level: str) -> int:
    """Raises ValueError for a name that is no level's."""
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ValueError(f"level is {level!r}: use debug, info, warning, error or critical")
    return known[level.upper()]


def _literally(secret: str) -> str:
    literal = re.escape(secret)
    return rf"(?<!\w){literal}(?!\w)" if len(secret) < _WHOLE_WORD_BELOW else literal
