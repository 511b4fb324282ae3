"""What the tests of downloads share: a hub, a place for everything, and a listener that can wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from dflash2_server.downloads.job import Job, Policy
from dflash2_server.downloads.queue import Downloads
from dflash2_server.downloads.task import Task
from tests.manager.fake_hub import FakeHub

MODEL = "org/model"
WEIGHTS = bytes(range(256)) * 1200  # 307,200 bytes
FILES = {
    "config.json": b'{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16}',
    "tokenizer.json": b'{"version": "1.0"}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
OTHERS = {
    "README.md": b"# hello",
    "model.gguf": b"G" * 5000,
    "pytorch_model.bin": b"B" * 5000,
    "a/consolidated.pth": b"",
}
TOTAL = sum(map(len, FILES.values()))
TOKEN = "hf_AbCdEfGhIjKlMnOp"
FAST = Policy(backoff=0.01, stall=5.0, connect=5.0)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one model, and this process and its children allowed to ask it, without anybody's login."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "home" / "tokens"))
    with FakeHub({MODEL: {**FILES, **OTHERS}}) as fake:
        yield fake


def job(hub: FakeHub, tmp_path: Path, **values: Any) -> Job:
    return Job(**{"repo_id": MODEL, "cache": str(tmp_path / "cache"), "endpoint": hub.url, "policy": FAST, **values})


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """For what only the disk or another process can tell."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_part(root: Path, size: int) -> None:
    """Until a partial file below a folder has a size or more: what the hub has sent may still be in a socket."""

    def reached() -> bool:
        with suppress(FileNotFoundError):  # complete, and renamed, between the two looks
            return any(path.stat().st_size >= size for path in root.rglob("*.part"))
        return False

    until(reached)


class Listener:
    """Hears what a queue publishes, and waits for it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.finished: list[str] = []
        self._changed = threading.Condition()

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        assert kind == "download"
        with self._changed:
            self.events.append(data)
            self._changed.notify_all()

    def finish(self, repo_id: str) -> None:
        with self._changed:
            self.finished.append(repo_id)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object], timeout: float = 15.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), self.events[-3:]

    def wait_for(self, repo_id: str, state: str) -> dict[str, Any]:
        """The latest event of a repository, once it has that state."""
        self.wait(lambda: self.latest(repo_id).get("state") == state)
        return self.latest(repo_id)

    def latest(self, repo_id: str) -> dict[str, Any]:
        return next((event for event in reversed(self.events) if event["repo_id"] == repo_id), {})

    def of(self, repo_id: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["repo_id"] == repo_id]


class Queue:
    """Makes queues of one state file, and closes them."""

    def __init__(self, hub: FakeHub, tmp_path: Path) -> None:
        self.heard = Listener()
        self.state_file = tmp_path / "state" / "downloads.json"
        self.cache = tmp_path / "cache"
        self._hub = hub
        self._made: list[Downloads] = []

    def __call__(self, **values: Any) -> Downloads:
        given = {"endpoint": self._hub.url, "cache": self.cache, "policy": FAST, **values}
        given = {"publish": self.heard.publish, "finished": self.heard.finish, **given}
        made = Downloads(self.state_file, **given)
        self._made.append(made)
        return made

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def queue(hub: FakeHub, tmp_path: Path) -> Iterator[Queue]:
    made = Queue(hub, tmp_path)
    yield made
    made.close()


def only(downloads: Downloads) -> Task:
    (task,) = downloads.tasks()
    return task
