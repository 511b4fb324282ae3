"""A queue of downloads without a network: `tick` moves it on by one second."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dflash2_mlx.errors import RequestError
from dflash2_server.downloads.search import Found
from dflash2_server.downloads.task import Task, TaskError

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
# A repository whose name holds one of these words fails so, when its turn comes.
FAILURES = {
    "missing": TaskError(kind="missing", message="there is no such repository", remedy="check the name"),
    "gated": TaskError(kind="gated", message="its owner has to let you in", remedy="ask for access on its page"),
    "token": TaskError(kind="token", message="the token is not valid", remedy="set another in Settings"),
    "offline": TaskError(kind="offline", message="the Hub cannot be reached", remedy="it goes on by itself"),
    "full": TaskError(kind="disk full", message="12.4 GB are needed, 3.1 GB are free", remedy="free some space"),
    "limit": TaskError(kind="rate limit", message="the Hub asks to wait 60 s", remedy="it goes on by itself"),
    "damaged": TaskError(kind="damaged", message="model.safetensors has another checksum", remedy="retry"),
}


class FakeDownloads:
    """`dflash2_server.downloads.queue.Downloads` in memory. One task moves at a time, 200 MB a second."""

    def __init__(self, publish: Callable[[str, dict[str, Any]], object], finished: Callable[[str, int], None]) -> None:
        self._publish = publish
        self._finished = finished
        self._tasks: dict[str, Task] = {}
        self._number = 0
        self.bytes_per_second = 200_000_000
        self.total_bytes = 1_600_000_000

    def add(self, repo_or_link: str, *, with_drafter: bool = False) -> list[Task]:
        repo = repo_or_link.removeprefix("https://huggingface.co/").strip("/")
        if not _REPO.fullmatch(repo):
            raise RequestError(f"repo_id is {repo_or_link!r}: write owner/name, or a link to it", param="repo_id")
        wanted = [repo] + ([f"z-lab/{repo.rsplit('/', 1)[-1]}-DFlash"] if with_drafter else [])
        return [self._add(each) for each in wanted]

    def tasks(self) -> list[Task]:
        return list(self._tasks.values())

    def cancel(self, id: str) -> Task:
        return self._put(replace(self._find(id), state="cancelled", rate=0.0, seconds_left=None))

    def retry(self, id: str) -> Task:
        return self._put(replace(self._find(id), state="queued", error=None))

    def remove(self, id: str) -> None:
        self._find(id)
        del self._tasks[id]
        self._publish("download", {"id": id, "state": "removed"})

    def incoming(self) -> frozenset[str]:
        return frozenset(task.repo_id for task in self._tasks.values() if task.state != "completed")

    def configure(self, *, endpoint: str | None, token: str | None) -> None:
        """Nothing is asked of a Hub."""

    def close(self) -> None:
        """Nothing runs."""

    def tick(self) -> None:
        """One second of the first task that has not ended."""
        moving = next((task for task in self._tasks.values() if not task.ended), None)
        if moving is None:
            return
        failure = next((error for word, error in FAILURES.items() if word in moving.repo_id.lower()), None)
        if failure is not None:
            self._put(replace(moving, state="failed", error=failure, rate=0.0, seconds_left=None))
            return
        done = min(self.total_bytes, moving.done_bytes + self.bytes_per_second)
        if done < self.total_bytes:
            left = (self.total_bytes - done) / self.bytes_per_second
            self._put(
                replace(
                    moving,
                    state="downloading",
                    total_bytes=self.total_bytes,
                    done_bytes=done,
                    rate=float(self.bytes_per_second),
                    seconds_left=left,
                )
            )
            return
        path = f"/models/{moving.repo_id}"
        self._put(replace(moving, state="completed", done_bytes=done, rate=0.0, seconds_left=None, path=path))
        self._finished(moving.repo_id, self.total_bytes)

    def _add(self, repo_id: str) -> Task:
        known = next((task for task in self._tasks.values() if task.repo_id == repo_id and not task.ended), None)
        if known is not None:
            return known
        self._number += 1
        return self._put(Task(id=f"t{self._number}", repo_id=repo_id, created=time.time()))

    def _put(self, task: Task) -> Task:
        self._tasks[task.id] = task
        self._publish("download", task.as_dict())
        return task

    def _find(self, id: str) -> Task:
        if id not in self._tasks:
            raise RequestError(f"no download {id!r}", param="task")
        return self._tasks[id]


async def fake_search(
    query: str, *, endpoint: str | None = None, token: str | None = None, limit: int = 20
) -> list[Found]:
    """Instead of `dflash2_server.downloads.search.search`: a few repositories with the query in their name."""
    names = ["mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3.8-27B-4bit", "z-lab/Qwen3-4B-DFlash-b16"]
    names += ["mlx-community/Llama-3.2-3B-Instruct-4bit", "meta/gated-Llama-4bit", "incoai/Qwen3.8-27B-DFlash2"]
    drafters = {names[0]: names[2], names[1]: names[5]}
    found = [
        Found(
            repo_id=name,
            downloads=90_000 // (number + 1),
            likes=120 - number,
            size=2_263_000_000 + number,
            updated="2026-10-12T08:00:00+00:00",
            gated="gated" in name,
            kind="drafter" if "DFlash" in name else "model",
            drafter=drafters.get(name),
        )
        for number, name in enumerate(names)
    ]
    return [each for each in found if query.casefold() in each.repo_id.casefold()][:limit]
