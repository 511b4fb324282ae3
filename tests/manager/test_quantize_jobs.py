"""Quantise jobs: the real process on a tiny drafter, and a scripted one for what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.errors import DFlashError, EngineBusy, ModelNotFound, RequestError
from dflash2_server.library.library import Library
from dflash2_server.manager import Manager
from dflash2_server.quantize.jobs import WORKER, QuantizeJobs
from dflash2_server.quantize.output import Hidden, output_root
from dflash2_server.work import QuantizeJob
from tests.manager.managing import managed, until, write_models
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, write_drafter

ROOT = Path(__file__).parents[2]


class Jobs:
    """Jobs over a folder of tiny models, with what they published."""

    def __init__(self, models: Path, own: Path, worker: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.library = Library([models], None)
        self.library.refresh()
        self.jobs = QuantizeJobs(
            self.library, self.library.get, lambda: [models], self._publish, own=own, worker=worker
        )

    def _publish(self, kind: str, data: Any) -> None:
        self.events.append((kind, dict(data)))

    def ended(self, id: str) -> QuantizeJob:
        """The job once its process is gone."""
        deadline = time.monotonic() + 30
        while not self.jobs.get(id).ended or self.jobs._running is not None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.jobs.get(id)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of `write_models`, and a drafter whose rows can be packed, as "packable"."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    target = write_target(folder / "four", seed=3)
    sizes = {"intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 1, "layer_types": None}
    write_drafter(folder / "packable", tiny_drafter_config(target, **sizes))
    return folder


@pytest.fixture
def models(tmp_path: Path, originals: Path) -> Path:
    """A folder with links to the models, so that each test has one of its own."""
    folder = tmp_path / "models"
    folder.mkdir()
    for model in originals.iterdir():
        (folder / model.name).symlink_to(model)
    return folder


@pytest.fixture
def scripted(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Jobs]]:
    made: list[Jobs] = []

    def scripted(script: str) -> Jobs:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("QUANTIZE_SCRIPT", script)
        made.append(Jobs(models, tmp_path / "own", "tests.manager.quantize_worker"))
        return made[-1]

    yield scripted
    for jobs in made:
        jobs.jobs.close()


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_copy_of_a_drafter_is_listed_and_serves(models: Path, tmp_path: Path) -> None:
    """The real process, by the manager, whose models lie in no configured folder."""

    async def test() -> None:
        async with managed(tmp_path, models) as manager, asyncio.timeout(60):
            first = manager.events.last_id
            job = manager.quantizations.start("packable", "w8:gs32")
            assert (job.state, job.spec, job.name) == ("running", "w8a16:gs32", "packable-w8a16-gs32")
            await until(lambda: manager.quantizations.get(job.id).ended, 60)
            job = manager.quantizations.get(job.id)
            assert (job.state, job.error) == ("completed", None)
            assert job.path == str(tmp_path / "own" / "packable-w8a16-gs32")
            assert job.summary is not None
            assert " MB to " in job.summary
            kinds = [event.kind for event in manager.events.since(first)]
            assert kinds.count("library") == 1
            copy = next(fit for fit in manager.model("one").drafters if fit.id == job.name)
            assert copy.quantized_from == "packable", "it is not chosen beside that"
            await serves(manager, job.name)

    asyncio.run(test())
    assert left_over(tmp_path / "own") == []


async def serves(manager: Manager, drafter: str) -> None:
    view = manager.model(drafter)
    assert view.kind == "drafter"
    assert view.deletable
    await manager.save_settings("one", {"dflash_enabled": True, "dflash_draft_model": drafter})
    running = (await manager.load("one")).running
    assert running is not None
    assert (running.drafter, running.engine) == (drafter, "dflash2")
    assert running.draft_quant == "w8a32:gs32", "it computes as its target does"


def test_progress_and_the_end_are_told(scripted: Callable[[str], Jobs], models: Path) -> None:
    jobs = scripted("do it")
    job = jobs.ended(jobs.jobs.start("drafter", "w4a16:gs64", "copy").id)
    assert (job.state, job.bytes, job.summary) == ("completed", 4, "8.0 MB to 4.0 MB")
    assert job.path == str(models / "copy")
    assert (models / "copy" / "half.safetensors").read_bytes() == b"half"
    told = [(data["state"], data["stage"], data["share"]) for kind, data in jobs.events if kind == "quantize"]
    assert told == [("running", None, None), ("running", "writing", 0.5), ("completed", None, None)]
    assert ("library", {"path": str(models / "copy")}) in jobs.events
    assert left_over(models) == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("refuse", "group size 64 does not divide 96 columns: use 32"),
        ("die", "its process ended with 3: Killed by nobody"),
    ],
)
def test_a_process_that_fails_leaves_its_reason_alone(
    scripted: Callable[[str], Jobs], models: Path, script: str, error: str
) -> None:
    jobs = scripted(script)
    before = sorted(models.iterdir())
    job = jobs.ended(jobs.jobs.start("drafter", "w4a16:gs64").id)
    assert (job.state, job.error, job.path) == ("failed", error, None)
    assert sorted(models.iterdir()) == before


def test_one_at_a_time_and_cancelling_leaves_nothing(scripted: Callable[[str], Jobs], models: Path) -> None:
    jobs = scripted("hang")
    before = sorted(models.iterdir())
    job = jobs.jobs.start("drafter", "w4a16:gs64")
    with pytest.raises(EngineBusy, match=f"the quantise job {job.id} of drafter runs"):
        jobs.jobs.start("drafter", "w8a16:gs64")
    while jobs.jobs.get(job.id).stage is None:  # it has written something
        time.sleep(0.005)
    assert left_over(models)
    assert jobs.jobs.cancel(job.id).state == "cancelled"
    assert jobs.ended(job.id).state == "cancelled"
    assert sorted(models.iterdir()) == before
    with pytest.raises(RequestError, match="cancelled already"):
        jobs.jobs.cancel(job.id)
    assert [one.id for one in jobs.jobs.list()] == [job.id]


def test_closing_ends_it(scripted: Callable[[str], Jobs], models: Path) -> None:
    jobs = scripted("hang")
    job = jobs.jobs.start("drafter", "w4a16:gs64")
    jobs.jobs.close()
    assert jobs.jobs.get(job.id).state == "cancelled"
    assert left_over(models) == []
    with pytest.raises(EngineBusy, match="shutting down"):
        jobs.jobs.start("drafter", "w4a16:gs64")


@pytest.mark.parametrize(
    ("drafter", "spec", "name", "param"),
    [
        ("one", "w4a16:gs64", None, "model"),
        ("drafter", "w5", None, "spec"),
        ("drafter", "off", None, "spec"),
        ("drafter", "w4a16:gs64", "stranger", "name"),
        ("drafter", "w4a16:gs64", "demo", "name"),
        ("drafter", "w4a16:gs64", "../copy", "name"),
        ("drafter", "w4a16:gs64", ".hidden", "name"),
        ("drafter", "w4a16:gs64", "", "name"),
        ("drafter", "w4a16:gs64", "x" * 97, "name"),
    ],
)
def test_wrong_jobs_are_refused_by_name(
    scripted: Callable[[str], Jobs], models: Path, drafter: str, spec: str, name: str | None, param: str
) -> None:
    jobs = scripted("do it")
    with pytest.raises(RequestError) as refused:
        jobs.jobs.start(drafter, spec, name)
    assert refused.value.param == param
    assert jobs.jobs.list() == []
    assert left_over(models) == []


def test_what_is_not_there_is_refused(scripted: Callable[[str], Jobs]) -> None:
    jobs = scripted("do it")
    with pytest.raises(ModelNotFound):
        jobs.jobs.start("nothing", "w4a16:gs64")
    with pytest.raises(RequestError) as refused:
        jobs.jobs.get("q1")
    assert refused.value.param == "job"


def test_the_folder_is_the_first_that_can_be_written_to(tmp_path: Path) -> None:
    own, second = tmp_path / "own", tmp_path / "second"
    second.mkdir()
    assert output_root([tmp_path / "none", second], own) == second
    assert output_root([], own) == own


def test_a_folder_that_cannot_be_made_is_told(models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    jobs = Jobs(models, tmp_path / "file" / "own", WORKER)
    jobs.jobs._folders = list
    with pytest.raises(DFlashError, match="cannot be written to"):
        jobs.jobs.start("drafter", "w4a16:gs64")
    assert jobs.jobs.list() == []


def test_a_packed_drafter_is_refused_at_once(scripted: Callable[[str], Jobs], models: Path) -> None:
    config = json.loads((models / "drafter" / "config.json").read_text())
    packed = {"quantization": {"bits": 4, "group_size": 64}, "dflash2_quantized_from": "org/drafter"}
    shutil.copytree(models / "drafter", models / "packed")
    (models / "packed" / "config.json").write_text(json.dumps(config | packed))
    jobs = scripted("do it")
    with pytest.raises(
        RequestError, match=r"packed is quantised already \(4-bit, group 64\): quantise org/drafter"
    ) as no:
        jobs.jobs.start("packed", "w8a16:gs64")
    assert no.value.param == "model"


def test_what_a_killed_server_left_is_swept_and_a_living_one_keeps_its_own(
    scripted: Callable[[str], Jobs], models: Path
) -> None:
    (models / ".quantize-old").mkdir()
    (models / ".quantize-old" / "half").write_text("")
    other = Hidden.made(models, "living")
    assert left_over(models) == [".quantize-living"]
    (models / ".quantize-new").mkdir()
    jobs = scripted("do it")
    jobs.jobs.sweep()
    assert left_over(models) == [".quantize-living"]
    (models / ".quantize-new").mkdir()
    jobs.ended(jobs.jobs.start("drafter", "w4a16:gs64").id)
    assert left_over(models) == [".quantize-living"]
    os.close(other.descriptor)  # as when its process ends
    jobs.jobs.sweep()
    assert left_over(models) == []


def test_the_start_of_a_server_sweeps(models: Path, tmp_path: Path) -> None:
    left = tmp_path / "own" / ".quantize-old"
    left.mkdir(parents=True)

    async def test() -> None:
        async with managed(tmp_path, models):
            assert not left.exists()

    asyncio.run(test())
