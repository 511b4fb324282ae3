"""Errors of the Hub, the network and the disk, told apart: what each means, what helps, whether to try again."""

from __future__ import annotations

import errno
import re
import time
from email.utils import parsedate_to_datetime

from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.errors import HTTPError as HubError  # type: ignore[attr-defined]

from dflash2_mlx.errors import DFlashError

from .task import ErrorKind, TaskError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_RESETS = re.compile(r"\bt\s*=\s*(\d+)")  # in the Hub's RateLimit header: seconds until the count starts anew
_ADDRESS = re.compile(r"https?://\S+")
_UNNAMED_WAIT = 60.0  # seconds, after a 429 that tells no time


class Failure(DFlashError):
    """A download or a search that failed. `transient`: another try may work, after `wait` seconds where given."""

    def __init__(self, error: TaskError, *, transient: bool = False, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient
        self.wait = wait


class Damaged(Exception):
    """What came is not what the Hub announced; the message says how."""


def failure(kind: ErrorKind, message: str, remedy: str, *, transient: bool = False) -> Failure:
    return Failure(TaskError(kind=kind, message=message, remedy=remedy), transient=transient)


def classify(error: Exception, what: str, *, page: str = "", token: bool = False, refused: bool = False) -> Failure:
    """The Failure that an exception stands for.

    `what` is a repository or one of its files, `page` the repository's address, `token` whether one was sent, and
    `refused` whether one was left out because the Hub had refused it.
    """
    if isinstance(error, Failure):
        return error
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return classify(error.__cause__, what, page=page, token=token, refused=refused)
    if isinstance(error, HfHubHTTPError):
        return _of_status(error, what, page, token=token, refused=refused)
    if isinstance(error, OfflineModeIsEnabled):
        return failure("offline", f"{what}: HF_HUB_OFFLINE is set", "unset it, and start the server again")
    if isinstance(error, (HubError, LocalEntryNotFoundError, ConnectionError, TimeoutError)):
        remedy = "check the connection and the endpoint; a retry resumes from what is here"
        return failure("offline", f"{what}: {cause(error)}", remedy, transient=True)
    if isinstance(error, OSError) and error.errno in _FULL:
        return failure("disk full", f"{what}: the disk is full", "free some space; a retry resumes from what is here")
    if isinstance(error, OSError):
        return failure("other", f"{what}: {error}", "check that the folder exists and may be written to")
    if isinstance(error, Damaged):
        remedy = "retry; where it comes again, the repository itself or a mirror is damaged"
        return failure("damaged", f"{what}: {error}", remedy)
    return failure("other", f"{what}: {type(error).__name__}: {error}", "retry; the log may say more")


def refuses_token(error: Exception) -> bool:
    """Whether the Hub answered 401, as it does to a bad or stale token also where none is needed."""
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 401


def cause(error: BaseException) -> str:
    """One line, also for the exceptions that have no text. No addresses: those of storage are signed."""
    text = _ADDRESS.sub("…", " ".join(str(error).split()))
    return text or type(error).__name__


def _of_status(error: HfHubHTTPError, what: str, page: str, *, token: bool, refused: bool) -> Failure:
    status = error.response.status_code
    login = "set another token (Settings, or hf auth login)"
    if refused and status in (401, 403, 404):
        return failure("token", f"{what}: the Hub refuses the token, and without one answers {status}", login)
    if isinstance(error, GatedRepoError):
        accept = f"accept its terms at {page or 'its page'}" + ("" if token else ", and set a token of that account")
        return failure("gated", f"{what} is gated, and this account has no access ({status})", accept)
    if isinstance(error, DisabledRepoError):
        return failure("missing", f"{what} was disabled on the Hub ({status})", "choose another repository")
    if isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError)) or status == 404:
        remedy = "check the spelling; a private one needs a token with access (Settings, or hf auth login)"
        return failure("missing", f"{what} is not on the Hub, or private ({status})", remedy)
    if status == 401:
        return failure("token", f"{what}: the Hub refuses the token (401)", login)
    if status == 403:
        remedy = "give the token read access to it" if token else "set a token with access (Settings)"
        return failure("token", f"{what}: access is denied (403)", remedy)
    if status == 429:
        return _rate_limit(error, what, token)
    if status >= 500 or status == 408:
        again = failure("other", f"{what}: the Hub answers {status}", "try again later", transient=True)
        again.wait = _told(error)
        return again
    return failure("other", f"{what}: the Hub answers {status}: {error.server_message or ''}".rstrip(": "), "retry")


def _rate_limit(error: HfHubHTTPError, what: str, token: bool) -> Failure:
    told = _told(error)
    wait = _UNNAMED_WAIT if told is None else told
    remedy = "wait" if token else "wait, or set a token (Settings): with one the limits are higher"
    message = f"{what}: too many requests (429), another is allowed in {wait:.0f} s"
    return Failure(TaskError(kind="rate limit", message=message, remedy=remedy), transient=True, wait=wait)


def _told(error: HfHubHTTPError) -> float | None:
    """Seconds to wait, as the answer has them: a number, a date, or in the Hub's own header."""
    after = error.response.headers.get("Retry-After", "").strip()
    if after.isdecimal():
        return float(after)
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError):
        pass
    resets = _RESETS.search(error.response.headers.get("RateLimit", ""))
    return float(resets.group(1)) if resets else None
