"""One loaded pair on the page Live: engine, acceptance, time of a cycle, and which block size runs and why."""

from __future__ import annotations

from html import escape

from nicegui import ui

from dflash2_app import plots, width_view
from dflash2_app.exactness_line import ExactnessLine
from dflash2_app.live import Part
from dflash2_app.model_words import name_of
from dflash2_app.parts import chip
from dflash2_app.wording import count, percent, size
from dflash2_server.management import ModelView, Running


class PairView:
    """`show` takes it to another view of the same model."""

    def __init__(self, view: ModelView) -> None:
        with ui.element("section").classes("panel pair").props("data-testid=pair"):
            ui.html(f"<h2>{escape(name_of(view))}</h2>")
            with ui.element("div").classes("line"):
                self._state = Part[ModelView](_state_of, _state_chips, classes="line")
            self._exactness = ExactnessLine()
            self._facts = ui.html().props("data-testid=pair-facts")
            ui.html("<h3>Accepted drafts by position, %</h3>")
            self._acceptance = ui.html().props("data-testid=acceptance")
            ui.html("<h3>Time of a cycle</h3>")
            self._time = ui.html().props("data-testid=cycle-time")
            self._widths = _Widths()

    def show(self, view: ModelView) -> None:
        running = view.running
        if running is None:
            return
        self._state.show(view)
        self._exactness.show(running.exactness)
        self._facts.set_content(facts_html(running))
        self._acceptance.set_content(plots.acceptance_html(running.figures))
        self._time.set_content(plots.cycle_time_html(running.figures))
        self._widths.show(view)


class _Widths:
    """The block size in force, the reason, what each is expected to give, and what a cycle of it costs."""

    def __init__(self) -> None:
        with ui.element("div").props("data-testid=widths") as self._root:
            ui.html("<h3>Block size</h3>")
            self._choice = ui.label().classes("small wrap").props("data-testid=width-choice")
            ui.html("<h3>Expected tokens per second by block size</h3>")
            self._rates = ui.html().props("data-testid=width-rates")
            self._table = ui.html().classes("scroll-x").props("role=region tabindex=0 data-testid=width-table")
            self._table.props["aria-label"] = "Cost and cycles by block size"
            self._facts = ui.html().props("data-testid=width-facts")
        self._root.set_visibility(False)

    def show(self, view: ModelView) -> None:
        running = view.running
        figures = running.widths if running is not None else None
        self._root.set_visibility(figures is not None)
        if running is None or figures is None:
            return
        size, mode = view.settings.dflash_block_size, running.verify_mode
        chosen = width_view.chosen_width(figures, size, mode)
        self._choice.set_text(width_view.choice_words(figures, size, mode))
        self._rates.set_content(width_view.rates_html(figures, chosen=chosen))
        self._table.set_content(width_view.table_html(figures, chosen=chosen))
        self._facts.set_content(width_view.facts_html(figures))


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


def engine_words(view: ModelView) -> str:
    """dflash2, block size 8, dflash; dflash2, block size automatic, now 5, dflash."""
    running = view.running
    if running is None:
        return ""
    return f"{running.engine}, block size {width_view.in_force_words(view)}, {running.verify_mode}"


def _state_of(view: ModelView) -> tuple[object, ...]:
    running = view.running
    return () if running is None else (running.state, running.reason, engine_words(view), running.drafter)


def _state_chips(view: ModelView) -> None:
    running = view.running
    if running is None:
        return
    if running.state == "fallback":
        chip("plain decoding: the drafter could not be used", "warn", title=running.reason)
        ui.label(running.reason or "").classes("warn-text small wrap")
    elif running.state == "off":
        chip("plain decoding", "idle")
    else:
        chip(engine_words(view), "good")
        ui.label(f"drafter {running.drafter}").classes("soft small wrap")
