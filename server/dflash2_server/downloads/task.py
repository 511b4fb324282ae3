"""A download as it is shown: a frozen record. It knows no queue and no process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

State = Literal["queued", "downloading", "completed", "failed", "cancelled"]
ErrorKind = Literal["missing", "gated", "token", "offline", "disk full", "rate limit", "damaged", "other"]

STATES: tuple[State, ...] = get_args(State)
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """Why a download failed or waits; `message` names the cause, `remedy` what to do about it."""

    kind: ErrorKind
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One repository on its way. Sizes in bytes, `created` in seconds since the epoch.

    A task that is downloading and has an `error` is waiting to try again. `note` says what differs from what was
    asked for, such as a token that was left out.
    """

    id: str
    repo_id: str
    state: State = "queued"
    total_bytes: int | None = None
    done_bytes: int = 0
    rate: float = 0.0  # bytes per second, over the last seconds
    seconds_left: float | None = None
    error: TaskError | None = None
    created: float = 0.0
    path: str | None = None  # the folder, once complete
    note: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "cancelled")

    def as_dict(self) -> dict[str, Any]:
        """As JSON: for events, the API and the state file."""
        return asdict(self)
