"""Kills and restarts: nothing that has come is lost, nothing goes on unseen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dflash2_mlx.errors import DFlashError, RequestError
from tests.manager.downloading import FILES, MODEL, TOTAL, Queue, content, hub, only, queue, until, wait_for_part
from tests.manager.fake_hub import FakeHub, Repo

__all__ = ["hub", "queue"]

HALF = 150_000

# A server of which nothing but its queue is there. It prints the id of its worker's process.
SERVER = """
import sys, time
from pathlib import Path
from dflash2_server.downloads.queue import Downloads
state, cache, endpoint, repo = sys.argv[1:]
downloads = Downloads(Path(state), cache=Path(cache), endpoint=endpoint)
(task,) = downloads.add(repo)
print(downloads._running[task.id].process.pid, flush=True)
time.sleep(60)
"""


def worker_of(downloads: object, id: str) -> int:
    return downloads._running[id].process.pid  # type: ignore[attr-defined]


def alive(pid: int) -> bool:
    """Whether a process that need not be ours runs; one that is dead but not yet waited for does not."""
    with suppress(OSError):
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def resumed_at(hub: FakeHub) -> list[str | None]:
    return [request.range for request in hub.asked("/cdn/") if request.method == "GET"]


def test_a_killed_worker_is_told_and_its_bytes_are_resumed(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    (task,) = downloads.add(MODEL)
    wait_for_part(queue.cache, HALF)
    os.kill(worker_of(downloads, task.id), signal.SIGKILL)
    failed = queue.heard.wait_for(MODEL, "failed")
    assert failed["error"]["kind"] == "other"
    assert "ended with -9" in failed["error"]["message"]
    hub.release()
    downloads.retry(task.id)
    done = queue.heard.wait_for(MODEL, "completed")
    assert content(Path(done["path"])) == FILES
    assert resumed_at(hub) == [None, f"bytes={HALF}-"]
    assert hub.sent == TOTAL


def test_a_killed_server_takes_its_worker_with_it_and_the_next_one_goes_on(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).hold_at = HALF
    arguments = [str(queue.state_file), str(queue.cache), hub.url, MODEL]
    with subprocess.Popen([sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            worker = int(server.stdout.readline())
            wait_for_part(queue.cache, HALF)
        finally:
            server.kill()
    until(lambda: not alive(worker))
    hub.wait_for_quiet()

    hub.release()
    downloads = queue()
    assert only(downloads).state == "downloading"
    assert only(downloads).note == "interrupted: it is resumed"
    done = queue.heard.wait_for(MODEL, "completed")
    assert content(Path(done["path"])) == FILES
    assert resumed_at(hub) == [None, f"bytes={HALF}-"]


def test_the_order_and_the_ended_ones_outlive_a_restart(hub: FakeHub, queue: Queue, tmp_path: Path) -> None:
    for name in ("org/gone", "org/second", "org/third"):
        hub.repos[name] = Repo(id=name, files=dict(FILES))
    hub.repo("org/gone").hidden = True
    first = queue(folder=tmp_path / "models")
    first.add("org/gone")
    queue.heard.wait_for("org/gone", "failed")
    hub.repo(MODEL).hold_at = HALF
    for name in (MODEL, "org/second", "org/third"):
        first.add(name)
    first.cancel(first.tasks()[3].id)
    wait_for_part(tmp_path / "models", HALF)
    first.close()
    hub.wait_for_quiet()

    again = queue()  # with the Hub cache from now on: what was begun goes where it was to go
    assert again.incoming() == {"org/gone", MODEL, "org/second", "org/third"}
    assert [task.state for task in again.tasks()] == ["failed", "downloading", "queued", "cancelled"]
    assert again.tasks()[0].error is not None
    hub.release()
    done = queue.heard.wait_for("org/second", "completed")
    assert done["path"] == str(tmp_path / "models" / "org/second")
    assert queue.heard.latest(MODEL)["path"] == str(tmp_path / "models" / MODEL)
    assert resumed_at(hub)[:2] == [None, f"bytes={HALF}-"]


def test_a_second_program_does_not_write_into_the_same_files(
    hub: FakeHub, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash2_server.downloads import staging
    from dflash2_server.downloads.download import Download
    from dflash2_server.downloads.faults import Failure
    from tests.manager.downloading import job

    monkeypatch.setattr(staging, "_LOCK_PATIENCE", 0.2)
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    downloads.add(MODEL)
    hub.wait_for_bytes(HALF)
    with pytest.raises(Failure, match="another program downloads org/model"):
        Download(job(hub, queue.cache.parent), lambda message: None).run()
    hub.release()
    queue.heard.wait_for(MODEL, "completed")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\x00\x01",
        json.dumps({"version": 2, "tasks": []}),
        json.dumps({"version": 1, "tasks": [{"id": "x"}]}),
        json.dumps({"version": 1, "tasks": [{"id": "x", "repo_id": "a/b", "state": "lost"}]}),
    ],
)
def test_a_damaged_list_is_set_aside(hub: FakeHub, queue: Queue, caplog: pytest.LogCaptureFixture, text: str) -> None:
    queue.state_file.parent.mkdir()
    queue.state_file.write_text(text)
    downloads = queue()
    assert downloads.tasks() == []
    assert "is damaged" in caplog.text
    kept = [path for path in queue.state_file.parent.iterdir() if "damaged" in path.name]
    assert [path.read_text() for path in kept] == [text]


def test_a_list_that_cannot_be_written_stops_no_download(
    hub: FakeHub, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise DFlashError("the list cannot be written: No space left on device")

    monkeypatch.setattr("dflash2_server.downloads.state.write", full)
    downloads = queue()
    downloads.add(MODEL)
    queue.heard.wait_for(MODEL, "completed")
    assert "cannot be written" in caplog.text


def test_a_save_that_is_cut_short_keeps_the_old_list(
    hub: FakeHub, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash2_mlx.settings import files
    from dflash2_server.downloads import state

    downloads = queue()
    downloads.add(MODEL)
    queue.heard.wait_for(MODEL, "completed")
    downloads.close()
    before = queue.state_file.read_text()

    def fail(*_: object) -> None:
        raise OSError("cut")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(DFlashError, match="cannot be written"):
        state.write(queue.state_file, [])
    assert queue.state_file.read_text() == before
    assert [path for path in queue.state_file.parent.iterdir() if path.suffix != ".owner"] == [queue.state_file]


def test_two_servers_do_not_share_a_queue(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).hold_at = HALF
    first = queue()
    (task,) = first.add(MODEL)
    hub.wait_for_bytes(HALF)
    second = queue()
    assert second.tasks() == []
    assert second.incoming() == {MODEL}
    with pytest.raises(RequestError, match="another server"):
        second.add("org/other")
    second.close()
    hub.release()
    queue.heard.wait_for(MODEL, "completed")
    assert [one.id for one in first.tasks()] == [task.id]
