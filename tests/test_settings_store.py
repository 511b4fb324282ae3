"""model_settings.json: nothing in it is lost, by no fault, no other process and no kill."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.settings import files, server
from dflash2_mlx.settings.model import ModelSettings
from dflash2_mlx.settings.store import ModelSettingsStore, default_path

# As oMLX writes it, with keys of its own and with what this program refuses.
OMLX = {
    "version": 1,
    "models": {
        "Qwen3.8-27B-4bit": {
            "dflash_enabled": True,
            "dflash_draft_model": "incoai/Qwen3.8-27B-DFlash2",
            "dflash_draft_quant_enabled": True,
            "dflash_block_size": 5,
            "dflash_verify_mode": "ddtree",
            "turboquant_kv_enabled": False,
            "index_cache_freq": 2,
            "is_default": True,
        },
        "other": {"dflash_draft_quant_weight_bits": 3, "temperature": 0.7, "top_p": None},
    },
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "model_settings.json"


@pytest.fixture
def store(path: Path) -> ModelSettingsStore:
    return ModelSettingsStore(path)


def put_file(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content))
    return path


def on_disk(path: Path) -> Any:
    return json.loads(path.read_text())


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_it_is_kept_beside_the_servers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "default_file", lambda: Path("/config/server.json"))
    assert default_path() == ModelSettingsStore().path == Path("/config/model_settings.json")


def test_without_a_file_everything_is_default_and_none_is_made(store: ModelSettingsStore, path: Path) -> None:
    assert (store.get("a"), store.all(), store.problems) == (ModelSettings(), {}, [])
    assert not path.parent.exists()


def test_the_flow_of_the_contract(store: ModelSettingsStore, path: Path) -> None:
    changes = {
        "dflash_enabled": True,
        "dflash_draft_model": "incoai/Qwen3.8-27B-DFlash2",
        "dflash_draft_quant_enabled": True,
        "dflash_block_size": 5,
        "dflash_verify_mode": "dflash",
    }
    saved = store.put("Qwen3.8-27B-4bit", changes)
    assert on_disk(path) == {"version": 1, "models": {"Qwen3.8-27B-4bit": changes}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert ModelSettingsStore(path).get("Qwen3.8-27B-4bit") == saved == store.get("Qwen3.8-27B-4bit")
    assert saved.draft_quant == "w4a16:gs64"
    store.put("Qwen3.8-27B-4bit", {"dflash_block_size": None, "temperature": None})
    assert store.get("Qwen3.8-27B-4bit").dflash_block_size is None
    store.put("Qwen3.8-27B-4bit", dict.fromkeys(changes))
    assert on_disk(path) == {"version": 1, "models": {}}


def test_nothing_is_saved_where_one_value_is_wrong(store: ModelSettingsStore, path: Path) -> None:
    store.put("a", {"top_k": 5})
    before = path.read_bytes()
    for changes in ({"top_k": 6, "temperature": -1}, {"top_k": 6, "tok_p": 1}, {"dflash_verify_mode": "ddtree"}):
        with pytest.raises(RequestError):
            store.put("a", changes)
    with pytest.raises(RequestError, match="name a model"):
        store.put(" ", {"top_k": 6})
    assert path.read_bytes() == before
    assert store.get("a").top_k == 5


def test_saving_what_is_there_writes_nothing(store: ModelSettingsStore, path: Path) -> None:
    store.put("a", {"top_k": 5})
    before = files.mark(path)
    store.put("a", {"top_k": 5, "top_p": None})
    store.remove("b")
    assert files.mark(path) == before


def test_remove_forgets_one_model(store: ModelSettingsStore) -> None:
    store.put("a", {"top_k": 5})
    store.put("b", {"top_k": 6})
    store.remove("a")
    assert {name: found.top_k for name, found in store.all().items()} == {"b": 6}


def test_what_it_does_not_understand_stays_in_the_file(store: ModelSettingsStore, path: Path) -> None:
    content = {
        "version": 1,
        "written_by": "another",
        "models": {
            "a": {"x": {"y": [1, None]}, "n": None, "top_k": 5, "temperature": "warm", "top_p": 0.5},
            "b": 7,
            "c": {"dflash_draft_quant_weight_bits": 3},
        },
    }
    put_file(path, content)
    assert (store.get("a").top_k, store.get("a").temperature, store.get("b")) == (5, None, ModelSettings())
    assert store.get("a").model_extra == {"x": {"y": [1, None]}, "n": None}
    assert [("'a'" in line, "temperature is 'warm'" in line, str(path) in line) for line in store.problems] == [
        (True, True, True),
        (False, False, True),
        (False, False, True),
    ]
    store.put("a", {"top_k": 6, "top_p": None})
    store.put("new", {"top_k": 1})
    content["models"] |= {"new": {"top_k": 1}}  # type: ignore[operator]
    content["models"]["a"] = {"x": {"y": [1, None]}, "n": None, "temperature": "warm", "top_k": 6}  # type: ignore[index]
    assert on_disk(path) == content
    store.put("a", {"temperature": 1, "x": None})
    assert on_disk(path)["models"]["a"] == {"n": None, "temperature": 1.0, "top_k": 6}
    assert len(store.problems) == 2


def test_what_was_not_in_force_is_as_soon_as_it_can(store: ModelSettingsStore, path: Path) -> None:
    put_file(path, {"version": 1, "models": {"a": {"dflash_ssd_cache": True, "dflash_in_memory_cache": False}}})
    assert not store.get("a").dflash_ssd_cache
    assert "needs dflash_in_memory_cache" in store.problems[0]
    after = store.put("a", {"dflash_in_memory_cache": True})
    assert (after.dflash_ssd_cache, store.get("a").dflash_ssd_cache, store.problems) == (True, True, [])


DAMAGED = [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"version": "1"}', b'{"version": 1, "models": []}', b'{"a":' * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_set_aside_with_a_message(content: bytes, store: ModelSettingsStore, path: Path) -> None:
    put_file(path, content)
    assert store.get("a") == ModelSettings()
    (aside,) = [entry for entry in path.parent.iterdir() if ".damaged-" in entry.name]
    assert aside.read_bytes() == content
    assert not path.exists()
    (problem,) = store.problems
    assert str(path) in problem
    assert str(aside) in problem
    store.put("a", {"top_k": 5})
    assert ModelSettingsStore(path).get("a").top_k == 5
    assert (aside.read_bytes(), store.problems) == (content, [problem])


def test_a_file_that_is_damaged_while_it_runs_is_set_aside_too(store: ModelSettingsStore, path: Path) -> None:
    store.put("a", {"top_k": 5})
    put_file(path, b'{"version": 1, "mod')
    store.put("b", {"top_k": 6})
    assert on_disk(path)["models"] == {"b": {"top_k": 6}}
    assert len(store.problems) == 1


@pytest.mark.parametrize("models", [{"a": {"top_k": 5, "later": 1}}, ["of another shape"]])
def test_a_newer_file_is_read_and_never_written(models: Any, store: ModelSettingsStore, path: Path) -> None:
    put_file(path, {"version": 2, "models": models})
    before = path.read_bytes()
    assert store.get("a").top_k == (5 if isinstance(models, dict) else None)
    assert "version 2" in store.problems[0]
    for write in (
        lambda: store.put("a", {"top_k": 6}),
        lambda: store.remove("a"),
        lambda: store.import_file(put_file(path.parent / "omlx.json", OMLX)),
    ):
        with pytest.raises(RequestError, match=r"version 2.*update this program"):
            write()
    assert path.read_bytes() == before


def test_another_process_is_seen_at_the_next_look(store: ModelSettingsStore, path: Path) -> None:
    other = ModelSettingsStore(path)
    store.put("a", {"top_k": 5})
    assert other.get("a").top_k == 5
    other.put("a", {"top_p": 0.5})
    other.put("b", {"top_k": 7})
    store.put("a", {"min_p": 0.1})
    assert (store.get("b").top_k, store.get("a").top_p, other.get("a").min_p) == (7, 0.5, 0.1)
    path.unlink()
    assert store.all() == {}


def test_reading_again_only_where_the_file_changed(store: ModelSettingsStore, path: Path) -> None:
    store.put("a", {"top_k": 5})
    assert store.get("a") is store.get("a")
    # The same size and time, another file.
    status = path.stat()
    new = put_file(path.with_name("new"), path.read_bytes().replace(b"5", b"6"))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(path)
    assert store.get("a").top_k == 6


def test_many_threads_and_stores_lose_nothing(path: Path) -> None:
    stores = [ModelSettingsStore(path) for _ in range(3)]

    def save(number: int) -> None:
        for turn in range(4):
            stores[number % 3].put(f"m{number}", {"top_k": turn})
            stores[number % 3].put("shared", {("top_k", "max_tokens", "ttl_seconds")[number % 3]: turn + 1})

    threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ModelSettingsStore(path).all()
    assert {name: found[name].top_k for name in found if name != "shared"} == {f"m{number}": 3 for number in range(6)}
    assert {found["shared"].top_k, found["shared"].max_tokens, found["shared"].ttl_seconds} == {4}


def test_one_default_model_and_one_model_for_an_alias(store: ModelSettingsStore, path: Path) -> None:
    store.put("a", {"is_default": True, "model_alias": "x"})
    store.put("b", {"is_default": True})
    assert [name for name, found in store.all().items() if found.is_default] == ["b"]
    for alias in ("x", "a"):
        with pytest.raises(RequestError, match="'a' has that name") as raised:
            store.put("b", {"model_alias": alias})
        assert raised.value.param == "model_alias"
    store.put("a", {"model_alias": "x", "top_k": 3})
    put_file(path, {"models": {name: {"is_default": True, "model_alias": "x", "top_k": 1} for name in "abc"}})
    assert [(found.is_default, found.model_alias, found.top_k) for found in store.all().values()] == [
        (True, "x", 1),
        (False, None, 1),
        (False, None, 1),
    ]
    assert len(store.problems) == 4


def test_what_is_read_only_is_told(store: ModelSettingsStore, path: Path, tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    with pytest.raises(DFlashError, match=r"model_settings\.json cannot be"):
        store.put("a", {"top_k": 5})
    folder = ModelSettingsStore(tmp_path)
    with pytest.raises(DFlashError, match="cannot be read"):
        folder.get("a")


def test_a_full_disk_leaves_the_old_file(
    store: ModelSettingsStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", {"top_k": 5})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DFlashError, match="No space left"):
        store.put("a", {"top_k": 6})
    assert store.get("a").top_k == 5
    assert names(path) == [".model_settings.json.lock", "model_settings.json"]


def test_a_link_stays_a_link(store: ModelSettingsStore, path: Path, tmp_path: Path) -> None:
    real = put_file(tmp_path / "dotfiles" / "models.json", {"version": 1, "models": {"a": {"top_k": 5}}})
    path.parent.mkdir()
    path.symlink_to(real)
    store.put("a", {"top_k": 6})
    assert path.is_symlink()
    assert on_disk(real)["models"]["a"] == {"top_k": 6}


SAVER = """
import sys
from pathlib import Path
from dflash2_mlx.settings.store import ModelSettingsStore
store = ModelSettingsStore(Path(sys.argv[1]))
print("ready", flush=True)
for turn in range(1, 1_000_000):
    store.put("a", {"top_k": turn, "description": "x" * 20_000, "max_tokens": turn})
"""


def test_kill_9_at_any_moment_of_a_save_leaves_the_old_or_the_new_file(path: Path) -> None:
    store = ModelSettingsStore(path)
    store.put("other", {"top_k": 7, "description": "kept"})
    delays = random.Random(4)
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE) as saver:
            assert saver.stdout is not None
            assert saver.stdout.readline() == b"ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                saver.wait(delays.uniform(0.001, 0.03))
            saver.kill()
        found = ModelSettingsStore(path)
        assert found.problems == []
        assert (found.get("other").top_k, found.get("other").description) == (7, "kept")
        assert found.get("a").top_k == found.get("a").max_tokens
    assert store.get("a").top_k is not None, "no save came through: the test saw nothing"
    store.put("a", {"top_k": 1})
    assert names(path) == [".model_settings.json.lock", "model_settings.json"]


def test_an_omlx_file_is_imported_as_it_is(store: ModelSettingsStore, path: Path, tmp_path: Path) -> None:
    store.put("Qwen3.8-27B-4bit", {"top_k": 5, "dflash_block_size": 2})
    store.put("third", {"is_default": True, "min_p": 0.1})
    report = store.import_file(put_file(tmp_path / "omlx.json", OMLX))
    assert report.imported == {
        "Qwen3.8-27B-4bit": (
            "dflash_enabled",
            "dflash_draft_model",
            "dflash_draft_quant_enabled",
            "dflash_block_size",
            "dflash_verify_mode",
            "is_default",
        ),
        "other": ("temperature",),
    }
    assert report.ignored == {"Qwen3.8-27B-4bit": ("turboquant_kv_enabled", "index_cache_freq")}
    assert set(report.not_in_force["Qwen3.8-27B-4bit"]) == {"dflash_verify_mode"}
    assert set(report.not_in_force["other"]) == {"dflash_draft_quant_weight_bits"}
    assert len(report.notes) == 3
    assert any("is 3: input should be 2, 4 or 8" in note for note in report.notes)
    qwen = store.get("Qwen3.8-27B-4bit")
    assert (qwen.top_k, qwen.dflash_block_size, qwen.dflash_verify_mode, qwen.is_default) == (5, 5, "ddtree", True)
    assert (store.get("third").is_default, store.get("third").min_p) == (False, 0.1)
    assert (store.get("other").temperature, store.get("other").dflash_draft_quant_weight_bits) == (0.7, None)
    models = on_disk(path)["models"]
    assert models["other"] == {"dflash_draft_quant_weight_bits": 3, "temperature": 0.7}
    assert models["Qwen3.8-27B-4bit"]["index_cache_freq"] == 2
    before = path.read_bytes()
    again = store.import_file(tmp_path / "omlx.json")
    assert path.read_bytes() == before
    assert (again.imported, again.ignored, again.not_in_force) == (report.imported, report.ignored, report.not_in_force)


def test_a_wrong_value_of_an_import_replaces_no_right_one(store: ModelSettingsStore, tmp_path: Path) -> None:
    store.put("a", {"dflash_draft_quant_weight_bits": 8})
    content = {"models": {"a": {"dflash_draft_quant_weight_bits": 3, "top_k": 5}, "b": 7}}
    report = store.import_file(put_file(tmp_path / "omlx.json", content))
    assert (store.get("a").dflash_draft_quant_weight_bits, store.get("a").top_k) == (8, 5)
    assert "8 stays" in report.not_in_force["a"]["dflash_draft_quant_weight_bits"]
    assert any("b: its entry is 7" in note for note in report.notes)
    assert store.problems == []


def test_an_import_that_contradicts_what_is_here_says_so(store: ModelSettingsStore, tmp_path: Path) -> None:
    store.put("a", {"dflash_ssd_cache": True})
    report = store.import_file(put_file(tmp_path / "omlx.json", {"models": {"a": {"dflash_in_memory_cache": False}}}))
    assert not store.get("a").dflash_ssd_cache
    assert set(report.not_in_force["a"]) == {"dflash_ssd_cache"}


@pytest.mark.parametrize("content", [*DAMAGED, b'{"version": 2, "models": {}}', None], ids=range(len(DAMAGED) + 2))
def test_a_damaged_import_changes_nothing(
    content: bytes | None, store: ModelSettingsStore, path: Path, tmp_path: Path
) -> None:
    store.put("a", {"top_k": 5})
    before = path.read_bytes()
    source = tmp_path / "omlx.json"
    if content is not None:
        put_file(source, content)
    with pytest.raises(RequestError) as raised:
        store.import_file(source)
    assert raised.value.param == "file"
    assert str(source) in str(raised.value)
    assert path.read_bytes() == before
    assert source.exists() == (content is not None)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["top_k", "temperature", "dflash_ssd_cache", "dflash_in_memory_cache", "model_alias", "x", "y"])
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), st.dictionaries(KEYS, JSON, max_size=5) | JSON, max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(models=DOCUMENTS, top_k=st.none() | st.integers(0, 9))
def test_whatever_the_file_holds_a_save_changes_its_field_alone(
    models: dict[str, Any], top_k: int | None, tmp_path: Path
) -> None:
    path = put_file(tmp_path / "any.json", {"version": 1, "models": models, "extra": [1]})
    store = ModelSettingsStore(path)
    assert store.put("a", {"top_k": top_k}).top_k == top_k == store.get("a").top_k
    expected = {name: entry for name, entry in models.items() if name != "a"}
    entry = models.get("a")
    entry = {name: value for name, value in entry.items() if name != "top_k"} if isinstance(entry, dict) else {}
    entry |= {} if top_k is None else {"top_k": top_k}
    expected |= {"a": entry} if entry else {}
    # As JSON texts: a number that is none is not equal to itself.
    assert json.dumps(on_disk(path), sort_keys=True) == json.dumps(
        {"version": 1, "models": expected, "extra": [1]}, sort_keys=True
    )
