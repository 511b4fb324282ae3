"""Where a checkpoint may be written, and that nothing half-written is ever seen."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import CheckpointError, RequestError
from dflash2_quantize import checkpoint, folder
from dflash2_quantize.folder import built_aside, check_output, check_space
from tests.quantize.subjects import same, write
from tests.quantize.test_round_trip import quantised


def refused(out: Path, source: Path, *words: str, force: bool = False) -> None:
    with pytest.raises(RequestError) as error:
        check_output(out, source, force=force)
    assert error.value.param == "out"
    assert [word for word in words if word not in str(error.value)] == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source")


def test_a_new_or_an_empty_folder_will_do(source: Path, tmp_path: Path) -> None:
    check_output(tmp_path / "deep" / "new", source, force=False)
    quantised(source, tmp_path / "deep" / "new", "w4a16:gs64")
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "empty", source, force=False)
    quantised(source, tmp_path / "empty", "w4a16:gs64")
    assert same(load_drafter(tmp_path / "empty"), load_drafter(tmp_path / "deep" / "new"))


def test_the_source_is_never_written_to(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    for out in (source, tmp_path, link, source / "packed"):
        refused(out, source, "another folder", force=True)


def test_a_file_is_no_folder(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", source, "is a file")


def test_only_a_drafter_is_replaced_and_only_by_force(source: Path, tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    (out / "stale.safetensors").write_bytes(b"")
    refused(out, source, "not empty", "--force")
    check_output(out, source, force=True)
    quantised(source, out, "w4a16:gs64")
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "model.safetensors"]
    assert load_drafter(out).quantization == "w4a16:gs64"


def test_other_things_are_never_replaced(source: Path, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "letter.txt").write_text("Dear")
    refused(papers, source, "something else than a drafter", force=True)
    (write(tmp_path / "full") / "papers").mkdir()
    refused(tmp_path / "full", source, "something else than a drafter", force=True)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("disk full")])
def test_a_write_that_breaks_off_leaves_what_was_there(
    stop: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(tmp_path / "home" / "out")
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def broken(file: Path, layouts: Any, arrays: Any) -> None:
        file.write_bytes(b"half")
        next(arrays)
        raise stop

    monkeypatch.setattr(checkpoint, "write_safetensors", broken)
    with pytest.raises((KeyboardInterrupt, CheckpointError)) as error:
        quantised(source, out, "w4a16:gs64")
    assert "disk full" in str(error.value) or stop is KeyboardInterrupt
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["out"]


def test_a_rename_that_fails_gives_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = write(tmp_path / "home" / "out")
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if target == out and (self / "new").exists():
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(CheckpointError, match="cannot be written"), built_aside(out) as scratch:
        (scratch / "new").write_text("")
    assert (out / "config.json").exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["out"]


def test_what_a_killed_run_left_goes_after_a_while(tmp_path: Path) -> None:
    old, young = tmp_path / ".out.partial-1", tmp_path / ".out.partial-2"
    for scratch in (old, young):
        scratch.mkdir()
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    with built_aside(tmp_path / "out") as scratch:
        (scratch / "file").write_text("")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "out"]


def test_room_is_checked_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    asked: list[Path] = []

    def full(path: Path) -> Any:
        asked.append(path)
        return usage._replace(free=1 << 20)

    monkeypatch.setattr(folder.shutil, "disk_usage", full)
    with pytest.raises(RequestError, match=r"GB are needed and 0\.00 GB are free") as error:
        quantised(source, tmp_path / "deep" / "out", "w4a16:gs64")
    assert error.value.param == "out"
    assert asked == [tmp_path]
    assert not (tmp_path / "deep").exists()
    check_space(tmp_path / "out", 0)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"), built_aside(tmp_path / "file" / "out"):
        pass
