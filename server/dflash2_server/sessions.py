"""Login sessions of the pages: a random token in a cookie, given for a key. They end with the process."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable

LIFETIME_SECONDS = 30 * 24 * 3600
MOST_SESSIONS = 100
# Wrong keys from one address before it has to wait, and for how long: guessing stays hopeless, a typo costs nothing.
TRIES, WAIT_SECONDS = 10, 60.0
_MOST_PEERS = 1000


class Sessions:
    """Open sessions by the digest of their token; the oldest go first. `clock` is in seconds, for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._failures: dict[str, list[float]] = {}

    def open(self) -> str:
        """A new token."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._until = {key: until for key, until in self._until.items() if until > now}
            while len(self._until) >= MOST_SESSIONS:
                del self._until[next(iter(self._until))]
            self._until[_digest(token)] = now + LIFETIME_SECONDS
        return token

    def is_open(self, token: str) -> bool:
        """Looked up by digest, so that the time tells nothing of the token."""
        with self._lock:
            return self._until.get(_digest(token), 0.0) > self._clock()

    def close(self, token: str) -> None:
        with self._lock:
            self._until.pop(_digest(token), None)

    def seconds_to_wait(self, peer: str) -> float:
        """Until that address may try a key again; 0 mostly."""
        with self._lock:
            recent = [at for at in self._failures.get(peer, []) if self._clock() - at < WAIT_SECONDS]
            return WAIT_SECONDS - (self._clock() - recent[0]) if len(recent) >= TRIES else 0.0

    def failed(self, peer: str) -> None:
        """A wrong key came from there."""
        with self._lock:
            now = self._clock()
            if peer not in self._failures and len(self._failures) >= _MOST_PEERS:
                del self._failures[next(iter(self._failures))]
            recent = [at for at in self._failures.get(peer, []) if now - at < WAIT_SECONDS]
            self._failures[peer] = [*recent[-TRIES:], now]


def cookie_name(port: int) -> str:
    """Cookies do not tell ports apart: each server has its own name."""
    return f"dflash2_session_{port}"


def cookie_values(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    """The values of a cookie in a request's headers: a browser may hold several of one name, for several paths.

    Only split, not parsed: what other programs on this machine put into their cookies must not hide ours.
    """
    texts = (value.decode("latin-1") for key, value in headers if key == b"cookie")
    pairs = (part.strip().partition("=") for text in texts for part in text.split(";"))
    return [value for key, _, value in pairs if key == name]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
