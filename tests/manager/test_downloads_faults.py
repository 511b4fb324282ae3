"""One download against a hub that misbehaves: each error is told apart, and what can be waited out is."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from dflash2_server.downloads import transfer
from dflash2_server.downloads.download import Download
from dflash2_server.downloads.faults import Failure
from dflash2_server.downloads.job import Job
from dflash2_server.downloads.task import TaskError
from tests.manager.downloading import FAST, FILES, MODEL, TOKEN, TOTAL, WEIGHTS, content, hub, job
from tests.manager.fake_hub import ALWAYS, FakeHub, Repo

__all__ = ["hub"]


class Run:
    """A download that was run to its end."""

    def __init__(self, job: Job, **values: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self.waits: list[TaskError] = []
        self.path: Path | None = None
        self.error: TaskError | None = None
        self.download = Download(job, self.messages.append, **values)
        meter = self.download.meter
        told = meter.wait

        def listen(error: TaskError | None) -> None:
            if error is not None:
                self.waits.append(error)
            told(error)

        meter.wait = listen  # type: ignore[method-assign]
        try:
            self.path = self.download.run()
        except Failure as failure:
            self.error = failure.error

    @property
    def notes(self) -> list[str]:
        return [message["note"] for message in self.messages if message["event"] == "note"]


def ranges(hub: FakeHub) -> list[str | None]:
    return [request.range for request in hub.asked("/cdn/") if request.method == "GET"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_model_comes_whole_and_nothing_else(hub: FakeHub, tmp_path: Path, folder: bool) -> None:
    into = str(tmp_path / "models") if folder else None
    run = Run(job(hub, tmp_path, folder=into))
    assert run.error is None
    assert run.path is not None
    assert content(run.path) == FILES
    assert run.download.meter.reading() == {"done": TOTAL, "waiting": None}
    assert not [request for request in hub.requests if "gguf" in request.path or ".bin" in request.path]
    left = {path.name for path in tmp_path.rglob("*") if "incoming" in path.name}
    assert left == set()
    if folder:
        assert run.path == tmp_path / "models" / MODEL


def refuse(**faults: Any) -> Callable[[Repo], None]:
    def apply(repo: Repo) -> None:
        for name, value in faults.items():
            setattr(repo, name, value)

    return apply


@pytest.mark.parametrize(
    ("faults", "token", "kind", "says"),
    [
        (refuse(hidden=True), None, "missing", "is not on the Hub, or private"),
        (refuse(hidden=True), "good", "missing", "is not on the Hub, or private"),
        (refuse(private=True), None, "missing", "needs a token with access"),
        (refuse(private=True), "stale", "token", "refuses the token"),
        (refuse(gated=True), None, "gated", "and set a token of that account"),
        (refuse(gated=True), "good", "gated", f"/{MODEL}"),
        (refuse(gated=True), "stale", "token", "refuses the token"),
        (refuse(limited=ALWAYS, retry_after="4000"), None, "rate limit", "in 4000 s: wait, or set a token"),
        (refuse(limited=ALWAYS, retry_after="0"), None, "rate limit", "too many requests"),
        (refuse(broken=ALWAYS), None, "other", "answers 503"),
        (refuse(drop_at=5000, drops=ALWAYS), None, "offline", "model.safetensors of org/model, at byte 5000"),
        (refuse(short=ALWAYS), None, "damaged", "307199 bytes are offered, and 307200 were announced"),
        (refuse(corrupt=ALWAYS), None, "damaged", "checksum"),
        (refuse(files={"model.gguf": b"G"}), None, "other", "no config.json and no .safetensors file, but .gguf"),
        (refuse(files={**FILES, "config.json": b"{"}), None, "damaged", "config.json"),
        (refuse(files={**FILES, "config.json": b"[]"}), None, "damaged", "holds list"),
    ],
)
def test_each_refusal_is_told_apart(
    hub: FakeHub, tmp_path: Path, faults: Callable[[Repo], None], token: str | None, kind: str, says: str
) -> None:
    hub.tokens.add("good")
    faults(hub.repo(MODEL))
    run = Run(job(hub, tmp_path, token=token))
    assert run.error is not None
    assert run.error.kind == kind
    assert says in str(run.error)
    assert run.error.remedy
    assert "Signature" not in str(run.error)
    assert not list(tmp_path.rglob("snapshots"))


def test_no_connection_at_all(hub: FakeHub, tmp_path: Path) -> None:
    hub.offline()
    run = Run(job(hub, tmp_path))
    assert run.error is not None
    assert run.error.kind == "offline"
    assert len(run.waits) == FAST.retries
    assert "resumes" in run.error.remedy


def test_the_hubs_own_offline_switch_is_named(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    run = Run(job(hub, tmp_path))
    assert run.error is not None
    assert run.error.kind == "offline"
    assert "HF_HUB_OFFLINE" in run.error.message
    assert run.waits == []


@pytest.mark.parametrize(
    ("faults", "kind", "waits"),
    [
        (refuse(broken=3), "other", 3),
        (refuse(limited=2, retry_after="0"), "rate limit", 2),
        (refuse(limited=1, retry_after=formatdate(time.time() - 5, usegmt=True)), "rate limit", 1),
        (refuse(drop_at=5000, drops=1), "offline", 1),
        (refuse(drop_at=0, drops=4), "offline", 4),
        (refuse(short=1), None, 0),
        (refuse(corrupt=1), None, 0),
        (refuse(without_blobs=True), None, 0),
        (refuse(drop_at=5000, drops=1, without_ranges=True), "offline", 1),
    ],
)
def test_what_passes_is_waited_out(
    hub: FakeHub, tmp_path: Path, faults: Callable[[Repo], None], kind: str | None, waits: int
) -> None:
    faults(hub.repo(MODEL))
    run = Run(job(hub, tmp_path))
    assert run.error is None
    assert run.path is not None
    assert content(run.path) == FILES
    assert [wait.kind for wait in run.waits] == [kind] * waits
    assert run.download.meter.reading()["done"] == TOTAL


def test_a_dropped_connection_goes_on_from_its_byte(hub: FakeHub, tmp_path: Path) -> None:
    repo = hub.repo(MODEL)
    repo.drop_at, repo.drops = 100_000, 1
    assert Run(job(hub, tmp_path)).error is None
    assert ranges(hub) == [None, "bytes=100000-"]
    assert hub.sent == TOTAL


def test_progress_between_drops_is_no_failure_in_a_row(hub: FakeHub, tmp_path: Path) -> None:
    """More drops than retries, each further on."""
    repo = hub.repo(MODEL)
    repo.drops = 1
    drops = iter(range(50_000, 300_001, 50_000))
    policy = replace(FAST, retries=1)
    repo.drop_at = next(drops)
    download = Download(job(hub, tmp_path, policy=policy), lambda message: None)
    told = download.meter.wait

    def fall_further(error: TaskError | None) -> None:
        told(error)
        repo.drop_at, repo.drops = next(drops, None), 1

    download.meter.wait = fall_further  # type: ignore[method-assign]
    assert content(download.run()) == FILES
    assert len(ranges(hub)) == 7


def test_a_transfer_that_stands_still_is_begun_again(hub: FakeHub, tmp_path: Path) -> None:
    repo = hub.repo(MODEL)
    repo.hold_at, repo.holds = 50_000, 1
    run = Run(job(hub, tmp_path, policy=replace(FAST, stall=0.3)))
    assert run.error is None
    assert [wait.kind for wait in run.waits] == ["offline"]
    assert ranges(hub) == [None, "bytes=50000-"]


def test_retry_after_is_obeyed(hub: FakeHub, tmp_path: Path) -> None:
    repo = hub.repo(MODEL)
    repo.limited, repo.retry_after = 1, "1"
    began = time.monotonic()
    run = Run(job(hub, tmp_path))
    assert run.error is None
    assert time.monotonic() - began >= 1
    assert "another is allowed in 1 s" in run.waits[0].message


@pytest.mark.parametrize("stored", [False, True])
def test_a_stale_token_does_not_keep_from_public_models(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    if stored:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = Run(job(hub, tmp_path, token=None if stored else TOKEN))
    assert run.error is None
    assert len(run.notes) == 1
    assert "refused the token" in run.notes[0]
    assert [request.authorization is not None for request in hub.requests] == [True] + [False] * (len(hub.requests) - 1)


def test_a_valid_token_opens_a_private_repository_and_stays_with_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.tokens.add(TOKEN)
    hub.repo(MODEL).private = True
    run = Run(job(hub, tmp_path, token=TOKEN))
    assert run.error is None
    assert {request.authorization for request in hub.asked("/api/")} == {f"Bearer {TOKEN}"}
    assert {request.authorization for request in hub.asked("/cdn/")} == {None}  # another host


def test_a_disk_without_room_is_told_before_the_transfer(hub: FakeHub, tmp_path: Path) -> None:
    run = Run(job(hub, tmp_path), room=lambda: 1000)
    assert run.error is not None
    assert run.error.kind == "disk full"
    assert "needs 0.00 GB more" in run.error.message
    assert hub.sent == 0


def test_a_disk_that_fills_up_is_told_and_resumed(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = transfer.Partial.write

    def full(self: transfer.Partial, block: bytes) -> None:
        if self.position + len(block) > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, block)

    monkeypatch.setattr(transfer.Partial, "write", full)
    run = Run(job(hub, tmp_path))
    assert run.error is not None
    assert run.error.kind == "disk full"
    assert run.waits == []
    monkeypatch.setattr(transfer.Partial, "write", write)
    again = Run(job(hub, tmp_path))
    assert again.error is None
    assert again.messages[0]["done"] > 100_000  # of the plan: what was there


@pytest.mark.parametrize("name", ["x.part", "x"])
def test_a_beginning_of_other_content_is_found_out(hub: FakeHub, tmp_path: Path, name: str) -> None:
    download = Download(job(hub, tmp_path), lambda message: None)
    checksum = hub.repo(MODEL).sibling("model.safetensors")["lfs"]["sha256"]
    staging = download._staging.path
    staging.mkdir(parents=True)
    (staging / name.replace("x", checksum)).write_bytes(b"?" * 1000)
    assert content(download.run())["model.safetensors"] == WEIGHTS


def test_what_is_in_the_cache_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    assert Run(job(hub, tmp_path)).error is None
    hub.repo(MODEL).files["generation_config.json"] = b'{"temperature": 1}'
    sent = hub.sent
    run = Run(job(hub, tmp_path))
    assert run.path is not None
    assert content(run.path) == {**FILES, "generation_config.json": b'{"temperature": 1}'}
    assert hub.sent - sent == len(b'{"temperature": 1}')


def test_a_folder_with_other_files_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    mine = tmp_path / "models" / MODEL
    mine.mkdir(parents=True)
    (mine / "config.json").write_text("mine")
    run = Run(job(hub, tmp_path, folder=str(tmp_path / "models")))
    assert run.error is not None
    assert "already there" in run.error.message
    assert content(mine) == {"config.json": b"mine"}


def test_files_of_the_same_content_and_in_folders_come_all(hub: FakeHub, tmp_path: Path) -> None:
    hub.repo(MODEL).files.update({"sub/a.json": b"{}", "sub/b.json": b"{}", "empty.txt": b""})
    for folder in (None, str(tmp_path / "models")):
        run = Run(job(hub, tmp_path, folder=folder))
        assert run.path is not None
        assert content(run.path) == {**FILES, "sub/a.json": b"{}", "sub/b.json": b"{}", "empty.txt": b""}


def test_a_name_that_leaves_the_repository_is_not_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.repo(MODEL).files.update({"../../evil.json": b"{}", "/etc/evil.json": b"{}", "a/../../evil.txt": b""})
    run = Run(job(hub, tmp_path, folder=str(tmp_path / "models")))
    assert run.path is not None
    assert content(run.path) == FILES
    assert not list(tmp_path.rglob("evil*"))


def test_the_jobs_representation_has_no_token(hub: FakeHub, tmp_path: Path) -> None:
    made = job(hub, tmp_path, token=TOKEN)
    assert TOKEN not in repr(made)
    assert Job.from_json(made.to_json()) == made
