"""One setting on a page: its label, what it is for, its control, its default and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from dflash2_app import form_values
from dflash2_app.form_values import Typed
from dflash2_app.parts import chip, testid
from dflash2_mlx.settings.fields import FieldFacts

Control = Any  # an element of NiceGUI's with a value


class Field:
    """`typed` is what stands in the control. `changed` is called when the user, or `put`, changes it."""

    def __init__(self, facts: FieldFacts, saved: Any, changed: Callable[[], None], *, label: str | None = None) -> None:
        self.facts = facts
        self.label = label or facts.label
        self._changed = changed
        self._greyed = False
        with ui.element("div").classes("field") as self.element:
            testid(self.element, f"row-{facts.name}")
            with ui.element("div").classes("field-words"):
                with ui.element("div").classes("line"):
                    ui.label(self.label).classes("field-label")
                    if facts.reload:
                        chip(*self._reload_words()).classes("small-chip")
                    self._unsaved = chip("unsaved", "info")
                    testid(self._unsaved, f"unsaved-{facts.name}")
                ui.label(self._description()).classes("soft small wrap")
                self._meta = ui.label().classes("soft small wrap")
                testid(self._meta, f"meta-{facts.name}")
            with ui.element("div").classes("field-control"):
                with ui.element("div").classes("field-line"):
                    self.control = self._build(form_values.typed_of(facts, saved))
                    self._reset = self._build_reset()
                self._fault = ui.label().classes("bad-text small wrap").props("role=alert")
                testid(self._fault, f"error-{facts.name}")
        self.show_fault(None)

    @property
    def typed(self) -> Typed:
        value = self.control.value
        return value if isinstance(value, bool) else value or ""

    def put(self, typed: Typed) -> None:
        self.control.value = typed

    def show(self, saved: Any, *, unsaved: bool, note: str = "") -> None:
        """`note` says where the value comes from."""
        self._unsaved.set_visibility(unsaved)
        default = form_values.shown(self.facts, self.facts.default)
        at_default = form_values.same(self.facts, saved, self.facts.default)
        source = note or ("default" if at_default else "saved")
        # Some descriptions of the server's say themselves what the default is.
        told = self.facts.kind == "secret" or "(default:" in self.facts.description
        words = [source] if told else [f"Default {default}", source]
        limits = form_values.limits(self.facts)
        self._meta.set_text(" · ".join([*words, *([limits] if limits else [])]))
        shown_default = self.typed == form_values.typed_of(self.facts, self.facts.default)
        resettable = (not shown_default or not at_default) and self.facts.kind != "secret"
        self._reset.classes(add="" if resettable else "invisible", remove="invisible" if resettable else "")

    def show_fault(self, message: str | None) -> None:
        self._fault.set_text(message or "")
        self._fault.set_visibility(bool(message))
        self.control.props["aria-invalid"] = "true" if message else "false"
        self.element.classes(add="wrong" if message else "", remove="" if message else "wrong")

    def grey(self, greyed: bool) -> None:
        """Without effect now; it can still be read and changed."""
        if greyed != self._greyed:
            self._greyed = greyed
            self.element.classes(add="greyed" if greyed else "", remove="" if greyed else "greyed")

    def _description(self) -> str:
        text = self.facts.description
        text = text[:1].upper() + text[1:]
        return text if self.facts.available else f"{text}. Not available: {self.facts.reason}"

    def _reload_words(self) -> tuple[str, Any]:
        return "needs reload", "idle"

    def _build_reset(self) -> ui.button:
        reset = ui.button(icon="restart_alt", on_click=self._to_default, color=None).props("flat round dense size=sm")
        reset.props["aria-label"] = f"Reset {self.label} to its default"
        testid(reset, f"reset-{self.facts.name}")
        return reset

    def _to_default(self) -> None:
        self.put(form_values.typed_of(self.facts, self.facts.default))

    def _edited(self, _: Any = None) -> None:
        self.show_fault(None)
        self._changed()

    def _build(self, typed: Typed) -> Control:
        control = self._made(typed)
        control.props["aria-label"] = self.label
        testid(control, f"field-{self.facts.name}")
        if not self.facts.available and not isinstance(typed, str):
            control.props["disable"] = True
        return control

    def _made(self, typed: Typed) -> Control:
        facts = self.facts
        if form_values.is_switch(facts):
            return ui.switch(value=bool(typed), on_change=self._edited).props("dense")
        if facts.unavailable:
            return Radios(facts, str(typed), self._edited)
        if facts.kind == "bool":
            return self._select({"": "Automatic", "on": "On", "off": "Off"}, typed)
        if facts.kind == "choice":
            options = {str(choice): str(choice) for choice in facts.choices}
            empty = {"": "Automatic"} if facts.nullable and facts.null_means is None else {}
            return self._select(empty | options, typed)
        if facts.kind in ("object", "list"):
            rows = min(6, max(2, str(typed).count("\n") + 1))
            area = ui.textarea(value=str(typed), on_change=self._edited).props(f"outlined dense rows={rows}")
            area.props["placeholder"] = "one a line" if facts.kind == "list" else '{"name": value}'
            return area.props("spellcheck=false").classes("field-wide mono")
        return self._input(str(typed))

    def _select(self, options: dict[str, str], typed: Typed) -> Control:
        select = ui.select(options, value=typed if typed in options else None, on_change=self._edited)
        return select.props("outlined dense options-dense").classes("field-narrow")

    def _input(self, typed: str) -> ui.input:
        number = self.facts.kind in ("int", "float", "bytes")
        secret = self.facts.kind == "secret"
        made = ui.input(value=typed, on_change=self._edited, password=secret).props("outlined dense autocomplete=off")
        made.props("spellcheck=false").classes("field-narrow" if number else "field-wide")
        if number:
            made.props("inputmode=" + ("numeric" if self.facts.kind == "int" else "decimal"))
        unit = "GiB" if self.facts.kind == "bytes" else self.facts.unit
        if unit:
            made.props["suffix"] = unit
        if self.facts.nullable and self.facts.null_means is None and number:
            made.props["placeholder"] = form_values.null_words(self.facts)
        return made


def changes_in(fields: Mapping[str, Field], saved: Callable[[str], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What of a form is to be saved, and by name what was typed that is no value."""
    changes: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, field in fields.items():
        try:
            change = form_values.change_of(field.facts, saved(name), field.typed)
        except form_values.Wrong as wrong:
            faults[name] = str(wrong)
        else:
            if change is not form_values.UNCHANGED:
                changes[name] = change
    return changes, faults


class Radios(ui.element):
    """A choice that shows also what cannot be chosen, with the reason."""

    def __init__(self, facts: FieldFacts, value: str, changed: Callable[[Any], None]) -> None:
        super().__init__("div")
        self._value = value
        self._changed = changed
        self._buttons: dict[str, ui.element] = {}
        self.classes("radios").props("role=radiogroup")
        with self:
            if form_values.has_automatic(facts):
                self._buttons[""] = self._button(facts, "", form_values.shown(facts, None), "automatic")
            for choice in map(str, facts.choices):
                self._buttons[choice] = self._button(facts, choice, choice, choice)

    @property
    def value(self) -> str:
        return self._value

    @value.setter
    def value(self, value: str) -> None:
        if value != self._value:
            self._value = value
            for radio in self._buttons.values():
                radio.props["model-value"] = value
                radio.update()
            self._changed(value)

    def _button(self, facts: FieldFacts, choice: str, label: str, name: str) -> ui.element:
        reason = facts.unavailable.get(choice)
        with ui.element("div").classes("radio-line"):
            radio = ui.element("q-radio").props("dense")
            for prop, value in (("val", choice), ("label", label), ("model-value", self._value)):
                radio.props[prop] = value
            testid(radio, f"field-{facts.name}-{name}")
            if reason:
                radio.props["disable"] = True
                ui.label(reason).classes("soft small")
            radio.on("update:model-value", lambda: setattr(self, "value", choice), args=[])
        return radio
