"""What was measured of a pair, on disk: kept, taken up, refused where it is made for something else or damaged."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.decode import width_store
from dflash2_mlx.decode.exactness_report import ExactnessReport, WidthExactness
from dflash2_mlx.decode.width import WidthController
from dflash2_mlx.decode.width_store import FOLDER_VARIABLE, WidthStore, made_for

FACTS = {"chip": "a chip", "pair": "abc"}
REPORT = ExactnessReport("float32", (WidthExactness(2, "equal", 6, 0.0, 0.0, 0, None, False),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "measured"))
    return tmp_path / "measured"


def used(block_size: int = 4, cycles: int = 40) -> WidthController:
    controller = WidthController(block_size)
    with controller.lock:
        for width in range(1, block_size + 1):
            controller.costs.observe(width, 0, 1.0)  # the first of each is left out
        for i in range(cycles):
            width = 1 + i % block_size
            controller.cycle_done("greedy", width, min(1, width - 1), 100 + 20 * i, 0.01 * width)
    return controller


def kept(controller: WidthController, facts: dict[str, str] | None = None) -> WidthStore:
    store = WidthStore(facts or FACTS)
    store.exactness = REPORT
    store.save(controller, tuned="2026-11-30")
    return store


def restored(facts: dict[str, str] | None = None, block_size: int = 4) -> tuple[WidthController, WidthStore]:
    controller, store = WidthController(block_size), WidthStore(facts or FACTS)
    store.restore(controller)
    return controller, store


def test_what_is_kept_is_taken_up() -> None:
    controller = used()
    kept(controller)
    twin, store = restored()
    for depth, cells in controller.costs.measured().items():
        assert twin.costs.measured()[depth] == pytest.approx(cells)
    assert twin.kinds["greedy"].rates() == pytest.approx(controller.kinds["greedy"].rates(), abs=1e-2)
    assert twin.source == "cycles"
    assert store.exactness == REPORT
    assert (twin.cycles, twin.latest) == (0, None), "counts are of this run"


def test_another_chip_pair_or_version_is_another_file() -> None:
    kept(used())
    other = {**FACTS, "chip": "another chip"}
    assert WidthStore(other).path != WidthStore(FACTS).path
    controller, store = restored(other)
    assert (controller.source, store.exactness) == ("nothing yet", None)


def test_what_a_file_holds_for(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = made_for("abc")
    assert {"backend", "chip", "blas", "pair", "mlx", "mlx-lm", "dflash2-mlx"} == set(facts)
    assert made_for("abd") != facts
    monkeypatch.setattr("dflash2_mlx.machine.versions", lambda: dict.fromkeys(("dflash2-mlx", "mlx", "mlx-lm"), "9"))
    assert made_for("abc") != facts


def test_a_file_made_for_other_facts_is_left_alone() -> None:
    path = kept(used()).path
    tree = json.loads(path.read_text())
    tree["made_for"]["chip"] = "copied from elsewhere"
    path.write_text(json.dumps(tree))
    assert restored()[0].source == "nothing yet"


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: "",
        lambda tree: "[]",
        lambda tree: json.dumps(tree)[:-40],
        lambda tree: json.dumps({**tree, "costs": {"0": {"9": 1.0}}}),
        lambda tree: json.dumps({**tree, "costs": {"0": {"1": -1.0}}}),
        lambda tree: json.dumps({**tree, "costs": {"0": {"1": "fast"}}}),
        lambda tree: json.dumps({**tree, "costs": [1, 2]}),
        lambda tree: json.dumps({**tree, "costs": {"0": {"1": 10**400}}}),
        lambda tree: json.dumps({**tree, "costs": {"0": {"1": True}}}),
        lambda tree: json.dumps({**tree, "pinned": {"greedy": 99}}),
        lambda tree: json.dumps(tree).replace('"tried": [', '"tried": [1e999, '),
        lambda tree: "[" * 100_000,
        lambda tree: json.dumps({**tree, "acceptance": {}}),
        lambda tree: json.dumps({**tree, "acceptance": {"all": {"tried": [1], "stood": [1]}}}),
        lambda tree: json.dumps({**tree, "exactness": {"dtype": 3}}),
        lambda tree: json.dumps({**tree, "version": 99}),
        lambda tree: json.dumps({k: v for k, v in tree.items() if k != "tuned"}),
    ],
)
def test_a_damaged_file_costs_a_measurement_and_no_start(change: Any, caplog: pytest.LogCaptureFixture) -> None:
    path = kept(used()).path
    path.write_text(change(json.loads(path.read_text())))
    with caplog.at_level(logging.WARNING):
        controller, _ = restored()
    assert controller.source == "nothing yet"
    assert controller.costs.measured() == {}
    assert controller.everything.cycles == 0
    kept(used())
    assert restored()[0].source == "cycles"


def test_a_folder_that_cannot_be_written_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("a file, where a folder is wanted")
    with caplog.at_level(logging.WARNING):
        kept(used())
    assert "what was measured is not kept" in caplog.text


def test_what_another_process_has_tuned_is_taken_up_not_overwritten() -> None:
    server, own = used(cycles=40), WidthStore(FACTS)
    own.restore(server)
    tuner = WidthController(4)
    for width in range(1, 5):
        tuner.costs.set(width, 2048, 0.5 * width)
    tuner.source = "tune, 2026-11-30"
    kept(tuner)
    own.save(server)
    assert server.source == "tune, 2026-11-30"
    assert server.costs.seconds(3, 2048) == pytest.approx(1.5)
    assert restored()[0].costs.measured()[2048] == pytest.approx({1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0})
    with server.lock:
        server.cycle_done("greedy", 4, 1, 100, 1.0)
    own.save(server)
    assert restored()[0].source == "tune, 2026-11-30", "once: what it learns from now on is its own"


def test_requests_that_end_write_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(width_store.time, "monotonic", lambda: now)
    controller, store = used(cycles=10), WidthStore(FACTS)
    controller.store = store
    controller.ended()
    assert not store.path.exists(), "ten cycles are not worth a file"
    controller = used(cycles=40)
    controller.store = store
    controller.ended()
    first = store.path.read_bytes()
    with controller.lock:
        controller.cycle_done("greedy", 4, 3, 5000, 1.0)
    controller.ended()
    assert store.path.read_bytes() == first, "a minute has not passed"
    now += 61
    controller.ended()
    assert store.path.read_bytes() != first
    written = store.path.read_bytes()
    now += 61
    controller.ended()
    assert store.path.read_bytes() == written, "nothing was decoded since"
