"""What models are called, and that a name is looked up and never joined to a path. What is incomplete has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash2_mlx.errors import ModelNotFound
from dflash2_server.library.library import Library
from tests.manager.trees import write_model, write_repository, write_shards, write_weights


def listed(found: Library) -> list[str]:
    return [model.id for model in found.models() if model.source != "embedded"]


def test_equal_names_get_stable_ids(tmp_path: Path) -> None:
    first, second, hub = tmp_path / "1", tmp_path / "2", tmp_path / "hub"
    write_model(first / "org-a" / "M")
    write_model(first / "org-b" / "M")
    write_model(second / "M")
    write_repository(hub, "org-b/M")
    write_model(second / "demo")
    found = Library([first, second], hub)
    paths = {model.id: model.path for model in found.models() if model.source != "embedded"}
    assert set(paths) == {"M", "org-b--M", "M-2", "M-3", "demo-2"}
    assert (paths["M"], paths["org-b--M"]) == (first / "org-a" / "M", first / "org-b" / "M")
    assert paths["M-2"] == second / "M"
    assert {model.id: model.path for model in Library([first, second], hub).models() if model.id in paths} == paths
    # The first goes: no other takes its name, since settings go by it.
    (first / "org-a" / "M" / "config.json").unlink()
    found.refresh()
    assert {model.id: model.path for model in found.models() if model.id in paths} == {
        name: path for name, path in paths.items() if name != "M"
    }


def test_incomplete_models_are_never_listed_and_the_reason_is_told(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    write_shards(tmp_path / "m" / "lacks-a-shard", 3, missing=[2])
    write_shards(tmp_path / "m" / "whole", 3)
    short = write_model(tmp_path / "m" / "short")
    write_weights(short / "model.safetensors", lacking=1)
    empty = write_model(tmp_path / "m" / "empty")
    (empty / "model.safetensors").write_bytes(b"")
    pointer = write_model(tmp_path / "m" / "pointer")
    (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    partial = write_model(tmp_path / "m" / "partial") / ".cache" / "huggingface" / "download"
    partial.mkdir(parents=True)
    (partial / "x.incomplete").touch()
    write_model(tmp_path / "m" / ".hidden")
    write_model(tmp_path / "m" / ".dflash2-incoming" / "org--name")
    blobs = write_repository(hub, "org/partial-blob").parents[1] / "blobs"
    (blobs / "abc.incomplete").touch()
    (write_repository(hub, "org/dangling") / "model.safetensors").resolve().unlink()
    found = Library([tmp_path / "m"], hub)
    assert listed(found) == ["whole"]
    told = "\n".join(found.problems)
    for name in ("lacks-a-shard", "short", "empty", "pointer", "partial", "org/partial-blob", "org/dangling"):
        assert name in told
    assert "model-00002-of-00003.safetensors" in told
    assert "1 bytes too short" in told
    with pytest.raises(ModelNotFound, match=r"org/partial-blob is not complete: .*abc\.incomplete"):
        found.get("org/partial-blob")


def test_what_is_being_downloaded_is_hidden_at_once_and_shown_afterwards(tmp_path: Path) -> None:
    coming = {"org/new"}
    write_repository(tmp_path, "org/new")
    found = Library([], tmp_path, incoming=lambda: coming)
    assert listed(found) == []
    with pytest.raises(ModelNotFound, match="org/new is being downloaded"):
        found.get("org/new")
    coming.clear()
    assert listed(found) == ["new"]


TRAVERSALS = [
    "..",
    ".",
    "",
    "/",
    "../m",
    "m/",
    "m/../m",
    "a/../../m",
    "%2e%2e",
    "..%2f",
    "%2e%2e%2fm",
    "..\\m",
    "C:\\m",
    "m\0",
    "\0",
    "/etc/passwd",
    "/etc",
    "~",
    "~root",
    "\uff4d",  # a full-width m
    "m\u200b",
    "\u2024\u2024/m",  # one-dot leaders
    "\u2215etc",  # a division slash
    "M",
    "file:///m",
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_names_are_looked_up_and_never_joined_to_paths(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    write_model(tmp_path / "m")
    found = Library([tmp_path / "models"], None)
    with pytest.raises(ModelNotFound):
        found.get(name)
    with pytest.raises(ModelNotFound):
        found.get(f"{tmp_path}/models/{name}" if name != "m/" else f"{tmp_path}/models/../m")


def test_names_that_are_found(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "org" / "Qwen3-4B-4bit")
    found = Library([tmp_path], None)
    for name in ("Qwen3-4B-4bit", "org/Qwen3-4B-4bit", str(folder)):
        assert found.get(name).path == folder
    assert found.get("demo").source == "embedded"
    with pytest.raises(ModelNotFound, match=r"near it are .*Qwen3-4B-4bit"):
        found.get("Qwen3-4B-8bit")
    with pytest.raises(ModelNotFound, match="no model 'xyz' on this machine: download it"):
        found.get("xyz")
