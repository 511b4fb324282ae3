"""One process at a time in a folder."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from dflash2_mlx.errors import CheckpointError, RequestError
from dflash2_mlx.train import folder_lock
from dflash2_mlx.train.folder_lock import held, waited_for
from dflash2_mlx.train.rows.hidden import rows_path, write_rows
from dflash2_mlx.train.rows.store import RowStore
from tests.train.training import subject


def test_a_second_one_is_refused_and_a_third_may_follow(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    with held(folder, "another preparation"):
        told = r"another preparation \(process \d+\) writes to"
        with pytest.raises(RequestError, match=told) as caught, held(folder, "another preparation"):
            pass
        assert caught.value.param == "out"
    with held(folder, "another preparation"):
        pass


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used"), held(tmp_path / "data", "another training"):
        pass


def test_rows_that_another_training_has_computed_meanwhile_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = subject()
    store = RowStore(one.target, [one.conversations], tmp_path, 1 << 30, one.lanes)
    written: list[int] = []

    def other_is_done(seconds: float) -> None:
        write_rows(rows_path(tmp_path, 0), one.rows)
        written.append(rows_path(tmp_path, 0).stat().st_mtime_ns)

    monkeypatch.setattr(folder_lock.time, "sleep", other_is_done)
    with held(tmp_path, "another training"):
        store.prepare(cancelled=lambda: bool(written))
    store.prepare()
    assert [rows_path(tmp_path, 0).stat().st_mtime_ns] == written
    assert store.kept == 1
    assert mx.array_equal(store.rows([(0, 1)])[0].taps, one.rows[1].taps)


def test_waiting_ends_when_cancelled(tmp_path: Path) -> None:
    with held(tmp_path, "another training"), waited_for(tmp_path, lambda: True):
        pass
