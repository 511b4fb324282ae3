"""The page of one model's settings: a form made from the schema, beside what runs."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from dflash2_app import form_values, live
from dflash2_app.draft_picker import DraftPicker
from dflash2_app.form_bar import SaveBar
from dflash2_app.form_field import Field, changes_in
from dflash2_app.model_card import settings_path
from dflash2_app.model_panel import ModelPanel
from dflash2_app.parts import testid
from dflash2_app.width_view import in_force_words
from dflash2_mlx.errors import DFlashError, ModelNotFound, RequestError
from dflash2_mlx.settings.model import ModelSettings, field_facts
from dflash2_server.management import Management, ModelView, Saved

GROUPS = ("DFlash", "Cache", "Sampling", "Context", "Model")
# Fields without effect while a switch is off.
_NEED_DFLASH = "dflash_"
_NEED_QUANT = ("weight_bits", "activation_bits", "group_size")


def content(manager: Management, model_id: str) -> None:
    try:
        view = manager.model(model_id)
    except ModelNotFound as error:
        with ui.element("div").classes("note note-bad").props("role=alert data-testid=not-found"):
            ui.label(str(error)).classes("wrap")
            ui.link("To the models", "/models")
        return
    if view.kind == "drafter":
        _drafter(view)
        return
    form = _Form(manager, view)
    live.follow(manager, form.follow)


def _drafter(view: ModelView) -> None:
    """A drafter has no settings of its own."""
    with ui.element("div").classes("note stack").props("data-testid=is-drafter"):
        ui.label(f"{view.id} is a drafter: it is set as Draft model in the settings of a model that it fits.")
        for target in view.targets:
            ui.link(target, settings_path(target))
        if not view.targets:
            ui.label(view.targets_reason or "").classes("soft wrap")


class _Form:
    """The fields, what is saved, and what was typed."""

    def __init__(self, manager: Management, view: ModelView) -> None:
        self._manager = manager
        self._view = view
        self._saved: ModelSettings = view.settings
        self._ready = False
        self._fields: dict[str, Field] = {}
        with ui.element("div").classes("form-columns"):
            with ui.element("div").classes("form-main"):
                for group in GROUPS:
                    self._build_group(group)
                self._ignored = live.Part(_ignored_key, _build_ignored)
                self._bar = SaveBar(self.save, self.discard)
            with ui.element("aside").classes("form-side").props('aria-label="What runs"'):
                self._panel = ModelPanel(manager, view)
        self._picker = DraftPicker(self._fields["dflash_draft_model"])
        self._ready = True
        self._show()

    def follow(self) -> None:
        """What the manager says now; what the user has typed stays."""
        try:
            view = self._manager.model(self._view.id)
        except ModelNotFound:
            self._bar.say(f"{self._view.id} is not on disk any more.", bad=True)
            return
        if view != self._view:
            self._view = view
            self._take(view.settings)
        self._panel.show(view, self._changes()[0])

    async def save(self) -> None:
        """Only what has changed. What is wrong is said at its field; nothing that was typed is lost."""
        changes, faults = self._changes()
        if faults:
            self._show_faults(faults)
            return
        if not changes:
            return
        for field in self._fields.values():
            field.show_fault(None)
        try:
            saved = await self._manager.save_settings(self._view.id, changes)
        except RequestError as error:
            self._show_faults({error.param or "": str(error)})
            return
        except DFlashError as error:
            # It is saved; the reload that it needed has failed.
            self._bar.say(str(error), bad=True)
            self.follow()
            return
        self._take(saved.settings)
        for name in changes:
            self._fields[name].put(form_values.typed_of(self._fields[name].facts, getattr(self._saved, name)))
        self._bar.say(saved_words(saved))
        self.follow()

    def discard(self) -> None:
        for name, field in self._fields.items():
            field.put(form_values.typed_of(field.facts, getattr(self._saved, name)))
            field.show_fault(None)
        self._show()

    def _build_group(self, group: str) -> None:
        with ui.element("section").classes("panel form-group"):
            ui.label(group).classes("section-title").props("role=heading aria-level=2")
            if group == "DFlash" and not self._view.dflash_compatible:
                ui.label(self._view.dflash_reason or "This model cannot be used with DFlash.").classes("note wrap")
            for facts in field_facts():
                if facts.group == group:
                    self._fields[facts.name] = Field(facts, getattr(self._saved, facts.name), self._edited)

    def _take(self, saved: ModelSettings) -> None:
        """New saved values; a field that the user has not touched follows them."""
        before, self._saved = self._saved, saved
        for name, field in self._fields.items():
            old, new = getattr(before, name), getattr(saved, name)
            if old != new and field.typed == form_values.typed_of(field.facts, old):
                field.put(form_values.typed_of(field.facts, new))
        self._show()

    def _edited(self) -> None:
        if self._ready:
            self._bar.say("")
            self._show()
            self._panel.show(self._view, self._changes()[0])

    def _changes(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What is to be saved, and by name what was typed that is no value."""
        return changes_in(self._fields, lambda name: getattr(self._saved, name))

    def _show(self) -> None:
        changes, faults = self._changes()
        unsaved = [name for name in self._fields if name in changes or name in faults]
        for name, field in self._fields.items():
            field.show(getattr(self._saved, name), unsaved=name in unsaved, note=_note(self._view, name))
            field.grey(self._without_effect(name))
        self._bar.show([self._fields[name].label for name in unsaved])
        self._ignored.show(self._saved)
        self._picker.show(self._view)

    def _without_effect(self, name: str) -> bool:
        if not name.startswith(_NEED_DFLASH) or name == "dflash_enabled" or "cache" in name:
            return name == "dflash_ssd_cache_max_bytes" and not self._fields["dflash_ssd_cache"].typed
        if not self._fields["dflash_enabled"].typed:
            return True
        return name.endswith(_NEED_QUANT) and not self._fields["dflash_draft_quant_enabled"].typed

    def _show_faults(self, faults: dict[str, str]) -> None:
        for name, fault in faults.items():
            if name in self._fields:
                self._fields[name].show_fault(fault)
        named = [self._fields[name].label for name in faults if name in self._fields]
        rest = [fault for name, fault in faults.items() if name not in self._fields]
        self._bar.say("; ".join([*rest, *([f"Nothing is saved: see {', '.join(named)}"] if named else [])]), bad=True)
        first = next((self._fields[name] for name in faults if name in self._fields), None)
        if first is not None:
            ui.run_javascript(f"getHtmlElement({first.element.id}).scrollIntoView({{block: 'center'}})")


def _note(view: ModelView, name: str) -> str:
    """Of a field that leaves the value to the program: which it is now."""
    if name != "dflash_block_size" or view.running is None or view.running.widths is None:
        return ""
    return in_force_words(view)


def saved_words(saved: Saved) -> str:
    """What has become of it."""
    if not saved.changed:
        return "Saved: nothing has changed."
    return {
        "none": "Saved.",
        "done": "Saved; the model was reloaded and runs with it.",
        "when idle": "Saved; the model is reloaded when its requests have ended.",
    }[saved.reload]


def _ignored_key(settings: ModelSettings) -> str:
    return repr(settings.model_extra)


def _build_ignored(settings: ModelSettings) -> None:
    """Keys of the file that this program does not know: kept, and shown."""
    if not settings.model_extra:
        return
    with ui.element("section").classes("panel form-group"):
        ui.label("Kept and ignored").classes("section-title").props("role=heading aria-level=2")
        ui.label("Keys of the settings file that this program does not know. They stay in the file.").classes("soft")
        with ui.element("dl").classes("facts mono").props("data-testid=ignored"):
            for name, value in settings.model_extra.items():
                with ui.element("dt"):
                    testid(ui.label(name), f"ignored-{name}")
                with ui.element("dd"):
                    ui.label(repr(value))
