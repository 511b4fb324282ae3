"""A worker process, seen from its parent: start, read, kill."""

from __future__ import annotations

from ..child import Child
from .job import Job

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_VERBOSITY": "error"}


class WorkerProcess(Child):
    """One download under way. The job goes through stdin: a transfer is stopped in the middle by `kill` alone."""

    def __init__(self, job: Job) -> None:
        self._secret = job.token
        super().__init__("dflash2_server.downloads.worker", line=job.to_json(), environment=_QUIET)

    def last_words(self) -> str:
        """What a process said that ended without a result, and how it ended."""
        words = " ".join(self.said)
        if self._secret:
            words = words.replace(self._secret, "[hidden]")
        return f"the download process ended with {self.returncode}" + (f": {words[-500:]}" if words else "")
