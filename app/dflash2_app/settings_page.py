"""The page Settings: the server's own, with where each value comes from and what waits for a restart."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from dflash2_app import form_values, live
from dflash2_app.form_bar import SaveBar
from dflash2_app.form_field import Field, changes_in
from dflash2_app.parts import button
from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.settings.fields import FieldFacts
from dflash2_mlx.settings.server import SettingInForce, environment_name, flag_name, server_field_facts
from dflash2_server.management import Management

# The order of the page; groups that are not here come after these.
GROUPS = ("models", "downloads", "model", "network", "limits", "prefix cache", "protocols")
TITLES = {
    "models": "Models and folders",
    "downloads": "Downloads: Hub, mirror, token",
    "model": "What is loaded at the start",
    "network": "Network and keys",
    "limits": "Limits",
    "prefix cache": "Prefix cache",
    "protocols": "Protocols and logs",
}
LABELS = {
    "model_dir": "Model folders", "hub_cache": "Hub cache", "download_dir": "Download folder", "api_key": "API key",
    "hf_endpoint": "Hub address or mirror", "hf_token": "Hub token", "max_body_mb": "Largest request (MiB)",
    "idle_seconds": "Idle time (s)", "memory_limit_gb": "Memory limit (GiB)", "cache_gb": "Prefix cache (GiB)",
    "ssd_cache_dir": "SSD cache folder", "no_ui": "No pages",
}  # fmt: skip


def content(manager: Management) -> None:
    page = _Settings(manager)
    live.follow(manager, page.follow)


class _Settings:
    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._client = ui.context.client
        self._ready = False
        self._facts = {facts.name: facts for facts in server_field_facts()}
        self._saved = {each.name: each for each in manager.global_settings()}
        self._fields: dict[str, _ServerField] = {}
        ui.label(
            "A flag wins over the environment, the environment over the file, the file over the default. "
            "Save writes to the file."
        ).classes("soft wrap")
        with ui.element("div").classes("form-main"):
            for group in _groups(self._saved.values()):
                self._build_group(group)
            self._bar = SaveBar(self.save, self.discard)
        self._ready = True
        self._show()

    def follow(self) -> None:
        """Changes made elsewhere; what was typed here stays."""
        now = {each.name: each for each in self._manager.global_settings()}
        if now != self._saved:
            self._take(now)

    async def save(self) -> None:
        changes, faults = self._changes()
        if not faults and changes:
            await self._save(changes)
        for name, fault in faults.items():
            self._fields[name].show_fault(fault)
        if faults:
            self._bar.say(f"Nothing is saved: see {', '.join(self._fields[name].label for name in faults)}", bad=True)

    def discard(self) -> None:
        for name, field in self._fields.items():
            field.put(form_values.typed_of(field.facts, _kept(self._saved[name])))
            field.show_fault(None)
        self._show()

    async def _save(self, changes: dict[str, Any]) -> None:
        try:
            after = await self._manager.save_global_settings(changes)
        except RequestError as error:
            field = self._fields.get(error.param or "")
            if field is not None:
                field.show_fault(str(error))
            self._bar.say("Nothing is saved" + (f": see {field.label}" if field else f": {error}"), bad=True)
            return
        except DFlashError as error:
            self._bar.say(str(error), bad=True)
            return
        for name in changes:
            if self._facts[name].kind == "secret":
                self._fields[name].put("")
        self._take({each.name: each for each in after}, put=tuple(changes))
        restart = [name for name in changes if self._saved[name].requires_restart]
        self._bar.say("Saved." + (" A restart brings it into force." if restart else ""))

    def _build_group(self, group: str) -> None:
        with ui.element("section").classes("panel form-group"):
            ui.label(TITLES.get(group, group.capitalize())).classes("section-title").props("role=heading aria-level=2")
            for name, setting in self._saved.items():
                if setting.group == group and name in self._facts:
                    self._fields[name] = _ServerField(self._facts[name], setting, self._edited, self._clear_secret)

    async def _clear_secret(self, name: str) -> None:
        await self._save({name: None})

    def _take(self, now: dict[str, SettingInForce], *, put: tuple[str, ...] = ()) -> None:
        before, self._saved = self._saved, now
        for name, field in self._fields.items():
            untouched = field.typed == form_values.typed_of(field.facts, _kept(before[name]))
            if untouched or name in put:
                field.put(form_values.typed_of(field.facts, _kept(now[name])))
        self._show()

    def _edited(self) -> None:
        if self._ready:
            self._bar.say("")
            self._show()

    def _changes(self) -> tuple[dict[str, Any], dict[str, str]]:
        return changes_in(self._fields, lambda name: _kept(self._saved[name]))

    def _show(self) -> None:
        changes, faults = self._changes()
        unsaved = [name for name in self._fields if name in changes or name in faults]
        for name, field in self._fields.items():
            field.show_setting(self._saved[name], unsaved=name in unsaved)
        self._bar.show([self._fields[name].label for name in unsaved])


class _ServerField(Field):
    """A setting of the server; one that a flag or the environment gives cannot be changed by the file."""

    def __init__(self, facts: FieldFacts, setting: SettingInForce, changed: Any, clear: Any) -> None:
        super().__init__(facts, _kept(setting), changed, label=LABELS.get(facts.name))
        if facts.kind == "secret":
            self.control.props("autocomplete=new-password")
            self.control.props["placeholder"] = "type a new one to change it"
            with self.element.default_slot.children[-1]:
                self._clear = button(
                    "Remove from the file", lambda: clear(facts.name), name=f"clear-{facts.name}", color=None
                ).props("dense")

    def show_setting(self, setting: SettingInForce, *, unsaved: bool) -> None:
        self.show(_kept(setting), unsaved=unsaved, note=source_words(self.facts, setting))
        fixed = setting.source in ("flag", "environment")
        self.control.set_enabled(not fixed) if hasattr(self.control, "set_enabled") else None
        if self.facts.kind == "secret":
            self._clear.set_visibility(bool(setting.value or setting.pending) and not fixed)

    def _reload_words(self) -> tuple[str, Any]:
        return "needs restart", "idle"


def source_words(facts: FieldFacts, setting: SettingInForce) -> str:
    """Where a value comes from, and what a restart will bring."""
    where = {
        "flag": f"from the flag {flag_name(setting.name)}, which wins over the file",
        "environment": f"from the environment, {environment_name(setting.name)}, which wins over the file",
        "file": "from the file",
        "default": "default",
    }[setting.source]
    if facts.kind == "secret":
        where = f"set, {where}" if setting.value else "not set"
    if not setting.changed:
        return where
    return f"{where} · in force now {form_values.shown(facts, setting.value)}, after a restart " + form_values.shown(
        facts, setting.pending
    )


def _kept(setting: SettingInForce) -> Any:
    """What the file holds, which is what a form changes; else what runs."""
    return setting.pending if setting.changed else setting.value


def _groups(settings: Any) -> list[str]:
    there = dict.fromkeys(setting.group for setting in settings)
    return [group for group in GROUPS if group in there] + [group for group in there if group not in GROUPS]
