"""One model in the list: built once, then only what has changed is changed."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from dflash2_app import model_words
from dflash2_app.live import Part
from dflash2_app.model_actions import Actions
from dflash2_app.parts import button, chip, testid
from dflash2_app.wording import reason, state_chip
from dflash2_mlx.errors import DFlashError
from dflash2_server.management import Management, ModelView

# After this the list has been looked at again (live.LOOK_SECONDS), and a moved row stands where it belongs.
REFOCUS_MS = 500


class ModelCard:
    """A row of the list. `show` takes it to another view of the same model."""

    def __init__(self, view: ModelView, manager: Management, actions: Actions) -> None:
        self._view = view
        self._manager = manager
        self._actions = actions
        self.element = ui.element("article").classes("panel model")
        testid(self.element, f"model-{view.id}")
        with self.element:
            with ui.element("div").classes("model-head"):
                self._star = self._build_star()
                self._name = Part(_name_key, _name, classes="model-name grow")
                self._build_buttons()
            self._facts = Part(lambda shown: self._fact_words(shown), self._build_facts, classes="model-facts")
            self._dflash = Part(_dflash_key, self._build_dflash, classes="line dflash-line small")
            self._reason = Part(lambda shown: (reason(shown), shown.state), _reason)
            self._running = RunningFacts()
            with ui.element("div").classes("bar model-bar") as self._bar:
                self._filled = ui.element("div")
            self._bar.props('role=progressbar aria-label="Loading" aria-valuemin=0 aria-valuemax=100')
        self._shown: ModelView | None = None
        self.show(view)

    def show(self, view: ModelView) -> None:
        """Facts of an unloaded model change with the memory that is free, so they are always looked at."""
        self._facts.show(view)
        if view == self._shown:
            return
        self._shown = self._view = view
        for part in (self._name, self._dflash, self._reason):
            part.show(view)
        self._running.show(view)
        self._show_buttons(view)
        share = view.share or 0.0
        self._bar.set_visibility(view.state in ("waiting", "loading"))
        self._filled.style(f"width: {100 * share:.0f}%")
        self._bar.props["aria-valuenow"] = round(100 * share)

    def _build_star(self) -> ui.button:
        star = ui.button(on_click=self._favorite, color=None)
        star.props("flat round dense").classes("star")
        testid(star, f"favorite-{self._view.id}")
        return star

    async def _favorite(self) -> None:
        """The row may move by it, and what is moved loses the focus."""
        await self._actions.favorite(self._view.id)
        script = f"setTimeout(() => getHtmlElement({self._star.id})?.focus(), {REFOCUS_MS})"
        ui.run_javascript(script)

    def _build_buttons(self) -> None:
        name = self._view.id
        with ui.element("div").classes("line model-buttons"):
            self._toggle = button("Load", self._load_or_unload, name=f"load-{name}", kind="unelevated")
            self._toggle.classes("load-button")
            settings = ui.button("Settings", color="primary").props("outline no-caps")
            settings.props["href"] = settings_path(name)
            settings.props["aria-label"] = f"Settings of {name}"
            testid(settings, f"settings-{name}")
            with ui.button(icon="more_vert", color=None).props("flat round dense") as more:
                more.props["aria-label"] = f"More for {name}"
                testid(more, f"more-{name}")
                with ui.menu():
                    self._item("Memory estimate", "estimate", lambda: self._actions.estimate(name))
                    self._item("Use from a client", "connect", lambda: self._actions.connect(self._view))
                    if self._view.deletable:
                        self._item("Delete from disk …", "delete", lambda: self._actions.delete(self._view))

    def _item(self, text: str, name: str, action: object) -> None:
        testid(ui.menu_item(text, action), f"{name}-{self._view.id}")  # type: ignore[arg-type]

    def _show_buttons(self, view: ModelView) -> None:
        favorite = view.settings.is_favorite
        self._star.set_icon("star" if favorite else "star_border")
        self._star.classes(add="on" if favorite else "", remove="" if favorite else "on")
        self._star.props["aria-label"] = f"Favorite: {view.id}"
        self._star.props["aria-pressed"] = "true" if favorite else "false"
        label = {"ready": "Unload", "unloading": "Unloading …", "loading": "Loading …", "waiting": "Waiting …"}.get(
            view.state, "Try again" if view.state == "failed" else "Load"
        )
        self._toggle.set_text(label)
        testid(self._toggle, f"{'unload' if view.state == 'ready' else 'load'}-{view.id}")
        self._toggle.props["aria-label"] = f"{label} {view.id}"
        self._toggle.props["aria-disabled"] = "true" if self._is_idle_click(view) else "false"
        self._toggle.props["outline"] = view.state == "ready"
        self._toggle.props["unelevated"] = view.state != "ready"
        self._toggle.set_visibility(view.problem is None)

    def _is_idle_click(self, view: ModelView) -> bool:
        return view.state in model_words.MOVING

    async def _load_or_unload(self) -> None:
        """One button for both, so that the focus stays where it is."""
        if self._view.state == "ready":
            await self._actions.unload(self._view.id)
        elif not self._is_idle_click(self._view):
            await self._actions.load(self._view.id)

    def _fact_words(self, view: ModelView) -> tuple[tuple[str, ...], model_words.Said | None]:
        said = None
        if view.state in ("unloaded", "failed") and view.problem is None:
            try:
                said = model_words.estimate_line(self._manager.estimate(view.id))
            except DFlashError:
                said = None  # it is said where the model is loaded
        return model_words.facts(view), said

    def _build_facts(self, view: ModelView) -> None:
        words, needs = self._fact_words(view)
        for word in words:
            ui.label(word)
        if needs is not None:
            ui.label(needs.text).classes(f"tone-{needs.tone}").props("data-testid=needs")

    def _build_dflash(self, view: ModelView) -> None:
        said = model_words.dflash(view)
        ui.icon("bolt").classes(f"bolt tone-{said.tone}").props("aria-hidden=true")
        ui.label(said.text).classes("wrap soft" if said.tone == "idle" else f"wrap tone-{said.tone}")
        missing = model_words.missing_drafter(view)
        if missing:
            button(
                "Download drafter", lambda: self._actions.download(missing), name=f"download-drafter-{view.id}",
                icon="download", title=f"Download the drafter {missing}",
            ).props("dense")  # fmt: skip


class RunningFacts:
    """The figures of a loaded pair; their values change in place."""

    def __init__(self) -> None:
        self._labels: dict[str, ui.label] = {}
        self._names: tuple[str, ...] = ()
        self.element = ui.element("dl").classes("running")

    def show(self, view: ModelView) -> None:
        told = model_words.running_facts(view)
        names = tuple(name for name, _ in told)
        if names != self._names:
            self._build(names)
        for name, value in told:
            self._labels[name].set_text(value)
        self.element.set_visibility(bool(told))

    def _build(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._labels = {}
        self.element.clear()
        for name in names:
            with self.element, ui.element("div"):
                with ui.element("dt"):
                    ui.label(name)
                with ui.element("dd"):
                    self._labels[name] = ui.label()
                    testid(self._labels[name], f"running-{name.lower().replace(' ', '-')}")


def settings_path(model_id: str) -> str:
    return f"/models/{quote(model_id)}"


def _name_key(view: ModelView) -> object:
    return model_words.name_of(view), view.settings.description, state_chip(view), model_words.marks(view)


def _name(view: ModelView) -> None:
    name = model_words.name_of(view)
    ui.link(name, settings_path(view.id)).classes("model-title wrap")
    text, tone = state_chip(view)
    testid(chip(text, tone), f"state-{view.id}")
    for said in model_words.marks(view):
        chip(said.text, said.tone)
    if name != view.id:
        ui.label(view.id).classes("soft small wrap")
    if view.settings.description:
        ui.label(view.settings.description).classes("soft small wrap full-width")


def _dflash_key(view: ModelView) -> object:
    return model_words.dflash(view), model_words.missing_drafter(view)


def _reason(view: ModelView) -> None:
    why = reason(view)
    if why:
        bad = view.state == "failed" or view.problem is not None
        ui.label(why).classes(f"note {'note-bad' if bad else 'note-warn'} wrap small").props("data-testid=reason")
