"""The admin API's downloads and search."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.settings import ServerSettings
from dflash2_server.admin import hub
from dflash2_server.downloads.faults import Failure
from dflash2_server.downloads.task import ERROR_KINDS, TaskError
from tests.manager.admin_app import API, error_of
from tests.manager.doubles import FakeManager
from tests.manager.fake_downloads import fake_search

HF = f"{API}/hf"


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager(ServerSettings(hf_endpoint="http://127.0.0.1:9", hf_token="hf_secret1"))


def test_download_and_its_drafter(client: TestClient) -> None:
    tasks = client.post(f"{HF}/download", json={"repo_id": "org/model", "with_drafter": True}).json()["tasks"]
    assert [task["repo_id"] for task in tasks] == ["org/model", "z-lab/model-DFlash"]
    assert tasks[0]["state"] == "queued"
    assert client.get(f"{HF}/tasks").json()["tasks"] == tasks


def test_same_download_twice_is_one(client: TestClient) -> None:
    first = client.post(f"{HF}/download", json={"repo_id": "org/model"}).json()
    assert client.post(f"{HF}/download", json={"repo_id": "https://huggingface.co/org/model"}).json() == first


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "repo_id"),
        ({"repo_id": ""}, "repo_id"),
        ({"repo_id": 5}, "repo_id"),
        ({"repo_id": "../../etc"}, "repo_id"),
        ({"repo_id": "org/model", "with_drafter": "yes"}, "with_drafter"),
        ({"repo_id": "org/model", "hf_token": "hf_x"}, "hf_token"),
    ],
)
def test_wrong_download(client: TestClient, manager: FakeManager, body: object, param: str) -> None:
    assert error_of(client.post(f"{HF}/download", json=body), 400)["param"] == param
    assert manager.downloads.tasks() == []


def test_cancel_retry_remove(client: TestClient) -> None:
    task = client.post(f"{HF}/download", json={"repo_id": "org/model"}).json()["tasks"][0]["id"]
    assert client.post(f"{HF}/cancel/{task}").json()["task"]["state"] == "cancelled"
    assert client.post(f"{HF}/retry/{task}").json()["task"]["state"] == "queued"
    client.post(f"{HF}/cancel/{task}")
    assert client.delete(f"{HF}/tasks/{task}").json() == {"id": task, "removed": True}
    assert client.get(f"{HF}/tasks").json() == {"tasks": []}


def test_failed_task_says_why(client: TestClient, manager: FakeManager) -> None:
    client.post(f"{HF}/download", json={"repo_id": "org/gated"})
    manager.downloads.tick()
    error = client.get(f"{HF}/tasks").json()["tasks"][0]["error"]
    assert set(error) == {"kind", "message", "remedy"}
    assert error["kind"] == "gated"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "cancel/t9"), ("POST", "retry/t9"), ("DELETE", "tasks/t9"), ("POST", "cancel/..")]
)
def test_unknown_task(client: TestClient, method: str, path: str) -> None:
    path = path.replace("..", "%2e%2e")
    error = error_of(client.request(method, f"{HF}/{path}"), 404)
    assert (error["code"], error["param"]) == ("download_not_found", "task")


def test_search_with_the_servers_endpoint_and_token(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    async def search(query: str, **more: Any) -> Any:
        asked.append({"query": query, **more})
        return await fake_search(query, **more)

    monkeypatch.setattr(hub.hub, "search", search)
    found = client.get(f"{HF}/search", params={"q": "Qwen3", "limit": 2}).json()["models"]
    assert [one["repo_id"] for one in found] == ["mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3.8-27B-4bit"]
    assert found[1]["drafter"] == "incoai/Qwen3.8-27B-DFlash2"
    assert asked == [{"query": "Qwen3", "endpoint": "http://127.0.0.1:9", "token": "hf_secret1", "limit": 2}]
    assert client.get(f"{HF}/search").status_code == 200
    assert asked[1]["query"] == ""
    assert asked[1]["limit"] == 20


@pytest.mark.parametrize("limit", ["0", "-1", "101", "many", ""])
def test_wrong_limit(client: TestClient, limit: str) -> None:
    assert error_of(client.get(f"{HF}/search", params={"q": "x", "limit": limit}), 400)["param"] == "limit"


def test_too_long_a_query(client: TestClient) -> None:
    assert error_of(client.get(f"{HF}/search", params={"q": "x" * 201}), 400)["param"] == "q"


STATUS = {
    "missing": 404, "gated": 403, "token": 403, "offline": 503, "rate limit": 429, "disk full": 507, "damaged": 502,
    "other": 502,
}  # fmt: skip


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_refusals_of_the_hub_are_told_apart(client: TestClient, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    async def search(query: str, **more: Any) -> Any:
        wait = 12.2 if kind == "rate limit" else None
        raise Failure(TaskError(kind=kind, message="what happened", remedy="what helps"), wait=wait)

    monkeypatch.setattr(hub.hub, "search", search)
    answer = client.get(f"{HF}/search?q=x")
    error = error_of(answer, STATUS[kind])
    assert error["code"] == f"hub_{kind.replace(' ', '_')}"
    assert error["message"] == "what happened: what helps"
    assert answer.headers.get("retry-after") == ("13" if kind == "rate limit" else None)
    assert "www-authenticate" not in answer.headers
