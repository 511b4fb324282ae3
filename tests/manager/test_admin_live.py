"""The admin API's figures, requests, log and stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.settings import ServerSettings
from tests.manager.admin_app import API, Get, admin_app, error_in, error_of
from tests.manager.doubles import FakeManager
from tests.manager.fake_catalog import DRAFTER, TARGET

EVENTS = f"{API}/events"


def test_stats_of_each_loaded_pair(client: TestClient, manager: FakeManager) -> None:
    assert client.get(f"{API}/stats").json()["pairs"] == []
    client.put(f"{API}/models/{TARGET}/settings", json={"dflash_enabled": True})
    client.post(f"{API}/models/{TARGET}/load")
    manager.busy(TARGET, prompt_tokens=100)
    assert client.portal is not None
    for _ in range(4):
        client.portal.call(manager.tick)
    told = client.get(f"{API}/stats").json()
    (pair,) = told["pairs"]
    assert (pair["id"], pair["state"], pair["reason"], pair["drafter"]) == (TARGET, "active", None, DRAFTER)
    assert pair["block_size"] == 16
    figures = pair["figures"]
    assert figures["cycles"] > 0
    assert figures["tokens_per_cycle"] > 1
    assert 0 < figures["draft_share"] < 1
    assert len(figures["acceptance_by_position"]) == 7
    for name in ("draft_seconds", "verify_seconds", "commit_seconds", "cache_hits"):
        assert figures[name] > 0
    assert told["figures"]["weights_bytes"] > 0
    assert told["figures"]["by_model"][TARGET] == figures
    assert "history" not in told


def test_history_on_request(client: TestClient, manager: FakeManager) -> None:
    manager.live.tick()
    history = client.get(f"{API}/stats?history=true").json()["history"]
    assert len(history) == 2
    assert history[0]["time"] <= history[1]["time"]
    assert error_of(client.get(f"{API}/stats?history=some"), 400)["param"] == "history"


def test_activity(client: TestClient, manager: FakeManager) -> None:
    assert client.get(f"{API}/activity").json() == {"requests": []}
    manager.busy(TARGET)
    manager.busy(TARGET, waiting=True)
    requests = client.get(f"{API}/activity").json()["requests"]
    assert [request["phase"] for request in requests] == ["prefill", "waiting"]
    assert requests[0]["prompt_tokens"] == 3000


def test_logs_by_level_text_and_number(client: TestClient, manager: FakeManager) -> None:
    def lines(**query: Any) -> list[str]:
        return [entry["message"] for entry in client.get(f"{API}/logs", params=query).json()["entries"]]

    for level, text in ((logging.ERROR, "bad luck"), (logging.INFO, "token=abcdefgh arrived")):
        manager.logs.handle(logging.LogRecord("dflash2_server", level, __file__, 1, text, (), None))
    everything = client.get(f"{API}/logs").json()["entries"]
    assert set(everything[0]) == {"number", "time", "level", "name", "message"}
    assert len(everything) == 4
    assert lines(level="error") == ["bad luck"]
    assert lines(level="WARNING") == ["2.1 GB of disk are left", "bad luck"]
    assert lines(text="LUCK") == ["bad luck"]
    assert lines(limit=1) == ["token=[hidden] arrived"]
    assert lines(after=everything[-2]["number"]) == ["token=[hidden] arrived"]


@pytest.mark.parametrize(("query", "param"), [("level=loud", "level"), ("limit=0", "limit"), ("after=-1", "after")])
def test_wrong_filter_of_logs(client: TestClient, query: str, param: str) -> None:
    assert error_of(client.get(f"{API}/logs?{query}"), 400)["param"] == param


def parsed(text: str) -> list[tuple[int, str, Any]]:
    """The events of a stream, comments left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def read(manager: FakeManager, *, query: str = "", headers: dict[str, str] | None = None) -> Get:
    """What a reader gets of what was published, and of one event more, before the bus is closed."""
    connection = Get(admin_app(manager), EVENTS, query=query, headers=headers)

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        async with asyncio.timeout(5):
            while not connection.status:
                await asyncio.sleep(0)
        manager.events.publish("model", {"id": TARGET, "state": "ready"})
        manager.events.close()
        async with asyncio.timeout(5):
            await reading

    asyncio.run(run())
    return connection


def test_events_from_now_on_until_the_bus_is_closed(manager: FakeManager) -> None:
    manager.events.publish("load", {"id": "old"})
    connection = read(manager)
    assert connection.status == 200
    assert connection.headers["content-type"].startswith("text/event-stream")
    assert connection.headers["cache-control"] == "no-cache"
    assert parsed(connection.text) == [(2, "model", {"id": TARGET, "state": "ready"})]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"Last-Event-ID": "1"}),
        ("last_event_id=1", {}),
        ("last_event_id=3", {"Last-Event-ID": "1"}),  # what EventSource sends when it connects again
    ],
)
def test_reader_resumes_where_it_was(manager: FakeManager, query: str, headers: dict[str, str]) -> None:
    for share in (0.1, 0.2, 0.3):
        manager.events.publish("load", {"id": TARGET, "share": share})
    events = parsed(read(manager, query=query, headers=headers).text)
    assert [(number, kind) for number, kind, _ in events] == [(2, "load"), (3, "load"), (4, "model")]
    assert events[0][2] == {"id": TARGET, "share": 0.2}


def test_reader_is_told_that_it_missed_events(manager: FakeManager) -> None:
    for number in range(1100):
        manager.events.publish("figures", {"number": number})
    events = parsed(read(manager, headers={"Last-Event-ID": "5"}).text)
    assert events == [(1101, "missed", {"after": 5})]  # it stands for all that came since


def test_empty_id_is_none(manager: FakeManager) -> None:
    manager.events.publish("load", {})
    assert [number for number, _, _ in parsed(read(manager, headers={"Last-Event-ID": ""}).text)] == [2]


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 5000, "1\u0661"])
def test_wrong_id(manager: FakeManager, given: str) -> None:
    connection = Get(admin_app(manager), EVENTS, query=f"last_event_id={quote(given)}")
    asyncio.run(connection.run())
    assert connection.status == 400
    assert error_in(connection.text)["param"] == "last_event_id"


def test_silent_stream_is_kept_alive_and_ends_with_its_reader() -> None:
    manager = FakeManager(ServerSettings(keep_alive_seconds=0.01))
    connection = Get(admin_app(manager), EVENTS)

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        await connection.until(": keep-alive\n\n: keep-alive\n\n")
        connection.leave()
        async with asyncio.timeout(5):
            await reading

    asyncio.run(run())
    assert parsed(connection.text) == []


def test_load_is_followed_by_its_events(manager: FakeManager) -> None:
    connection = Get(admin_app(manager), EVENTS)

    async def run() -> None:
        reading = asyncio.ensure_future(connection.run())
        load = Get(connection._app, f"{API}/models/{TARGET}/load", method="POST")
        await load.run()
        assert load.status == 200
        await connection.until('"state":"ready"')
        connection.leave()
        await reading

    asyncio.run(run())
    kinds = [kind for _, kind, _ in parsed(connection.text)]
    assert kinds[0] == kinds[-1] == "model"
    assert kinds.count("load") == 6


def documented() -> set[str]:
    """The routes that docs/server.md lists under "Admin API"."""
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    section = text.split("## Admin API\n")[1].split("\n## ")[0]
    return {f"{method} {API}{path}" for method, path in re.findall(r"`(GET|PUT|POST|DELETE) (/[^`?]*)", section)}


def test_all_routes_are_in_the_schema_and_in_the_docs(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = {f"{method.upper()} {path}" for path in paths if path.startswith(API) for method in paths[path]}
    model = f"{API}/models/{{id}}"
    assert found == {
        f"GET {API}/models", f"GET {model}", f"DELETE {model}", f"GET {model}/settings", f"PUT {model}/settings",
        f"GET {model}/estimate", f"POST {model}/load", f"POST {model}/unload", f"POST {API}/hf/download",
        f"GET {API}/hf/tasks", f"POST {API}/hf/cancel/{{task}}", f"POST {API}/hf/retry/{{task}}",
        f"DELETE {API}/hf/tasks/{{task}}", f"GET {API}/hf/search", f"GET {API}/stats", f"GET {API}/activity",
        f"GET {API}/logs", f"GET {API}/global-settings", f"POST {API}/global-settings", f"GET {API}/events",
        f"POST {API}/login", f"POST {API}/logout", f"POST {API}/bench/start", f"GET {API}/bench",
        f"GET {API}/bench/{{id}}/stream", f"GET {API}/bench/{{id}}/results", f"POST {API}/bench/{{id}}/cancel",
        f"POST {model}/quantize", f"GET {API}/quantize", f"POST {API}/quantize/{{id}}/cancel",
    }  # fmt: skip
    assert found == documented()
    events = paths[EVENTS]["get"]
    assert list(events["responses"]["200"]["content"]) == ["text/event-stream"]
    assert {(one["in"], one["name"]) for one in events["parameters"]} == {
        ("header", "last-event-id"), ("query", "last_event_id"),
    }  # fmt: skip
    assert "202" in paths[f"{model}/load"]["post"]["responses"]
    assert paths[f"{model}/settings"]["put"]["requestBody"]["required"] is True
