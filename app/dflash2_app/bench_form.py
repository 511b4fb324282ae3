"""The form of the page Bench: which pair, which block sizes, on what, how often, with how much work that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

from dflash2_app import bench_request as asked
from dflash2_app.bench_request import AUTOMATIC, Wanted
from dflash2_app.form_values import Wrong
from dflash2_app.live import Part
from dflash2_app.model_card import settings_path
from dflash2_app.parts import button, testid
from dflash2_mlx.errors import DFlashError
from dflash2_mlx.prompts import KINDS
from dflash2_server.management import Management, ModelView


class BenchForm:
    """`started` is called with the id of a bench that was started here."""

    def __init__(self, manager: Management, started: Callable[[str], None]) -> None:
        self._manager = manager
        self._started = started
        self._running = False
        self._numbers: dict[str, ui.input] = {}
        self._sizes = self._depths = Checks("", {}, (), _nothing)
        with ui.element("section").classes("panel stack bench-form").props('aria-label="What to measure"'):
            self._build_model()
            self._room = Part[ModelView | None](self._room_key, self._build_room, classes="bench-choices")
            self._build_choices()
            self._build_numbers()
            with ui.element("div").classes("line"):
                self._amount = ui.label().classes("grow soft small wrap")
                self._amount.props("role=status data-testid=bench-amount")
                self._start = button("Start", self._begin, name="bench-start", icon="play_arrow", kind="unelevated")
            self._fault = ui.label().classes("bad-text small wrap").props("role=alert data-testid=bench-fault")
        self._say("")
        self.show(False)

    def show(self, running: bool) -> None:
        """What the manager says now; what was chosen stays. `running`: another one has to end first."""
        views = asked.offered(self._manager.models())
        options = {view.id: asked.choice_words(view) for view in views}
        if options != self._model.options:
            value = self._model.value if self._model.value in options else next(iter(options), None)
            self._model.set_options(options, value=value)
        self._none.set_visibility(not options)
        self._running = running
        self._start.set_text("One runs" if running else "Start")
        self._show_chosen(self._chosen(views))

    def _show_chosen(self, chosen: ModelView | None) -> None:
        self._room.show(chosen)
        self._note.show(chosen)
        hindered = chosen is None or bool(asked.hindrance_words(chosen))
        self._start.set_enabled(not hindered and not self._running)
        self._show_amount()

    def _chosen(self, views: Sequence[ModelView]) -> ModelView | None:
        return next((view for view in views if view.id == self._model.value), None)

    def _build_model(self) -> None:
        self._model = ui.select({}, label="Pair", on_change=self._chose).props("outlined dense options-dense")
        testid(self._model.classes("full-width"), "bench-model")
        self._none = ui.label("No model on disk has a drafter that fits: download one first.")
        self._none.classes("note wrap").props("data-testid=bench-no-pair")
        self._note = Part[ModelView | None](_note_key, _build_note)

    def _build_room(self, view: ModelView | None) -> None:
        """The choices that depend on the pair. Of what was chosen, what this pair has stays chosen."""
        if view is None:
            return
        widest = asked.widest(view)
        sizes = [AUTOMATIC, *range(2, widest + 1)]
        before = self._sizes.value
        kept = [size for size in before if size in sizes] or [AUTOMATIC]
        words = {size: asked.size_words(size) for size in sizes}
        self._sizes = Checks("Block sizes", words, kept, self._edited, fixed="1, plain decoding", name="size")
        depths = {depth: asked.depth_words(depth) for depth in self._depths_for(view)}
        self._depths = Checks(
            "Context", depths, [depth for depth in self._depths.value if depth in depths] or [0], self._edited,
            name="depth",
        )  # fmt: skip

    def _build_choices(self) -> None:
        with ui.element("div").classes("bench-choices"):
            self._kinds = Checks(
                "Content", {kind: kind for kind in KINDS}, asked.default_kinds(), self._edited, name="kind"
            )
            modes = {mode: f"{mode}: {words}" for mode, words in asked.modes_there().items()}
            self._modes = Checks("Verify mode", modes, list(modes), self._edited, name="mode")
            temperatures = {heat: asked.temperature_words(heat) for heat in asked.TEMPERATURES}
            self._temperatures = Checks("Temperature", temperatures, [0.0], self._edited, name="temperature")

    def _build_numbers(self) -> None:
        with ui.element("div").classes("bench-numbers"):
            for name, label in asked.NUMBERS.items():
                changed = self._chose if name == "max_tokens" else self._edited
                made = ui.input(label, value=str(asked.DEFAULT_NUMBERS[name]), on_change=changed)
                made.props("outlined dense inputmode=numeric autocomplete=off")
                testid(made, f"bench-{name}")
                self._numbers[name] = made

    def _chose(self, _: Any = None) -> None:
        """Another pair, or longer answers: its own sizes and depths."""
        self._say("")
        self._show_chosen(self._chosen(asked.offered(self._manager.models())))

    def _edited(self, _: Any = None) -> None:
        self._say("")
        self._show_amount()

    def _show_amount(self) -> None:
        try:
            wanted = self._wanted()
        except Wrong as wrong:
            self._amount.set_text(f"{wrong}.")
            return
        self._amount.set_text(asked.missing(wanted) or asked.amount_words(wanted))

    def _wanted(self) -> Wanted:
        """Raises Wrong for what is no number."""
        numbers = {name: asked.whole(name, made.value) for name, made in self._numbers.items()}
        return Wanted(
            block_sizes=self._sizes.value,
            modes=self._modes.value,
            kinds=self._kinds.value,
            temperatures=self._temperatures.value,
            depths=self._depths.value,
            **numbers,
        )

    def _number(self, name: str, otherwise: int) -> int:
        try:
            return asked.whole(name, self._numbers[name].value)
        except (KeyError, Wrong):
            return otherwise

    def _depths_for(self, view: ModelView) -> tuple[int, ...]:
        return asked.depths_for(view, self._number("max_tokens", asked.DEFAULT_NUMBERS["max_tokens"]))

    def _room_key(self, view: ModelView | None) -> object:
        return None if view is None else (view.id, asked.widest(view), self._depths_for(view))

    def _begin(self) -> None:
        """What is wrong is told below the form, and nothing of it is lost."""
        try:
            wanted = self._wanted()
        except Wrong as wrong:
            self._say(f"{wrong}.")
            return
        lacking = asked.missing(wanted)
        if lacking:
            self._say(lacking)
            return
        try:
            job = self._manager.benches.start(str(self._model.value), wanted.request())
        except DFlashError as error:
            self._say(str(error))
            return
        self._started(job.id)

    def _say(self, fault: str) -> None:
        self._fault.set_text(fault)
        self._fault.set_visibility(bool(fault))


class Checks:
    """Checkboxes of one question. `fixed` is one that is always on. An empty question has no elements."""

    def __init__(
        self,
        title: str,
        options: Mapping[Any, str],
        chosen: Sequence[Any],
        changed: Callable[[], None],
        *,
        fixed: str = "",
        name: str = "",
    ) -> None:
        self._boxes: dict[Any, ui.checkbox] = {}
        if not options:
            return
        with ui.element("fieldset").classes("checks"):
            with ui.element("legend"):
                ui.label(title)
            if fixed:
                ui.checkbox(fixed, value=True).props("dense disable")
            for option, words in options.items():
                box = ui.checkbox(words, value=option in chosen, on_change=lambda _: changed()).props("dense")
                testid(box, f"{name}-{option}")
                self._boxes[option] = box

    @property
    def value(self) -> list[Any]:
        return [option for option, box in self._boxes.items() if box.value]


def _nothing() -> None:
    """Of a question that has not been built."""


def _note_key(view: ModelView | None) -> object:
    return None if view is None else (view.id, asked.note_words(view))


def _build_note(view: ModelView | None) -> None:
    words = asked.note_words(view) if view is not None else ""
    if view is None or not words:
        return
    with ui.element("div").classes("note line small").props("data-testid=bench-note"):
        ui.label(words).classes("wrap")
        if "settings" in words:
            ui.link("Settings", settings_path(view.id))
