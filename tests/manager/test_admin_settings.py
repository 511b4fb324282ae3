"""The admin API's settings, of a model and of the server."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dflash2_mlx.errors import PairError
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import ModelSettings, from_stored
from dflash2_server.admin.views import effective
from tests.manager.admin_app import API, client_of, error_of
from tests.manager.doubles import FakeManager
from tests.manager.fake_catalog import DRAFTER, TARGET

PATH = f"{API}/models/{TARGET}/settings"
GLOBAL = f"{API}/global-settings"
JSON = {"content-type": "application/json"}
FLOW: dict[str, Any] = {
    "dflash_enabled": True,
    "dflash_draft_model": f"z-lab/{DRAFTER}",
    "dflash_draft_quant_enabled": True,
    "dflash_block_size": 5,
    "dflash_verify_mode": "dflash",
}


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager(ServerSettings(api_key=[]))


def test_settings_with_what_a_form_needs(client: TestClient) -> None:
    told = client.get(PATH).json()
    assert told["settings"] == {"is_favorite": True, "display_name": "Qwen3 4B"}
    assert list(told["effective"]) == list(ModelSettings.model_fields) == [facts["name"] for facts in told["schema"]]
    assert told["effective"]["is_favorite"] is True
    assert told["effective"]["dflash_draft_quant_weight_bits"] == 4
    assert told["requires_reload"] == []
    assert told["ignored"] == []
    assert told["not_in_force"] == {}
    facts = {facts["name"]: facts for facts in told["schema"]}["dflash_draft_quant_group_size"]
    assert facts["label"] == "Group size"
    assert facts["choices"] == [32, 64, 128]
    assert facts["reload"] is True


def test_flow_is_saved_and_read_back(client: TestClient) -> None:
    saved = client.put(PATH, json=FLOW).json()
    assert set(saved) == {"settings", "effective", "changed", "requires_reload", "reload"}
    assert saved["settings"].items() >= FLOW.items()
    assert saved["changed"] == list(FLOW)
    assert (saved["requires_reload"], saved["reload"]) == ([], "none")
    assert client.get(PATH).json()["settings"] == saved["settings"]
    assert client.get(PATH).json()["effective"].items() >= FLOW.items()


def test_null_clears_and_the_rest_stays(client: TestClient) -> None:
    client.put(PATH, json=FLOW)
    saved = client.put(PATH, json={"dflash_block_size": None, "dflash_enabled": None}).json()
    assert "dflash_block_size" not in saved["settings"]
    assert saved["effective"]["dflash_enabled"] is False
    assert saved["settings"]["dflash_draft_model"] == FLOW["dflash_draft_model"]


def test_empty_change_changes_nothing(client: TestClient) -> None:
    assert client.put(PATH, json={}).json()["changed"] == []


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"dflash_block_sise": 5}, "dflash_block_sise", "dflash_block_size"),
        ({"dflash_draft_quant_weight_bits": 3}, "dflash_draft_quant_weight_bits", "8"),
        ({"dflash_verify_mode": "fast"}, "dflash_verify_mode", "ddtree"),
        ({"dflash_block_size": "5"}, "dflash_block_size", "'5'"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"dflash_in_memory_cache": False, "dflash_ssd_cache": True}, "dflash_ssd_cache", "dflash_in_memory_cache"),
    ],
)
def test_wrong_value_is_refused_and_nothing_is_saved(
    client: TestClient, changes: dict[str, Any], param: str, words: str
) -> None:
    before = client.get(PATH).json()
    error = error_of(client.put(PATH, json={"top_k": 7} | changes), 400)
    assert error["param"] == param
    assert words in error["message"]
    assert client.get(PATH).json() == before


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", JSON, 400),
        (b"[]", JSON, 400),
        (b"null", JSON, 400),
        (b'"x"', JSON, 400),
        (b"{", JSON, 400),
        (b'{"temperature": NaN}', JSON, 400),
        (b"top_k=1", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b'{"top_k": 1}', {"content-type": "text/plain"}, 415),
        (b'{"top_k": 1}', {}, 415),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", PATH), ("POST", GLOBAL), ("POST", f"{API}/hf/download")])
def test_only_json_objects_are_taken(
    client: TestClient, body: bytes, headers: dict[str, str], status: int, method: str, path: str
) -> None:
    error_of(client.request(method, path, content=body, headers=headers), status)


def test_idle_model_is_reloaded_at_once(client: TestClient) -> None:
    client.post(f"{API}/models/{TARGET}/load")
    saved = client.put(PATH, json={"dflash_enabled": True}).json()
    assert (saved["requires_reload"], saved["reload"]) == ([], "done")
    assert client.get(f"{API}/models/{TARGET}").json()["running"]["engine"] == "dflash"


def test_busy_model_waits_for_its_reload(client: TestClient, manager: FakeManager) -> None:
    client.post(f"{API}/models/{TARGET}/load")
    manager.busy(TARGET)
    saved = client.put(PATH, json={"dflash_enabled": True}).json()
    assert (saved["requires_reload"], saved["reload"]) == (["dflash_enabled"], "when idle")
    assert client.get(PATH).json()["requires_reload"] == ["dflash_enabled"]
    assert client.get(f"{API}/models/{TARGET}").json()["running"]["engine"] == "plain"


def test_failed_reload_is_told_and_the_settings_are_saved(client: TestClient, manager: FakeManager) -> None:
    client.post(f"{API}/models/{TARGET}/load")
    manager.failures[TARGET] = PairError("the drafter is of another model")
    assert error_of(client.put(PATH, json={"dflash_enabled": True}), 409)["code"] == "load_failed"
    assert client.get(PATH).json()["settings"]["dflash_enabled"] is True


def test_unknown_and_idle_keys_are_named() -> None:
    manager = FakeManager()
    settings, _ = from_stored({"turboquant": 3, "dflash_verify_mode": "ddtree", "dflash_enabled": True})
    manager._put(TARGET, settings=settings)
    with client_of(manager) as client:
        told = client.get(PATH).json()
    assert told["settings"]["turboquant"] == 3
    assert told["ignored"] == ["turboquant"]
    assert "turboquant" in told["not_in_force"]["turboquant"]
    for name in told["not_in_force"]:
        assert name in told["settings"]
    assert "turboquant" not in told["effective"]


def test_effective_is_what_runs() -> None:
    assert effective(ModelSettings())["dflash_draft_quant_group_size"] == 64
    unavailable = effective(from_stored({"dflash_verify_mode": "ddtree"})[0])["dflash_verify_mode"]
    assert unavailable == effective(ModelSettings())["dflash_verify_mode"]


def test_global_settings_by_name(client: TestClient) -> None:
    settings = client.get(GLOBAL).json()["settings"]
    assert list(settings) == list(ServerSettings.model_fields)
    assert settings["max_queue"] == {
        "value": 64, "default": 64, "source": "file", "requires_restart": settings["max_queue"]["requires_restart"],
        "pending": None, "changed": False, "group": settings["max_queue"]["group"],
        "description": settings["max_queue"]["description"],
    }  # fmt: skip


def test_global_settings_are_saved(client: TestClient) -> None:
    told = client.post(GLOBAL, json={"port": 9000, "load_on_request": False}).json()
    assert told["changed"] == ["port", "load_on_request"]
    assert told["requires_restart"] == ["port"]
    assert told["settings"]["port"]["pending"] == 9000
    assert client.get(GLOBAL).json()["settings"]["load_on_request"]["value"] is False


@pytest.mark.parametrize(
    ("changes", "param"), [({"prot": 1}, "prot"), ({"port": "x"}, "port"), ({"port": 99999}, "port")]
)
def test_wrong_global_setting(client: TestClient, changes: dict[str, Any], param: str) -> None:
    assert error_of(client.post(GLOBAL, json=changes), 400)["param"] == param


def test_no_secret_is_ever_told() -> None:
    manager = FakeManager(ServerSettings(api_key=["sk-first-of-all"], hf_token="hf_verysecretindeed"))
    with client_of(manager) as client:
        client.headers["authorization"] = "Bearer sk-first-of-all"
        answers = [client.post(GLOBAL, json={"hf_token": "hf_anothersecret", "api_key": ["sk-second-one"]})]
        answers += [client.post(GLOBAL, json={"hf_token": ["hf_anothersecret"]})]
        paths = ("global-settings", "models", "stats", "activity", "logs", "hf/tasks", f"models/{TARGET}/settings")
        answers += [client.get(f"{API}/{path}") for path in paths]
        assert answers[0].json()["settings"]["hf_token"]["value"] is True
        assert [answer.status_code for answer in answers[2:]] == [200] * 7
    for answer in answers:
        for secret in ("sk-first-of-all", "hf_verysecretindeed", "hf_anothersecret", "sk-second-one"):
            assert secret not in answer.text


@pytest.mark.parametrize("path", ["models", "stats", "global-settings", "events", "hf/tasks", f"models/{TARGET}"])
def test_key_is_needed(path: str) -> None:
    with client_of(FakeManager(ServerSettings(api_key=["sk-first-of-all"]))) as client:
        error_of(client.get(f"{API}/{path}"), 401)
        error_of(client.get(f"{API}/{path}?api_key=sk-first-of-all"), 401)


def test_post_of_another_site_is_refused(client: TestClient, manager: FakeManager) -> None:
    for origin in ("https://evil.example", "null"):
        headers = {"origin": origin}
        error_of(client.post(f"{API}/models/{TARGET}/load", headers=headers), 403)
        error_of(client.put(PATH, json={"top_k": 1}, headers=headers), 403)
        error_of(client.delete(f"{API}/models/{TARGET}?confirm={TARGET}", headers=headers), 403)
    assert manager.model(TARGET).state == "unloaded"
