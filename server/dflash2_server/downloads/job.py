"""What a worker process is told, and how patient it is. A job holds a token: it goes through a pipe only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When to try again. Times in seconds."""

    retries: int = 5  # failures in a row, without a byte between them, that are followed by another try
    backoff: float = 1.0  # before the first retry; doubles with each
    stall: float = 60.0  # a connection that gives nothing for so long is replaced
    connect: float = 10.0
    longest_wait: float = 600.0  # a Hub that asks for more fails the download
    connections: int = 4  # files at once: one connection alone rarely fills a line


@dataclass(frozen=True, kw_only=True)
class Job:
    """One repository to fetch into the Hub cache at `cache`, or to `folder`/owner/name where a folder is given."""

    repo_id: str
    cache: str
    folder: str | None = None
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)  # None: the stored login, where there is one
    policy: Policy = Policy()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        return cls(**{**values, "policy": Policy(**values["policy"])})
