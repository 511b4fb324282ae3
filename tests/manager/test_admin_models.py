"""The admin API's models: what it lists, loads, unloads and deletes, and what it refuses."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.errors import PairError
from tests.manager.admin_app import API, Get, admin_app, error_in, error_of
from tests.manager.doubles import FakeManager
from tests.manager.fake_catalog import DAMAGED, DRAFTER, LOAD_ERROR, PLAIN, STRAY, TARGET

MODELS = f"{API}/models"


def test_list_tells_all_that_is_known_of_each(client: TestClient, manager: FakeManager) -> None:
    models = {model["id"]: model for model in client.get(MODELS).json()["models"]}
    assert list(models) == [view.id for view in manager.models()]
    target = models[TARGET]
    assert target["size"] == 2_263_000_000
    assert target["model_type"] == "qwen3"
    assert target["state"] == "unloaded"
    assert target["loaded"] is False
    assert target["running"] is None
    assert target["settings"] == {"is_favorite": True, "display_name": "Qwen3 4B"}
    assert target["dflash_compatible"] is True
    assert [(fit["id"], fit["fits"]) for fit in target["drafters"]] == [(DRAFTER, True), ("demo-drafter", False)]
    assert target["drafters"][1]["reasons"]
    assert models[PLAIN]["dflash_compatible"] is False
    assert "mamba" in models[PLAIN]["dflash_reason"]
    assert models[DRAFTER]["targets"] == [TARGET]
    assert models[STRAY]["targets_reason"]


@pytest.mark.parametrize("name", [TARGET, f"mlx-community/{TARGET}", f"mlx-community%2F{TARGET}"])
def test_model_by_any_of_its_names(client: TestClient, name: str) -> None:
    assert client.get(f"{MODELS}/{name}").json()["id"] == TARGET
    assert client.get(f"{MODELS}/{name}/settings").json()["id"] == TARGET
    assert client.get(f"{MODELS}/{name}/estimate").json()["id"] == TARGET
    assert client.put(f"{MODELS}/{name}/settings", json={"top_k": 20}).status_code == 200
    assert client.post(f"{MODELS}/{name}/load").json()["state"] == "ready"
    assert client.post(f"{MODELS}/{name}/unload").json()["id"] == TARGET
    assert client.delete(f"{MODELS}/{name}", params={"confirm": TARGET}).json()["id"] == TARGET


def test_estimate_has_the_sum(client: TestClient, manager: FakeManager) -> None:
    told = client.get(f"{MODELS}/{TARGET}/estimate").json()
    assert told["needed"] == told["target_bytes"] + told["drafter_bytes"] + told["cache_bytes"] > 0
    assert told["verdict"] == manager.estimate(TARGET).verdict


def test_load_answers_with_what_runs(client: TestClient) -> None:
    client.put(f"{MODELS}/{TARGET}/settings", json={"dflash_enabled": True, "dflash_block_size": 5})
    model = client.post(f"{MODELS}/{TARGET}/load").json()
    assert model["loaded"] is True
    assert model["running"]["engine"] == "dflash"
    assert model["running"]["drafter"] == DRAFTER
    assert model["running"]["block_size"] == 5
    assert model["running"]["figures"]["tokens_per_cycle"] == 1.0


@pytest.mark.parametrize("options", [{"params": {"wait": "false"}}, {"json": {"wait": False}}])
def test_load_without_waiting(client: TestClient, manager: FakeManager, options: dict[str, object]) -> None:
    going: list[asyncio.Event] = []

    async def step() -> None:
        going.append(asyncio.Event())
        await going[0].wait()

    manager.step = step
    answer = client.post(f"{MODELS}/{TARGET}/load", **options)
    assert answer.status_code == 202
    assert answer.json()["state"] == "loading"
    assert answer.json()["stage"] == "target"
    assert client.portal is not None
    client.portal.call(going[0].set)
    assert client.post(f"{MODELS}/{TARGET}/load").json()["state"] == "ready"  # joins


def test_refusal_is_told_also_without_waiting(client: TestClient) -> None:
    error = error_of(client.post(f"{MODELS}/{DRAFTER}/load?wait=false"), 400)
    assert "drafter" in error["message"]
    error = error_of(client.post(f"{MODELS}/{DAMAGED}/load?wait=false"), 409)
    assert error["message"] == LOAD_ERROR


def test_failure_after_the_answer_is_logged(
    client: TestClient, manager: FakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    go = held_loads(manager)
    with caplog.at_level(logging.WARNING, "dflash2_server.admin.background"):
        assert client.post(f"{MODELS}/{DAMAGED}/load?wait=false").status_code == 202
        assert client.portal is not None
        client.portal.call(go.set)
        error_of(client.post(f"{MODELS}/{DAMAGED}/load"), 409)
    assert LOAD_ERROR in [record.message for record in caplog.records if "background" in record.name]
    assert client.get(f"{MODELS}/{DAMAGED}").json()["error"] == LOAD_ERROR


def held_loads(manager: FakeManager) -> asyncio.Event:
    """Holds every load of the manager until it is set."""
    go = asyncio.Event()

    async def step() -> None:
        await go.wait()

    manager.step = step
    return go


def test_failed_load_is_a_409_and_stays_on_the_model(client: TestClient, manager: FakeManager) -> None:
    error = error_of(client.post(f"{MODELS}/{DAMAGED}/load"), 409)
    assert (error["code"], error["message"], error["param"]) == ("load_failed", LOAD_ERROR, "model")
    model = client.get(f"{MODELS}/{DAMAGED}").json()
    assert (model["state"], model["error"], model["loaded"]) == ("failed", LOAD_ERROR, False)
    manager.failures[TARGET] = PairError("hidden size: the drafter's is 64, the model's 2560")
    assert "hidden size" in error_of(client.post(f"{MODELS}/{TARGET}/load"), 409)["message"]


def test_fault_of_the_program_is_not_told(client: TestClient, manager: FakeManager) -> None:
    manager.failures[TARGET] = ZeroDivisionError("secret place")
    assert "secret" not in error_of(client.post(f"{MODELS}/{TARGET}/load"), 500)["message"]


@pytest.mark.parametrize("options", [{"params": {"force": "true"}}, {"json": {"force": True}}])
def test_too_big_a_model_only_by_force(client: TestClient, manager: FakeManager, options: dict[str, object]) -> None:
    manager.available = 1_000_000
    answer = client.post(f"{MODELS}/{TARGET}/load")
    assert error_of(answer, 503)["code"] == "engine_busy"
    assert answer.headers["retry-after"]
    assert client.post(f"{MODELS}/{TARGET}/load", **options).json()["state"] == "ready"


def test_body_counts_before_the_query(client: TestClient, manager: FakeManager) -> None:
    manager.available = 1_000_000
    error_of(client.post(f"{MODELS}/{TARGET}/load?force=true", json={"force": False}), 503)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"force": "yes"}, "force"), ({"force": 1}, "force"), ({"wait": []}, "wait"), ({"forse": True}, "forse")],
)
def test_wrong_options_are_refused(client: TestClient, manager: FakeManager, body: object, param: str) -> None:
    assert error_of(client.post(f"{MODELS}/{TARGET}/load", json=body), 400)["param"] == param
    assert manager.model(TARGET).state == "unloaded"


def test_wrong_query_is_refused_by_name(client: TestClient, manager: FakeManager) -> None:
    assert error_of(client.post(f"{MODELS}/{TARGET}/load?wait=perhaps"), 400)["param"] == "wait"
    assert error_of(client.post(f"{MODELS}/{TARGET}/load?wait=perhaps", json={"wait": True}), 400)["param"] == "wait"
    assert manager.model(TARGET).state == "unloaded"


def test_unload_tells_what_was_freed(client: TestClient) -> None:
    error_of(client.post(f"{MODELS}/{TARGET}/unload"), 400)
    client.post(f"{MODELS}/{TARGET}/load")
    freed = client.post(f"{MODELS}/{TARGET}/unload").json()
    assert freed["freed"] == freed["before"] - freed["after"] == 2_263_000_000
    assert client.get(f"{MODELS}/{TARGET}").json()["loaded"] is False


def test_unload_without_waiting(client: TestClient, manager: FakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    client.post(f"{MODELS}/{TARGET}/load")
    unload, ended = manager.unload, asyncio.Event()

    async def slowly(name: str) -> object:
        await ended.wait()
        return await unload(name)

    monkeypatch.setattr(manager, "unload", slowly)
    answer = client.post(f"{MODELS}/{TARGET}/unload", json={"wait": False})
    assert answer.status_code == 202
    assert answer.json()["loaded"] is True
    assert client.portal is not None
    client.portal.call(ended.set)
    client.portal.call(asyncio.sleep, 0)
    assert client.get(f"{MODELS}/{TARGET}").json()["loaded"] is False


@pytest.mark.parametrize(
    "confirmed", [{}, {"params": {"confirm": "Qwen"}}, {"json": {"confirm": DRAFTER}}, {"params": {"confirm": "true"}}]
)
def test_delete_needs_the_id_once_more(client: TestClient, manager: FakeManager, confirmed: dict[str, object]) -> None:
    error = error_of(client.request("DELETE", f"{MODELS}/{TARGET}", **confirmed), 400)
    assert error["param"] == "confirm"
    assert TARGET in error["message"]
    assert manager.model(TARGET)


@pytest.mark.parametrize("confirmed", [{"params": {"confirm": TARGET}}, {"json": {"confirm": TARGET}}])
def test_delete(client: TestClient, confirmed: dict[str, object]) -> None:
    assert client.request("DELETE", f"{MODELS}/{TARGET}", **confirmed).json() == {"id": TARGET, "freed": 2_263_000_000}
    assert error_of(client.get(f"{MODELS}/{TARGET}"), 404)["code"] == "model_not_found"


def test_what_may_not_be_deleted(client: TestClient, manager: FakeManager) -> None:
    assert "embedded" in error_of(client.delete(f"{MODELS}/demo?confirm=demo"), 400)["message"]
    client.post(f"{MODELS}/{TARGET}/load")
    assert "unload" in error_of(client.delete(f"{MODELS}/{TARGET}?confirm={TARGET}"), 400)["message"]
    assert manager.model(TARGET).state == "ready"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["nobody", "org/nobody", "", "a/settings/b"])
def test_unknown_model(client: TestClient, method: str, name: str) -> None:
    assert error_of(client.request(method, f"{MODELS}/{name}"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "end"), [("GET", "settings"), ("GET", "estimate"), ("POST", "load"), ("POST", "unload")]
)
def test_unknown_model_with_an_action(client: TestClient, method: str, end: str) -> None:
    assert error_of(client.request(method, f"{MODELS}/nobody/{end}"), 404)["code"] == "model_not_found"


# As they come over the wire, and once more decoded, as some proxies pass them on.
TRAVERSALS = [
    "../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "%252e%252e%252f%252e%252e%252fetc%252fpasswd",
    "..%5c..%5cetc%5cpasswd",
    "..\\..\\etc\\passwd",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "//etc/passwd",
    "~/.ssh/id_rsa",
    "file:///etc/passwd",
    "C:%5cWindows",
    f"{TARGET}/..",
    f"{TARGET}/../{TARGET}",
    f"./{TARGET}",
    f"{TARGET}%00",
    f"{TARGET}%2f",
    "..;/..;/etc/passwd",
    "%c0%ae%c0%ae%c0%afetc",
    "\uff0e\uff0e/etc",
]  # fmt: skip
ACTIONS = [
    ("GET", ""), ("GET", "/settings"), ("PUT", "/settings"), ("GET", "/estimate"), ("POST", "/load"),
    ("POST", "/unload"), ("DELETE", ""),
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize("encoded", [False, True])
def test_traversal_is_a_plain_404(manager: FakeManager, name: str, encoded: bool) -> None:
    app, before = admin_app(manager), manager.models()
    shown = name if encoded else unquote(name)

    async def run() -> None:
        for method, end in ACTIONS:
            body = b'{"confirm": "x"}' if method == "DELETE" else b"{}"
            connection = Get(app, f"{MODELS}/{shown}{end}", method=method)
            connection._incoming = [body]
            await connection.run()
            assert connection.status == 404, (method, end, connection.text)
            assert error_in(connection.text)["code"] == "model_not_found"
            assert "root:" not in connection.text

    asyncio.run(run())
    assert manager.models() == before


def test_other_methods_and_paths_are_refused_in_the_envelope(client: TestClient) -> None:
    error_of(client.patch(f"{MODELS}/{TARGET}"), 405)
    error_of(client.post(f"{MODELS}/{TARGET}/settings", json={}), 405)
    error_of(client.post(f"{MODELS}/{TARGET}/explode"), 405)
    error_of(client.get(f"{API}/nothing"), 404)
    error_of(client.get(API), 404)
