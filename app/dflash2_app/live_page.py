"""The page Live: speed, tokens per cycle, acceptance, memory, and the requests on the engine.

The server pushes a new sample when there is one; a page that shows nothing new costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nicegui import ui

from dflash2_app import plots
from dflash2_app.live import Part
from dflash2_app.live_pair import PairView
from dflash2_app.wording import size
from dflash2_server.management import ActiveRequest, LiveFigures, Management, ModelView

SAMPLE_SECONDS = 1.0
_PHASES = {"waiting": "waiting", "prefill": "reading the prompt", "decode": "answering"}
_COLUMNS = ("Request", "Model", "State", "Seconds", "Prompt", "Cached", "Answer", "tok/s", "Tokens per cycle", "Engine")


def content(manager: Management) -> None:
    ui.add_css(Path(__file__).parent / "live.css")
    with ui.element("div").classes("live"):
        page = _LivePage(manager)
    page.update()
    ui.timer(SAMPLE_SECONDS, page.update)


class _LivePage:
    """The parts of the page. `update` changes those that have something new to show."""

    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._shown_time: float | None = None
        self._empty = Part[bool](lambda empty: empty, _nothing_loaded)
        with ui.element("div").classes("tiles"):
            self._tiles = {name: _tile(name) for name in tile_values(manager.figures())}
        with ui.element("div").classes("plots"):
            self._speed = _Plot("Tokens per second", plots.speed_options, plots.speed_words, name="plot-speed")
            self._cycle = _Plot("Tokens per cycle", plots.cycle_options, plots.cycle_words, name="plot-cycles")
        with ui.element("section").classes("panel"):
            ui.html("<h2>Memory</h2>")
            self._memory = ui.html().props("data-testid=memory")
        self._pairs = Part[tuple[ModelView, ...]](_pairs_key, self._build_pairs, classes="pairs")
        self._pair_views: dict[str, PairView] = {}
        with ui.element("section").classes("panel"):
            ui.html("<h2>Requests</h2>")
            self._requests = ui.html().classes("scroll-x").props("data-testid=requests tabindex=0 role=region")
            self._requests.props["aria-label"] = "Requests"

    def update(self) -> None:
        loaded = tuple(view for view in self._manager.models() if view.running is not None)
        self._empty.show(not loaded)
        self._pairs.show(loaded)
        for view in loaded:
            self._pair_views[view.id].show(view)
        self._requests.set_content(requests_html(self._manager.activity()))
        sample = self._manager.figures()
        if sample.time != self._shown_time:
            self._shown_time = sample.time
            self._show_sample(sample)

    def _show_sample(self, sample: LiveFigures) -> None:
        for name, value in tile_values(sample).items():
            self._tiles[name].set_text(value)
        self._memory.set_content(plots.memory_html(sample))
        history = self._manager.history()
        self._speed.show(history)
        self._cycle.show(history)

    def _build_pairs(self, views: tuple[ModelView, ...]) -> None:
        self._pair_views = {view.id: PairView(view) for view in views}


class _Plot:
    """Lines over time. `words` says in text what they show."""

    def __init__(
        self,
        title: str,
        options: Callable[[Sequence[LiveFigures]], dict[str, Any]],
        words: Callable[[Sequence[LiveFigures]], str],
        *,
        name: str,
    ) -> None:
        self._options, self._words = options, words
        with ui.element("section").classes("panel"):
            ui.html(f"<h2>{escape(title)}</h2>")
            # SVG: its texts take their colour from the style sheet.
            self._chart = ui.echart(options([]), renderer="svg").classes("plot").props(f"role=img data-testid={name}")

    def show(self, history: Sequence[LiveFigures]) -> None:
        self._chart.options.update(self._options(history))
        self._chart.props["aria-label"] = self._words(history)
        self._chart.update()


def tile_values(sample: LiveFigures) -> dict[str, str]:
    held = sum(bytes_ for _, _, bytes_ in plots.memory_parts(sample))
    return {
        "Answers, tok/s": f"{sample.generation_tps:.1f}",
        "Prompts, tok/s": f"{sample.prompt_tps:.0f}",
        "Tokens per cycle": f"{sample.tokens_per_cycle:.2f}",
        "Running, waiting": f"{sample.running}, {sample.waiting}",
        "Memory held": size(held),
    }


def requests_html(requests: Sequence[ActiveRequest]) -> str:
    """A table of what runs and waits."""
    if not requests:
        return '<p class="soft">No request is running or waiting.</p>'
    head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) + "</tr>" for one in requests)
    return f'<table class="requests"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(request: ActiveRequest) -> tuple[str, ...]:
    decoding = request.phase == "decode"
    read = f"{request.prompt_done} of " if request.phase == "prefill" else ""
    return (
        str(request.number), request.model, _PHASES[request.phase], f"{request.seconds:.0f}",
        f"{read}{request.prompt_tokens}",
        str(request.cached_tokens), str(request.generation_tokens) if decoding else "–",
        f"{request.tokens_per_second:.1f}" if decoding else "–",
        f"{request.tokens_per_cycle:.2f}" if decoding else "–", request.engine,
    )  # fmt: skip


def _pairs_key(views: tuple[ModelView, ...]) -> tuple[tuple[str, str | None], ...]:
    return tuple((view.id, view.settings.display_name) for view in views)


def _nothing_loaded(empty: bool) -> None:
    if empty:
        with ui.element("div").classes("note line").props("data-testid=live-empty"):
            ui.label("Nothing is loaded. Figures appear here once a model answers.")
            ui.link("Load a model", "/models")


def _tile(name: str) -> ui.label:
    with ui.element("div").classes("panel tile"):
        value = ui.label("–").classes("tile-value")
        ui.label(name).classes("soft small")
    value.props["data-testid"] = f"tile-{name}"
    return value
