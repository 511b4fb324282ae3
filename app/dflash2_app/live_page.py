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
from dflash2_app.parts import chip
from dflash2_app.wording import count, percent, size
from dflash2_server.management import ActiveRequest, LiveFigures, Management, ModelView, Running

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
        self._pair_views: dict[str, _PairView] = {}
        with ui.element("section").classes("panel"):
            ui.html("<h2>Requests</h2>")
            self._requests = ui.html().classes("scroll-x").props("data-testid=requests tabindex=0 role=region")
            self._requests.props["aria-label"] = "Requests"

    def update(self) -> None:
        loaded = tuple(view for view in self._manager.models() if view.running is not None)
        self._empty.show(not loaded)
        self._pairs.show(loaded)
        for view in loaded:
            self._pair_views[view.id].show(view.running)
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
        self._pair_views = {view.id: _PairView(view) for view in views}


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


class _PairView:
    """One loaded pair: engine in force, acceptance by position, where the time goes, the prefix cache."""

    def __init__(self, view: ModelView) -> None:
        with ui.element("section").classes("panel pair").props("data-testid=pair"):
            ui.html(f"<h2>{escape(view.settings.display_name or view.id)}</h2>")
            with ui.element("div").classes("line"):
                self._state = Part[Running](_state_of, _state_chips, classes="line")
            self._facts = ui.html().props("data-testid=pair-facts")
            ui.html("<h3>Accepted drafts by position, %</h3>")
            self._acceptance = ui.html().props("data-testid=acceptance")
            ui.html("<h3>Time of a cycle</h3>")
            self._time = ui.html().props("data-testid=cycle-time")

    def show(self, running: Running | None) -> None:
        if running is None:
            return
        self._state.show(running)
        self._facts.set_content(facts_html(running))
        self._acceptance.set_content(plots.acceptance_html(running.figures))
        self._time.set_content(plots.cycle_time_html(running.figures))


def tile_values(sample: LiveFigures) -> dict[str, str]:
    held = sum(bytes_ for _, _, bytes_ in plots.memory_parts(sample))
    return {
        "Answers, tok/s": f"{sample.generation_tps:.1f}",
        "Prompts, tok/s": f"{sample.prompt_tps:.0f}",
        "Tokens per cycle": f"{sample.tokens_per_cycle:.2f}",
        "Running, waiting": f"{sample.running}, {sample.waiting}",
        "Memory held": size(held),
    }


def facts_html(running: Running) -> str:
    figures = running.figures
    tried = figures.cache_hits + figures.cache_misses
    rows = {
        "Tokens per cycle": f"{figures.tokens_per_cycle:.2f} over {count(figures.cycles)} cycles",
        "Draft share": f"{percent(figures.draft_share)} of {count(figures.generation_tokens)} tokens were drafts",
        "Prefix cache": f"{figures.cache_hits} of {tried} prompts found, {figures.cache_entries} kept, "
        f"{size(figures.cache_bytes)}",
        "Prompt tokens": f"{count(figures.prompt_tokens)}, {count(figures.cached_tokens)} of them cached",
        "Weights": size(running.memory_bytes),
    }
    cells = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    return f'<dl class="facts small">{cells}</dl>'


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


def _state_of(running: Running) -> tuple[object, ...]:
    return (running.engine, running.state, running.reason, running.block_size, running.verify_mode, running.drafter)


def _state_chips(running: Running) -> None:
    if running.state == "fallback":
        chip("plain decoding: the drafter could not be used", "warn", title=running.reason)
        ui.label(running.reason or "").classes("warn-text small wrap")
    elif running.state == "off":
        chip("plain decoding", "idle")
    else:
        chip(f"{running.engine}, block size {running.block_size}, {running.verify_mode}", "good")
        ui.label(f"drafter {running.drafter}").classes("soft small wrap")


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
