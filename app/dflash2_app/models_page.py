"""The page Models: what is on disk, what is loaded, and the drafters with the models that they fit."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from dflash2_app import live, model_words
from dflash2_app.drafter_card import DrafterCard
from dflash2_app.model_actions import Actions
from dflash2_app.model_card import ModelCard
from dflash2_app.parts import attempt, button, testid
from dflash2_server.management import Management, ModelView

# A small pair that most machines hold.
SUGGESTED = "mlx-community/Qwen3-4B-4bit"


def content(manager: Management) -> None:
    page = _Models(manager)
    live.follow(manager, page.show)


class _Models:
    """The list; `show` brings it to what the manager says."""

    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._actions = Actions(manager)
        self._cards: dict[str, ModelCard] = {}
        self._build_tools()
        self._empty = live.Part(lambda views: not _has_own(views), self._build_empty)
        self._list = ui.element("div").classes("stack").props("data-testid=models")
        self._none = ui.label("No model matches the search.").classes("soft").props("data-testid=no-match")
        self._drafter_cards: list[DrafterCard] = []
        self._drafters = live.Part(_drafters_key, self._build_drafters)

    def show(self) -> None:
        views = self._manager.models()
        self._empty.show(views)
        self._drafters.show(views)
        jobs = self._manager.quantizations.list()
        for card in self._drafter_cards:
            card.show(jobs)
        self._show_cards([view for view in views if view.kind == "model"])

    def _show_cards(self, views: list[ModelView]) -> None:
        ids = [view.id for view in views]
        before = list(self._cards)
        for gone in self._cards.keys() - set(ids):
            self._cards.pop(gone).element.delete()
        for view in views:
            if view.id in self._cards:
                self._cards[view.id].show(view)
            else:
                with self._list:
                    self._cards[view.id] = ModelCard(view, self._manager, self._actions)
        if ids != before:
            self._order(ids)
        self._filter()

    def _order(self, ids: list[str]) -> None:
        """Moved, not built again: what has the focus keeps it."""
        self._cards = {name: self._cards[name] for name in ids}
        for index, card in enumerate(self._cards.values()):
            if self._list.default_slot.children.index(card.element) != index:
                card.element.move(self._list, index)

    def _filter(self, _: Any = None) -> None:
        matching = 0
        for view in self._manager.models():
            if view.id in self._cards:
                fits = model_words.matches(view, self._search.value or "", self._choice.value or "all")
                self._cards[view.id].element.set_visibility(fits)
                matching += fits
        self._none.set_visibility(bool(self._cards) and not matching)

    def _build_tools(self) -> None:
        with ui.element("div").classes("line tools"):
            self._search = ui.input(placeholder="Search models", on_change=self._filter).classes("grow search")
            self._search.props('outlined dense clearable type=search aria-label="Search models"')
            with self._search.add_slot("prepend"):
                ui.icon("search")
            testid(self._search, "search")
            self._choice = ui.select(dict(model_words.CHOICES), value="all", on_change=self._filter)
            self._choice.props('outlined dense options-dense aria-label="Which models"').classes("choice")
            testid(self._choice, "choice")
            button("Look again", self._refresh, name="refresh", icon="refresh", title="Look at the folders again")

    async def _refresh(self) -> None:
        if await attempt(ui.context.client, self._manager.refresh()):
            self.show()

    def _build_empty(self, views: list[ModelView]) -> None:
        if _has_own(views):
            return
        demo = next((view for view in views if view.source == "embedded" and view.kind == "model"), None)
        with ui.element("section").classes("panel stack empty").props("data-testid=empty"):
            ui.label("No model on disk yet").classes("text-weight-bold").props("role=heading aria-level=2")
            ui.label(
                f"Download one to begin: {SUGGESTED} with its drafter is small and shows what speculation gains. "
                "Folders that hold models already are named in Settings."
            ).classes("wrap")
            with ui.element("div").classes("line"):
                button(
                    "Download it with its drafter", self._download_suggested, name="download-suggested",
                    icon="download", kind="unelevated",
                )  # fmt: skip
                ui.link("Search for another", "/downloads")
                ui.link("Name a folder", "/settings")
            if demo is not None:
                ui.label(f"Or load {demo.id} below: it is a part of this program and needs no network.").classes("soft")

    def _download_suggested(self) -> None:
        self._actions.download(SUGGESTED, with_drafter=True)

    def _build_drafters(self, views: list[ModelView]) -> None:
        drafters = [view for view in views if view.kind == "drafter"]
        self._drafter_cards = []
        if not drafters:
            return
        ui.label("Drafters").classes("section-title").props("role=heading aria-level=2")
        with ui.element("div").classes("stack").props("data-testid=drafters"):
            self._drafter_cards = [DrafterCard(view, self._manager, self._actions) for view in drafters]


def _has_own(views: list[ModelView]) -> bool:
    return any(view.kind == "model" and view.source != "embedded" for view in views)


def _drafters_key(views: list[ModelView]) -> tuple[object, ...]:
    return tuple(
        (view.id, view.size, view.targets, view.targets_reason, view.problem, view.deletable)
        for view in views
        if view.kind == "drafter"
    )
