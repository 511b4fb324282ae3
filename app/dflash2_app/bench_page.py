"""The page Bench: plain against speculative decoding of a pair on this machine, now and earlier.

What runs and what it found are the manager's: every tab shows the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nicegui import ui

from dflash2_app import bench_words, live
from dflash2_app.bench_form import BenchForm
from dflash2_app.bench_job import JobView
from dflash2_app.parts import button, chip, tell, testid
from dflash2_mlx.errors import DFlashError
from dflash2_server.management import Management
from dflash2_server.work import BenchJob


def content(manager: Management) -> None:
    for sheet in ("live.css", "bench.css"):
        ui.add_css(Path(__file__).parent / sheet)
    page = _Bench(manager)
    live.follow(manager, page.show)


class _Bench:
    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._client = ui.context.client
        self._open: str | None = None  # the id of the one that the reader has opened; None: the newest
        ui.label(
            "Every block size answers the same prompts in turn with plain decoding, so that a machine that warms up "
            "slows all alike. Requests that come meanwhile disturb the figures, and are told."
        ).classes("soft small wrap bench-lead")
        self._form = BenchForm(manager, self._opened)
        self._job = JobView(self._cancel)
        self._earlier = live.Part[tuple[Sequence[BenchJob], str | None]](_earlier_key, self._build_earlier)

    def show(self) -> None:
        jobs = self._manager.benches.list()
        running = any(not job.ended for job in jobs)
        self._form.show(running)
        shown = next((job for job in jobs if job.id == self._open), next(iter(jobs), None))
        self._job.show(shown)
        self._earlier.show((jobs, shown.id if shown is not None else None))

    def _opened(self, id: str) -> None:
        self._open = id
        self.show()

    def _cancel(self, id: str) -> None:
        try:
            self._manager.benches.cancel(id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
        self.show()

    def _build_earlier(self, told: tuple[Sequence[BenchJob], str | None]) -> None:
        jobs, shown = told
        if not jobs:
            return
        ui.label("Results").classes("section-title").props("role=heading aria-level=2")
        with ui.element("div").classes("stack").props("role=list data-testid=bench-list"):
            for job in jobs:
                self._build_row(job, job.id == shown)

    def _build_row(self, job: BenchJob, shown: bool) -> None:
        with ui.element("div").classes("panel line").props("role=listitem"):
            with ui.element("div").classes("grow stack bench-row"):
                with ui.element("div").classes("line"):
                    ui.label(bench_words.title(job)).classes("text-weight-bold wrap")
                    chip(*bench_words.STATES[job.state])
                ui.label(bench_words.request_words(job)).classes("soft small wrap")
            open_it = button(
                "Shown" if shown else "Open", lambda: self._opened(job.id), name=f"open-{job.id}", kind="outline",
                title=f"Open {bench_words.title(job)}",
            )  # fmt: skip
            open_it.props["aria-pressed"] = "true" if shown else "false"
            testid(open_it, f"open-{job.id}")


def _earlier_key(told: tuple[Sequence[BenchJob], str | None]) -> object:
    jobs, shown = told
    return tuple((job.id, job.state, job.plan is None) for job in jobs), shown
