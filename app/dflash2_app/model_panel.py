"""Beside a model's form: what runs, why not what was asked for, and what a load would take with what is typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from dflash2_app import model_words
from dflash2_app.exactness_line import ExactnessLine
from dflash2_app.live import Part
from dflash2_app.model_actions import Actions, estimate_table
from dflash2_app.model_card import RunningFacts
from dflash2_app.parts import button, chip, testid
from dflash2_app.wording import reason, state_chip
from dflash2_mlx.errors import DFlashError
from dflash2_server.management import Estimate, Management, ModelView


class ModelPanel:
    def __init__(self, manager: Management, view: ModelView) -> None:
        self._manager = manager
        self._actions = Actions(manager)
        self._view = view
        with ui.element("section").classes("panel stack").props("data-testid=panel"):
            with ui.element("div").classes("line"):
                self._state = Part(state_chip, self._build_state, classes="grow")
                self._toggle = button("Load", self._load_or_unload, name="panel-load", kind="outline")
            self._facts = Part(model_words.facts, self._build_facts, classes="model-facts")
            self._reason = Part(reason, self._build_reason)
            self._running = RunningFacts()
            self._exactness = ExactnessLine()
            self._notes = Part(_notes, self._build_notes)
        with ui.element("section").classes("panel stack"):
            ui.label("Memory of a load").classes("text-weight-bold").props("role=heading aria-level=2")
            self._estimate = Part(_estimate_key, _build_estimate)
        self.show(view, {})

    def show(self, view: ModelView, changes: Mapping[str, Any]) -> None:
        """`changes` are those that are typed and not saved."""
        self._view = view
        for part in (self._state, self._facts, self._reason, self._notes):
            part.show(view)
        self._running.show(view)
        self._exactness.show(view.running.exactness if view.running is not None else None)
        ready = view.state == "ready"
        self._toggle.set_text("Unload" if ready else "Load")
        self._toggle.set_enabled(view.state not in model_words.MOVING and view.problem is None)
        try:
            self._estimate.show(self._manager.estimate(view.id, changes))
        except DFlashError as error:
            self._estimate.show(str(error))

    async def _load_or_unload(self) -> None:
        if self._view.state == "ready":
            await self._actions.unload(self._view.id)
        else:
            await self._actions.load(self._view.id)

    def _build_state(self, view: ModelView) -> None:
        text, tone = state_chip(view)
        testid(chip(text, tone), "panel-state")

    def _build_facts(self, view: ModelView) -> None:
        for word in model_words.facts(view):
            ui.label(word)

    def _build_reason(self, view: ModelView) -> None:
        why = reason(view)
        if why:
            kind = "note-warn" if view.state == "ready" else "note-bad"
            ui.label(why).classes(f"note {kind} wrap small").props("data-testid=panel-reason")

    def _build_notes(self, view: ModelView) -> None:
        notes = _notes(view)
        if not notes:
            return
        ui.label("Saved, and not in force").classes("text-weight-bold small")
        with ui.element("ul").classes("notes small").props("data-testid=notes"):
            for note in notes:
                with ui.element("li").classes("wrap"):
                    ui.label(note)


def _notes(view: ModelView) -> tuple[str, ...]:
    """What is saved and does not run, with the reason."""
    kept = view.running.notes if view.running is not None else ()
    waiting = tuple(f"{name}: after a reload, which waits until the model is idle" for name in view.requires_reload)
    return (*kept, *waiting)


def _estimate_key(told: Estimate | str) -> object:
    return told


def _build_estimate(told: Estimate | str) -> None:
    if isinstance(told, str):
        ui.label(told).classes("soft small wrap").props("data-testid=no-estimate")
        return
    said = model_words.estimate_line(told)
    chip(told.verdict, said.tone).props("data-testid=panel-verdict")
    estimate_table(told)
    if told.evicts:
        ui.label(f"Unloaded first: {', '.join(told.evicts)}").classes("warn-text small wrap")
