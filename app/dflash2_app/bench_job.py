"""One bench on the page: how far it is, plots plain against speculative, the table, and what it all stands on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from dflash2_app import bench_plots, bench_words
from dflash2_app.live import Part
from dflash2_app.parts import button, chip, testid
from dflash2_app.wording import percent
from dflash2_mlx.bench.cells import By, Cell, cells
from dflash2_mlx.bench.model import Result
from dflash2_mlx.bench.spread import LEVEL
from dflash2_server.work import BenchJob

# The page works on the machine that is measured: while a bench runs it is drawn no more often than this.
DRAW_SECONDS = 2.0
RESULTS = "/admin/api/bench/{id}/results"
_BY: dict[By, str] = {"kind": "By content", "depth": "By context", "all": "Over everything"}


class JobView:
    """Shows one job at a time, or none. `cancel` is called with the id of the shown one."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._job: BenchJob | None = None
        self._by: By = "kind"
        self._drawn: tuple[object, ...] = ()
        self._next = 0.0
        with ui.element("section").classes("stack bench-job").props('aria-label="Bench" data-testid=bench-job') as root:
            self._root = root
            self._build_head()
            self._build_figures()
        self._root.set_visibility(False)

    def show(self, job: BenchJob | None) -> None:
        self._root.set_visibility(job is not None)
        if job is None:
            return
        other = self._job is None or self._job.id != job.id
        self._job = job
        self._head.show(job)
        self._error.show(job)
        self._progress.set_text(bench_words.progress_words(job))
        share = job.done / job.total if job.total else 0.0
        self._bar.set_visibility(not job.ended)
        self._filled.style(f"width: {100 * share:.1f}%")
        self._bar.props["aria-valuenow"] = round(100 * share)
        self._stop.set_visibility(not job.ended)
        self._stop.set_enabled(job.stage != "cancelling")
        self._links.show(job)
        if other or job.ended or time.monotonic() >= self._next:
            self._draw(job)

    def _build_head(self) -> None:
        with ui.element("div").classes("panel model"):
            with ui.element("div").classes("model-head"):
                self._head = Part[BenchJob](_head_key, _build_head, classes="model-name grow")
                self._stop = button("Cancel", self._cancel_it, name="bench-cancel", kind="outline")
            self._progress = ui.label().classes("soft small numbers wrap")
            self._progress.props("role=status data-testid=bench-progress")
            self._error = Part[BenchJob](lambda job: job.error, _build_error)
            self._links = Part[BenchJob](_links_key, _build_links, classes="line")
            with ui.element("div").classes("bar model-bar") as self._bar:
                self._filled = ui.element("div")
            self._bar.props('role=progressbar aria-label="Progress of the bench" aria-valuemin=0 aria-valuemax=100')

    def _build_figures(self) -> None:
        with ui.element("div").classes("line"):
            self._summary = ui.label().classes("grow wrap bench-summary")
            self._summary.props("data-testid=bench-summary")
            self._choice = ui.select(dict(_BY), value="kind", on_change=self._choose)
            self._choice.props('outlined dense options-dense aria-label="Figures"').classes("choice")
            testid(self._choice, "bench-by")
        with ui.element("div").classes("plots"):
            self._speed = _chart("Tokens per second", "", "plot-bench-speed", bench_plots.speed_options)
            self._ratio = _chart(
                "Against plain decoding", f"Line: the median; box: half of the pairs; whiskers: {percent(LEVEL)} "
                "interval of the median. Dashed: no difference.", "plot-bench-ratio", bench_plots.ratio_options,
            )  # fmt: skip
        with ui.element("div").classes("panel stack"):
            self._table = ui.html().classes("scroll-x").props("role=region tabindex=0 data-testid=bench-table")
            self._table.props["aria-label"] = "Figures of the bench"
            self._notes = Part[tuple[str, ...]](lambda notes: notes, _build_notes)
        with ui.element("div").classes("panel") as self._facts_panel:
            ui.html("<h2>What it stands on</h2>")
            self._facts = ui.html().props("data-testid=bench-facts")

    def _choose(self, event: Any) -> None:
        self._by = event.value
        if self._job is not None:
            self._draw(self._job)

    def _cancel_it(self) -> None:
        if self._job is not None:
            self._cancel(self._job.id)

    def _draw(self, job: BenchJob) -> None:
        """Figures and plots, where there is something new."""
        key = (job.id, job.done, job.state, self._by)
        if key == self._drawn:
            return
        self._drawn, self._next = key, time.monotonic() + DRAW_SECONDS
        result = bench_words.result_of(job)
        shown = cells(result, self._by) if result is not None else []
        for chart, options, said in (
            (self._speed, bench_plots.speed_options, bench_plots.speed_said),
            (self._ratio, bench_plots.ratio_options, bench_plots.ratio_said),
        ):
            chart.options.clear()
            chart.options.update(options(shown, self._by))
            chart.props["aria-label"] = said(shown, self._by)
            chart.update()
        self._table.set_content(bench_words.table_html(shown, self._by))
        overall = cells(result, "all") if result is not None else []
        self._summary.set_text(bench_words.summary(overall, cells(result) if result is not None else []))
        self._notes.show(_notes(result, overall))
        self._facts.set_content(bench_words.facts_html(result.facts if result is not None else {}))
        self._facts_panel.set_visibility(bool(result is not None and result.facts))


def _chart(title: str, note: str, name: str, options: Callable[[Sequence[Cell], By], dict[str, Any]]) -> ui.echart:
    with ui.element("section").classes("panel"):
        ui.html(f"<h2>{title}</h2>")
        # SVG: its texts take their colour from the style sheet.
        chart = ui.echart(options([], "kind"), renderer="svg").classes("plot bench-plot")
        chart.props(f"role=img data-testid={name}")
        if note:
            ui.label(note).classes("soft small wrap")
    return chart


def _head_key(job: BenchJob) -> object:
    return job.id, job.state, job.plan is None


def _build_head(job: BenchJob) -> None:
    ui.label(bench_words.title(job)).classes("model-title wrap").props("role=heading aria-level=2")
    text, tone = bench_words.STATES[job.state]
    testid(chip(text, tone), "bench-state")
    ui.label(bench_words.request_words(job)).classes("soft small wrap full-width")


def _build_error(job: BenchJob) -> None:
    if job.error:
        shown = ui.label(job.error).classes("note note-bad small wrap")
        shown.props("role=alert data-testid=bench-error")


def _links_key(job: BenchJob) -> object:
    return job.id, job.result is not None


def _build_links(job: BenchJob) -> None:
    """Answered by the admin API: the browser's session is enough for it."""
    if job.result is None:
        return
    place = RESULTS.format(id=job.id)
    for label, form in (("Report (HTML)", "html"), ("Data (JSON)", "json")):
        link = ui.link(label, f"{place}?format={form}", new_tab=form == "html")
        if form == "json":
            link.props["download"] = f"bench-{job.id}.json"
        testid(link, f"bench-{form}")


def _notes(result: Result | None, overall: Sequence[Cell]) -> tuple[str, ...]:
    if result is None:
        return ()
    disturbed, noted = bench_words.disturbed_words(result.samples), bench_words.noted_words(result.samples)
    found = (
        bench_words.same_words(overall), f"Disturbed: {disturbed}." if disturbed else "",
        noted, bench_words.failures_words(result),
    )  # fmt: skip
    return tuple(note for note in found if note)


def _build_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        ui.label(note).classes("soft small wrap")
