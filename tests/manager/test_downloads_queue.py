"""The queue: order, progress, cancel, retry, pairs, and what may never be written down."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import TargetFacts
from dflash2_server.downloads.rate import Rate
from tests.manager.downloading import FILES, MODEL, TOKEN, TOTAL, Queue, content, hub, only, queue, wait_for_part
from tests.manager.fake_hub import FakeHub, Repo

__all__ = ["hub", "queue"]

HALF = 150_000


def test_a_download_from_a_link_to_its_end(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).slow = 300_000
    downloads = queue()
    began = time.monotonic()
    (task,) = downloads.add(f"{hub.url}/{MODEL}/tree/main?library=mlx")
    assert downloads.incoming() == {MODEL}
    done = queue.heard.wait_for(MODEL, "completed")
    queue.heard.wait(lambda: queue.heard.finished == [MODEL])
    assert done == only(downloads).as_dict()
    assert (done["id"], done["done_bytes"], done["total_bytes"], done["error"]) == (task.id, TOTAL, TOTAL, None)
    assert content(Path(done["path"])) == FILES
    assert downloads.incoming() == frozenset()

    states = [event["state"] for event in queue.heard.of(MODEL)]
    assert states[0] == "queued"
    assert set(states) == {"queued", "downloading", "completed"}
    under_way = [event for event in queue.heard.of(MODEL) if event["rate"] > 0]
    counts = [event["done_bytes"] for event in under_way]
    assert counts == sorted(counts)
    assert 2 <= len(counts) <= 2 + 4.5 * (time.monotonic() - began)
    assert all(event["seconds_left"] >= 0 for event in under_way)


def test_one_after_the_other_in_order(hub: FakeHub, queue: Queue) -> None:
    names = [MODEL, "org/second", "org/third"]
    for name in names[1:]:
        hub.repos[name] = Repo(id=name, files=dict(FILES))
    hub.repo("org/second").hidden = True
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    for name in names:
        downloads.add(name)
    hub.wait_for_bytes(HALF)
    assert [task.state for task in downloads.tasks()] == ["downloading", "queued", "queued"]
    assert downloads.incoming() == set(names)
    hub.release()
    queue.heard.wait_for("org/third", "completed")
    assert [task.state for task in downloads.tasks()] == ["completed", "failed", "completed"]
    assert [event["repo_id"] for event in queue.heard.events if event["state"] == "downloading"] == sorted(
        (event["repo_id"] for event in queue.heard.events if event["state"] == "downloading"), key=names.index
    )
    assert downloads.incoming() == {"org/second"}


def test_a_repository_is_not_queued_twice(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    (first,) = downloads.add(MODEL)
    (second,) = downloads.add(f"https://huggingface.co/{MODEL}")
    assert second.id == first.id
    assert only(downloads).id == first.id


def test_cancel_stops_the_bytes_in_the_middle_of_a_file_and_retry_resumes(hub: FakeHub, queue: Queue) -> None:
    repo = hub.repo(MODEL)
    repo.slow = 100_000
    downloads = queue()
    (task,) = downloads.add(MODEL)
    wait_for_part(queue.cache, 30_000)
    began = time.monotonic()
    assert downloads.cancel(task.id).state == "cancelled"
    hub.wait_for_quiet(2.0)
    assert time.monotonic() - began < 2.0
    sent = hub.sent
    assert sent < TOTAL
    assert downloads.incoming() == {MODEL}

    repo.slow = None
    assert downloads.retry(task.id).error is None
    queue.heard.wait_for(MODEL, "completed")
    resumed = hub.asked("/cdn/")[-1].range
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) >= 30_000
    assert "failed" not in {event["state"] for event in queue.heard.events}


def test_one_that_waits_is_cancelled_without_having_begun(hub: FakeHub, queue: Queue) -> None:
    hub.repos["org/second"] = Repo(id="org/second", files=dict(FILES))
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    downloads.add(MODEL)
    (second,) = downloads.add("org/second")
    downloads.cancel(second.id)
    hub.release()
    queue.heard.wait_for(MODEL, "completed")
    assert hub.asked("org/second") == []


def test_a_forgotten_task_leaves_nothing_behind(hub: FakeHub, queue: Queue) -> None:
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    (task,) = downloads.add(MODEL)
    wait_for_part(queue.cache, HALF)
    with pytest.raises(RequestError, match="cancel it first"):
        downloads.remove(task.id)
    downloads.cancel(task.id)
    hub.wait_for_quiet()
    assert list(queue.cache.rglob("*.part"))
    downloads.remove(task.id)
    assert downloads.tasks() == []
    assert downloads.incoming() == frozenset()
    assert list(queue.cache.glob("models--*")) == []
    assert queue.heard.latest(MODEL)["state"] == "removed"


def test_a_completed_task_is_forgotten_and_its_model_stays(hub: FakeHub, queue: Queue) -> None:
    downloads = queue()
    (task,) = downloads.add(MODEL)
    path = Path(queue.heard.wait_for(MODEL, "completed")["path"])
    downloads.remove(task.id)
    assert content(path) == FILES


def test_added_again_it_is_checked_and_stays_listed_meanwhile(hub: FakeHub, queue: Queue) -> None:
    downloads = queue()
    (first,) = downloads.add(MODEL)
    queue.heard.wait_for(MODEL, "completed")
    queue.heard.wait(lambda: queue.heard.finished)
    sent = hub.sent
    (second,) = downloads.add(MODEL)
    assert downloads.incoming() == frozenset()
    queue.heard.wait(lambda: len(queue.heard.finished) == 2)
    assert only(downloads).id == second.id != first.id
    assert hub.sent == sent


def test_what_cannot_be_done_is_refused(hub: FakeHub, queue: Queue) -> None:
    downloads = queue()
    (task,) = downloads.add(MODEL)
    queue.heard.wait_for(MODEL, "completed")
    for action in (downloads.cancel, downloads.retry, downloads.remove, downloads.task):
        with pytest.raises(RequestError, match="no download 'nothing'"):
            action("nothing")
    with pytest.raises(RequestError, match="is completed already"):
        downloads.cancel(task.id)
    with pytest.raises(RequestError, match="is completed: nothing to retry"):
        downloads.retry(task.id)
    with pytest.raises(RequestError, match="repo_id is 'nothing'"):
        downloads.add("nothing")


def test_a_folder_shows_a_model_only_when_it_is_whole(hub: FakeHub, queue: Queue, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    hub.repo(MODEL).hold_at = HALF
    downloads = queue(folder=folder)
    downloads.add(MODEL)
    hub.wait_for_bytes(HALF)
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []
    hub.release()
    done = queue.heard.wait_for(MODEL, "completed")
    assert done["path"] == str(folder / MODEL)
    assert [path.name for path in folder.iterdir()] == ["org"]


def drafter(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository that is the published drafter of the hub's model."""
    name = "org/drafter"
    hub.repos[name] = Repo(id=name, files={**FILES, "config.json": b'{"dflash_config": {}}'})
    monkeypatch.setattr("dflash2_mlx.pairs._PUBLISHED", [(TargetFacts(8, 2, 16), "", name)])
    return name


def test_a_model_and_its_drafter_are_one_action(hub: FakeHub, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    name = drafter(hub, monkeypatch)
    hub.repos["org/second"] = Repo(id="org/second", files=dict(FILES))
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    downloads.add(MODEL, with_drafter=True)
    downloads.add("org/second")
    queue.heard.wait(lambda: queue.heard.of(name))
    assert [task.repo_id for task in downloads.tasks()] == [MODEL, name, "org/second"]
    hub.release()
    queue.heard.wait_for("org/second", "completed")
    assert [task.state for task in downloads.tasks()] == ["completed"] * 3
    assert queue.heard.finished[:2] == [MODEL, name]


def test_the_drafter_may_be_asked_for_later(hub: FakeHub, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    name = drafter(hub, monkeypatch)
    hub.repo(MODEL).hold_at = HALF
    downloads = queue()
    downloads.add(MODEL)
    wait_for_part(queue.cache, HALF)  # the config has come by then
    downloads.add(MODEL, with_drafter=True)
    queue.heard.wait(lambda: queue.heard.of(name))
    assert [task.repo_id for task in downloads.tasks()] == [MODEL, name]


def test_a_model_without_a_published_drafter_says_so(hub: FakeHub, queue: Queue) -> None:
    downloads = queue()
    downloads.add(MODEL, with_drafter=True)
    done = queue.heard.wait_for(MODEL, "completed")
    assert "no drafter is published" in done["note"]
    assert only(downloads).repo_id == MODEL


def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: FakeHub, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    hub.tokens.add(TOKEN)
    repo = hub.repo(MODEL)
    repo.private, repo.hold_at = True, HALF
    caplog.set_level(logging.DEBUG)
    downloads = queue()
    downloads.add(MODEL)
    assert queue.heard.wait_for(MODEL, "failed")["error"]["kind"] == "missing"
    downloads.configure(hub.url + "/", TOKEN)
    (task,) = downloads.add(MODEL)
    hub.wait_for_bytes(HALF)
    process = downloads._running[task.id].process
    command = Path(f"/proc/{process.pid}/cmdline")
    if command.exists():  # Linux
        assert b"downloads.worker" in command.read_bytes()
        assert TOKEN.encode() not in command.read_bytes()
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
    hub.release()
    queue.heard.wait_for(MODEL, "completed")
    downloads.close()
    kept = [path.read_bytes() for path in queue.state_file.parent.rglob("*") if path.is_file()]
    assert kept
    assert not any(TOKEN.encode() in text for text in kept)
    assert TOKEN not in json.dumps(queue.heard.events) + caplog.text


def test_a_wait_is_shown_while_it_lasts(hub: FakeHub, queue: Queue) -> None:
    repo = hub.repo(MODEL)
    repo.limited, repo.retry_after = 1, "1"
    downloads = queue()
    downloads.add(MODEL)
    queue.heard.wait_for(MODEL, "completed")
    waiting = [event for event in queue.heard.events if event["error"]]
    assert [(event["state"], event["error"]["kind"]) for event in waiting] == [("downloading", "rate limit")]
    assert only(downloads).error is None


def test_a_listener_that_fails_stops_nothing(hub: FakeHub, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def fail(repo_id: str) -> None:
        queue.heard.finish(repo_id)
        raise ValueError("no library")

    hub.repos["org/second"] = Repo(id="org/second", files=dict(FILES))
    downloads = queue(finished=fail)
    downloads.add(MODEL)
    downloads.add("org/second")
    queue.heard.wait_for("org/second", "completed")
    downloads.close()
    assert queue.heard.finished == [MODEL, "org/second"]
    assert "no library" in caplog.text


def test_a_rate_is_that_of_the_last_seconds() -> None:
    now = 0.0
    rate = Rate(span=5.0, clock=lambda: now)
    rate.start(1000)
    assert rate.tell(1000) == 0.0
    for second in range(1, 11):
        now = float(second)
        assert rate.tell(1000 + 100 * second) == pytest.approx(100)
    for second in range(11, 21):
        now = float(second)
        last = rate.tell(2000 + 10 * (second - 10))
    assert last == pytest.approx(10)
    now = 21.0
    assert rate.tell(0) == 0.0
