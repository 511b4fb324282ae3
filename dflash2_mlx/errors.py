"""The package's exceptions. Every message names the value at fault and the remedy.

DFlashError
├── RequestError        a parameter of one request is wrong: nothing has run
│   └── PromptTooLong   the prompt does not fit the model's context
├── CheckpointError     a config or weight file is not what it must be
├── PairError           a drafter and a target do not belong together
├── TargetError         a target that cannot be tapped or rolled back
├── ModelNotFound       no such folder, no such repository, or not reachable
├── DecodeError         the target itself failed while decoding (rows that are not finite)
└── EngineBusy          the engine takes no request now: it is stopping, or stands still
    └── QueueFull       as many requests wait as may
"""

from __future__ import annotations


class DFlashError(Exception):
    """The root of the package's own errors."""


class RequestError(DFlashError, ValueError):
    """A parameter of one request is wrong; the models were not touched."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """The prompt does not fit the model's context."""


class CheckpointError(DFlashError, ValueError):
    """A checkpoint's config or weights cannot be used as they are."""


class PairError(DFlashError, ValueError):
    """A drafter and a target do not belong together."""


class TargetError(DFlashError, ValueError):
    """A target whose layers or caches the runtime does not know."""


class ModelNotFound(DFlashError, FileNotFoundError):
    """No model under that path or id."""


class DecodeError(DFlashError, RuntimeError):
    """The target failed while decoding; what was emitted before stands."""


class EngineBusy(DFlashError, RuntimeError):
    """The engine takes no request now: it is stopping, or its watchdog found it standing still."""


class QueueFull(EngineBusy):
    """As many requests wait as may; another try is worth it after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
