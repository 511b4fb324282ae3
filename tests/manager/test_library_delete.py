"""Deleting: what is asked for, all of it, nothing else, and never through a link."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.errors import DFlashError, ModelNotFound, RequestError
from dflash2_server.library.library import Library
from tests.manager import trees
from tests.manager.trees import write_drafter, write_model, write_repository


def snapshot_of(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_a_folder_goes_whole_and_its_bytes_are_counted(tmp_path: Path) -> None:
    kept = write_model(tmp_path / "kept")
    gone = write_model(tmp_path / "gone")
    (gone / ".cache" / "huggingface").mkdir(parents=True)
    (gone / ".cache" / "huggingface" / "note").write_text("12345")
    size = trees.size_of(gone)
    library, before = Library([tmp_path], None), snapshot_of(kept)
    assert library.delete(library.get("gone")) == size
    assert not gone.exists()
    assert snapshot_of(kept) == before
    with pytest.raises(ModelNotFound):
        library.get("gone")
    assert library.get("kept").path == kept


def test_an_owner_folder_goes_with_its_last_model(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / "org" / name)
    library = Library([tmp_path], None)
    library.delete(library.get("org/a"))
    assert (tmp_path / "org").is_dir()
    library.delete(library.get("org/b"))
    assert not (tmp_path / "org").exists()
    assert tmp_path.is_dir()


def test_a_repository_of_the_hub_cache_goes_with_all_revisions(tmp_path: Path) -> None:
    write_repository(tmp_path, "org/gone", commit="a" * 40)
    write_repository(tmp_path, "org/gone", trees.TARGET | {"max_position_embeddings": 5}, commit="b" * 40)
    write_repository(tmp_path, "org/kept")
    repository = tmp_path / "models--org--gone"
    size = trees.size_of(repository / "blobs") + trees.size_of(repository / "refs")
    library, before = Library([], tmp_path), snapshot_of(tmp_path / "models--org--kept")
    assert library.delete(library.get("org/gone")) == size
    assert not repository.exists()
    assert snapshot_of(tmp_path / "models--org--kept") == before


def test_a_damaged_repository_goes_too(tmp_path: Path) -> None:
    """One that huggingface_hub refuses to look at."""
    snapshot = write_repository(tmp_path, "org/m")
    (snapshot.parent / "stray").write_text("a file where only folders may be")
    library = Library([], tmp_path)
    assert library.delete(library.get("m")) > 0
    assert not (tmp_path / "models--org--m").exists()


def test_the_embedded_pair_and_single_models_stay(tmp_path: Path) -> None:
    given = write_model(tmp_path / "outside" / "given")
    inside = write_drafter(tmp_path / "models" / "inside")
    cached = write_repository(tmp_path / "hub", "org/cached")
    library = Library([tmp_path / "models"], tmp_path / "hub", extra=[given, inside, cached])
    for name, reason in (
        ("demo", "comes with this program"),
        ("demo-drafter", "comes with this program"),
        ("given", "was given by itself"),
        ("inside", "was given by itself"),
        ("cached", "was given by itself"),
    ):
        model = library.get(name)
        assert not model.deletable
        with pytest.raises(RequestError, match=reason) as raised:
            library.delete(model)
        assert raised.value.param == "model"
        assert model.source == "embedded" or model.path.is_dir()


def test_links_are_refused_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    real = write_model(tmp_path / "outside" / "real")
    write_model(tmp_path / "outside-org" / "member")
    write_repository(tmp_path / "outside-hub", "org/cached")
    models, hub = tmp_path / "models", tmp_path / "hub"
    models.mkdir()
    hub.mkdir()
    (models / "linked").symlink_to(real)
    (models / "org").symlink_to(tmp_path / "outside-org")
    (hub / "models--org--cached").symlink_to(tmp_path / "outside-hub" / "models--org--cached")
    before = snapshot_of(tmp_path)
    library = Library([models], hub)
    for name in ("linked", "org/member", "org/cached"):
        model = library.get(name)
        assert not model.deletable
        with pytest.raises(RequestError, match="is a link, or lies behind one"):
            library.delete(model)
    assert snapshot_of(tmp_path) == before


def test_a_linked_root_is_as_good_as_any(tmp_path: Path) -> None:
    write_model(tmp_path / "disk" / "m")
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    library = Library([tmp_path / "models"], None)
    assert library.get("m").deletable
    library.delete(library.get("m"))
    assert not (tmp_path / "disk" / "m").exists()
    assert (tmp_path / "models").is_symlink()


def test_files_linked_from_elsewhere_are_only_unlinked(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    outside, twin = tmp_path / "weights.safetensors", tmp_path / "twin.json"
    shutil.move(folder / "model.safetensors", outside)
    (folder / "model.safetensors").symlink_to(outside)
    os.link(folder / "tokenizer.json", twin)
    (folder / "more").symlink_to(tmp_path)
    own = (folder / "config.json").stat().st_size
    library = Library([tmp_path / "models"], None)
    assert library.delete(library.get("m")) == own
    assert outside.exists()
    assert twin.exists()
    assert not folder.exists()


def test_a_folder_that_holds_another_folder_with_models_stays(tmp_path: Path) -> None:
    outer = write_model(tmp_path / "models" / "outer")
    write_model(outer / "inner" / "m")
    library = Library([tmp_path / "models", outer / "inner"], None)
    with pytest.raises(RequestError, match="another folder with models lies in"):
        library.delete(library.get("outer"))
    itself = Library([outer], None)
    with pytest.raises(RequestError, match="is one of the folders with models itself"):
        itself.delete(itself.get("outer"))
    assert (outer / "inner" / "m").is_dir()


def test_only_what_is_listed_where_it_is_listed(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    outside = write_model(tmp_path / "m")
    library = Library([tmp_path / "models"], None)
    forged = replace(library.get("m"), path=outside)
    unknown = replace(library.get("m"), id="../m", path=outside)
    for model in (forged, unknown):
        with pytest.raises(ModelNotFound, match="is not there any more"):
            library.delete(model)
    assert outside.is_dir()
    assert (tmp_path / "models" / "m").is_dir()


def test_a_folder_that_became_a_link_since_the_scan(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    outside = write_model(tmp_path / "outside")
    library = Library([tmp_path / "models"], None)
    model = library.get("m")
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    with pytest.raises(RequestError, match="is a link"):
        library.delete(model)
    assert (outside / "config.json").exists()


def test_what_is_being_downloaded_is_not_deleted(tmp_path: Path) -> None:
    coming: set[str] = set()
    write_repository(tmp_path, "org/m")
    library = Library([], tmp_path, incoming=lambda: coming)
    model = library.get("m")
    coming.add("org/m")
    with pytest.raises(RequestError, match="is being downloaded"):
        library.delete(model)
    assert model.path.is_dir()


@pytest.mark.parametrize("hub", [False, True])
def test_what_is_left_is_told(hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hub:
        write_repository(tmp_path, "org/m")
    else:
        write_model(tmp_path / "m")
    library = Library([] if hub else [tmp_path], tmp_path if hub else None)
    really = os.unlink

    def unlink(path: Any, **options: Any) -> None:
        if "model.safetensors" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        really(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(DFlashError, match=r"deleted only in part: 1 files are left, such as .*model\.safetensors"):
        library.delete(library.get("m"))
    monkeypatch.undo()
    assert [model.id for model in library.models()] == ["demo", "demo-drafter"]
