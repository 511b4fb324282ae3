"""What a target computes, told from its files: equal for copies, another for every change that matters."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.errors import CheckpointError, ModelNotFound
from dflash2_mlx.train.data.fingerprint import fingerprint, target_folder, tokenizer_fingerprint
from tests.tiny_checkpoints import write_target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_target(tmp_path / "target")
    return tmp_path / "target"


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_copy_is_equal_whatever_its_times(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    assert fingerprint(copy) == fingerprint(folder)
    assert tokenizer_fingerprint(copy) == tokenizer_fingerprint(folder)
    assert len(fingerprint(folder)) == 64


def test_notes_in_the_config_do_not_count_and_sizes_do(folder: Path) -> None:
    before = fingerprint(folder)
    change_config(folder, transformers_version="9.9", _name_or_path="there")
    assert fingerprint(folder) == before
    change_config(folder, rope_theta=777.0)
    assert fingerprint(folder) != before


@pytest.mark.parametrize("size", [100, 400_000])
def test_another_matrix_anywhere_is_told(tmp_path: Path, size: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    names = ("a", "b", "c", "d")
    found = set()
    for changed in (None, *names):
        arrays = {name: mx.full((size,), 1.0 + (name == changed) / 128) for name in names}
        mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
        found.add(fingerprint(tmp_path))
    assert len(found) == 5


def test_another_packing_is_told(folder: Path) -> None:
    before = fingerprint(folder)
    path = folder / "model.safetensors"
    arrays = {name: array.astype(mx.bfloat16) for name, array in mx.load(str(path)).items()}
    mx.save_safetensors(str(path), arrays)
    assert fingerprint(folder) != before


def test_the_tokenizer_has_its_own(folder: Path) -> None:
    before = fingerprint(folder), tokenizer_fingerprint(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(folder) == before[0]
    assert tokenizer_fingerprint(folder) != before[1]


def test_a_folder_without_weights_or_config_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks"):
        fingerprint(folder)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        tokenizer_fingerprint(tmp_path)
    with pytest.raises(ModelNotFound):
        target_folder(str(tmp_path / "nothing"))
