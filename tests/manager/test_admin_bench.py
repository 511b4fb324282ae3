"""The admin API's benches and quantise jobs, over the manager in memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.bench import results
from dflash2_server.work import WorkRuns
from tests.manager.admin_app import API, Get, admin_app, error_of
from tests.manager.doubles import FakeManager
from tests.manager.fake_catalog import DRAFTER, TARGET

BENCH = f"{API}/bench"
SHORT = {"kinds": ["code"], "prompts_per_kind": 1, "rounds": 2}  # two arms: four samples


def start(client: TestClient, **request: Any) -> str:
    answer = client.post(f"{BENCH}/start", json={"model": TARGET, **SHORT, **request})
    assert answer.status_code == 202, answer.text
    id: str = answer.json()["id"]
    return id


def test_start_list_and_results(client: TestClient, manager: FakeManager) -> None:
    id = start(client)
    (listed,) = client.get(BENCH).json()["benches"]
    assert (listed["id"], listed["model"], listed["state"], listed["total"]) == (id, TARGET, "running", 4)
    assert listed["request"] == SHORT
    assert "samples" not in listed
    error = error_of(client.get(f"{BENCH}/{id}/results"), 409)
    assert (error["code"], error["param"]) == ("bench_runs", "id")
    for _ in range(4):
        manager.benches.tick()
    assert client.get(BENCH).json()["benches"][0]["state"] == "completed"
    told = client.get(f"{BENCH}/{id}/results").json()
    result = results.from_dict(told)
    assert result == manager.benches.get(id).result
    assert len(result.samples) == 4
    page = client.get(f"{BENCH}/{id}/results?format=html")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!DOCTYPE html>")
    assert "<svg" in page.text
    assert error_of(client.get(f"{BENCH}/{id}/results?format=pdf"), 400)["param"] == "format"


def test_another_one_is_refused_with_the_name_of_the_one_that_runs(client: TestClient) -> None:
    id = start(client)
    error = error_of(client.post(f"{BENCH}/start", json={"model": TARGET}), 409)
    assert error["code"] == "bench_runs"
    assert id in error["message"]


def test_other_work_that_runs_is_named(
    client: TestClient, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*asked: Any) -> Any:
        raise WorkRuns("the quantise job q1 of d runs: wait for it, or cancel it", kind="quantize")

    monkeypatch.setattr(manager.benches, "start", start)
    error = error_of(client.post(f"{BENCH}/start", json={"model": TARGET}), 409)
    assert error["code"] == "quantize_runs"
    assert "q1" in error["message"]


@pytest.mark.parametrize("format", ["json", "html"])
def test_a_result_that_cannot_be_drawn_is_no_failure_of_the_server(
    client: TestClient, manager: FakeManager, format: str
) -> None:
    id = start(client)
    for _ in range(4):
        manager.benches.tick()
    job = manager.benches.get(id)
    assert job.result is not None
    samples = tuple(replace(sample, generation_seconds=object()) for sample in job.samples)  # type: ignore[arg-type]
    manager.benches._jobs[id] = replace(job, result=replace(job.result, samples=samples))
    assert error_of(client.get(f"{BENCH}/{id}/results?format={format}"), 409)["code"] == "bench_damaged"


def test_cancel_keeps_what_is_there(client: TestClient, manager: FakeManager) -> None:
    id = start(client)
    manager.benches.tick()
    assert client.post(f"{BENCH}/{id}/cancel").json()["state"] == "cancelled"
    told = client.get(f"{BENCH}/{id}/results").json()
    assert (told["cancelled"], len(told["samples"])) == (True, 1)
    assert error_of(client.post(f"{BENCH}/{id}/cancel"), 400)["param"] == "bench"
    start(client)


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({}, "model", 400),
        ({"model": 3}, "model", 400),
        ({"model": "none-such"}, "model", 404),
        ({"model": DRAFTER}, "model", 400),
        ({"model": TARGET, "colour": "red"}, "colour", 400),
        ({"model": TARGET, "rounds": 0}, "rounds", 400),
    ],
)
def test_wrong_starts(client: TestClient, body: dict[str, Any], param: str, status: int) -> None:
    assert error_of(client.post(f"{BENCH}/start", json=body), status)["param"] == param
    assert client.get(BENCH).json() == {"benches": []}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/bench/b9/results", "bench_not_found"),
        ("GET", "/bench/b9/stream", "bench_not_found"),
        ("POST", "/bench/b9/cancel", "bench_not_found"),
        ("POST", "/quantize/q9/cancel", "quantize_not_found"),
    ],
)
def test_what_is_not_there(client: TestClient, method: str, path: str, code: str) -> None:
    assert error_of(client.request(method, f"{API}{path}"), 404)["code"] == code


def parsed(text: str) -> list[tuple[str, Any]]:
    """The events of a stream, comments left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_a_late_reader_gets_the_state_then_what_comes(manager: FakeManager) -> None:
    job = manager.benches.start(TARGET, SHORT)
    manager.benches.tick()
    connection = Get(admin_app(manager), f"{BENCH}/{job.id}/stream")

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        await connection.until('"total":4')
        for _ in range(3):
            manager.benches.tick()
        async with asyncio.timeout(5):
            await reading

    asyncio.run(run())
    assert connection.headers["content-type"].startswith("text/event-stream")
    events = parsed(connection.text)
    assert [kind for kind, _ in events] == ["state", "progress", "progress", "progress", "end"]
    assert len(events[0][1]["samples"]) == events[0][1]["done"] == 1
    assert [data["done"] for _, data in events[1:]] == [2, 3, 4, 4]
    assert events[1][1]["sample"]["tokens_per_second"] > 0
    assert (events[-1][1]["state"], events[-1][1]["error"]) == ("completed", None)


def test_a_reader_that_missed_events_gets_the_state_anew(manager: FakeManager) -> None:
    job = manager.benches.start(TARGET, SHORT)
    connection = Get(admin_app(manager), f"{BENCH}/{job.id}/stream")

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        await connection.until('"total":4')
        manager.benches.tick()
        for number in range(1100):
            manager.events.publish("figures", {"number": number})
        await connection.until('"done":1')
        manager.benches.fail(job.id, "the model was unloaded")
        async with asyncio.timeout(5):
            await reading

    asyncio.run(run())
    events = parsed(connection.text)
    assert [(kind, data["done"]) for kind, data in events] == [("state", 0), ("state", 1), ("end", 1)]
    assert events[-1][1]["error"] == "the model was unloaded"


def test_it_goes_on_without_its_reader(manager: FakeManager) -> None:
    job = manager.benches.start(TARGET, SHORT)
    connection = Get(admin_app(manager), f"{BENCH}/{job.id}/stream")

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        await connection.until("event: state")
        connection.leave()
        async with asyncio.timeout(5):
            await reading

    asyncio.run(run())
    assert manager.benches.get(job.id).state == "running"


def test_an_ended_one_is_told_at_once(client: TestClient, manager: FakeManager) -> None:
    id = start(client)
    manager.benches.fail(id, "it did not fit")
    with client.stream("GET", f"{BENCH}/{id}/stream") as answer:
        events = parsed(answer.read().decode())
    assert [kind for kind, _ in events] == ["state", "end"]
    assert events[1][1]["error"] == "it did not fit"


def test_a_drafter_is_quantised(client: TestClient, manager: FakeManager) -> None:
    path = f"{API}/models/z-lab/{DRAFTER}/quantize"
    answer = client.post(path)
    assert answer.status_code == 202
    job = answer.json()
    assert (job["drafter"], job["spec"], job["name"]) == (DRAFTER, "w4a16:gs64", f"{DRAFTER}-w4a16-gs64")
    error = error_of(client.post(path, json={"spec": "w8"}), 409)
    assert error["code"] == "quantize_runs"
    for _ in range(12):
        manager.quantizations.tick()
    (done,) = client.get(f"{API}/quantize").json()["jobs"]
    assert (done["state"], done["path"]) == ("completed", f"/models/{job['name']}")
    assert client.get(f"{API}/models/{job['name']}").json()["kind"] == "drafter"
    taken = error_of(client.post(path), 400)
    assert taken["param"] == "name"
    other = client.post(path, json={"name": "mine", "spec": "w8a16:gs32"}).json()
    assert (other["name"], other["spec"]) == ("mine", "w8a16:gs32")
    assert client.post(f"{API}/quantize/{other['id']}/cancel").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [(TARGET, {}, "model"), (DRAFTER, {"bits": 4}, "bits"), (DRAFTER, {"spec": 4}, "spec")],
)
def test_wrong_quantise_jobs(client: TestClient, model: str, body: dict[str, Any], param: str) -> None:
    assert error_of(client.post(f"{API}/models/{model}/quantize", json=body), 400)["param"] == param


def test_widths_and_exactness_of_a_loaded_pair(client: TestClient, manager: FakeManager) -> None:
    client.put(f"{API}/models/{TARGET}/settings", json={"dflash_enabled": True})
    client.post(f"{API}/models/{TARGET}/load")
    assert client.portal is not None
    for _ in range(3):
        client.portal.call(manager.tick)
    (pair,) = client.get(f"{API}/stats").json()["pairs"]
    widths = pair["widths"]
    assert len(widths["rates"]) == len(widths["cycles_by_width"]) == widths["block_size"] == 16
    assert len(widths["costs"]["0"]) == 16
    assert len(widths["acceptance"]["all"]) == 15
    assert "tokens/s expected" in widths["reason"]
    assert pair["exactness"]["verdict"] in ("equal", "rounding")
    client.put(f"{API}/models/{TARGET}/settings", json={"dflash_enabled": False})
    (pair,) = client.get(f"{API}/stats").json()["pairs"]
    assert (pair["widths"], pair["exactness"]) == (None, None)
