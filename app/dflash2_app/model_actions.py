"""What a button of a model does: load (with an estimate where that matters), unload, delete, connect a client."""

from __future__ import annotations

import json

from nicegui import Client, ui

from dflash2_app import model_words
from dflash2_app.parts import attempt, button, chip, dialog, tell, testid
from dflash2_app.wording import size
from dflash2_mlx.errors import DFlashError
from dflash2_server import snippets
from dflash2_server.management import Estimate, Management, ModelView


class Actions:
    """Those of one open page."""

    def __init__(self, manager: Management) -> None:
        self._manager = manager
        self._client: Client = ui.context.client

    async def load(self, model_id: str) -> None:
        """At once where it fits; else after a look at the estimate."""
        try:
            estimate = self._manager.estimate(model_id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
            return
        if estimate.verdict in ("fits", "unknown") and not estimate.evicts:
            await self._load(model_id, force=False)
        else:
            self._load_dialog(model_id, estimate)

    def estimate(self, model_id: str) -> None:
        try:
            self._load_dialog(model_id, self._manager.estimate(model_id))
        except DFlashError as error:
            tell(self._client, str(error), bad=True)

    async def unload(self, model_id: str) -> None:
        try:
            outcome = await self._manager.unload(model_id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
            return
        tell(self._client, model_words.unloaded_words(model_id, outcome))

    async def favorite(self, model_id: str) -> None:
        view = self._manager.model(model_id)

        async def save() -> None:
            await self._manager.save_settings(model_id, {"is_favorite": not view.settings.is_favorite})

        await attempt(self._client, save())

    def download(self, repo_id: str, *, with_drafter: bool = False) -> None:
        """Queue it, and say where to see it."""
        try:
            self._manager.downloads.add(repo_id, with_drafter=with_drafter)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
            return
        tell(self._client, f"{repo_id} is queued: Downloads shows how far it is")

    def delete(self, view: ModelView) -> None:
        """A dialog in which the id must be typed."""
        with dialog(f"Delete {view.id}", name="delete-dialog") as shown:
            ui.label(f"{size(view.size)} in {view.path} are deleted from disk. This cannot be undone.").classes("wrap")
            if view.targets:
                ui.label(f"It is the drafter of {', '.join(view.targets)}.").classes("warn-text wrap")
            typed = ui.input(f"Type {view.id} to confirm").props("outlined dense autofocus autocomplete=off")
            testid(typed.classes("full-width"), "delete-confirm")

            async def act() -> None:
                if typed.value.strip() != view.id:
                    return
                shown.close()
                await self._delete(view.id)

            with ui.element("div").classes("dialog-actions"):
                button("Cancel", shown.close, name="delete-cancel")
                sure = button(f"Delete {size(view.size)}", act, name="delete-sure", kind="unelevated", color="negative")
            sure.bind_enabled_from(typed, "value", lambda value: (value or "").strip() == view.id)
            typed.on("keydown.enter", act)

    def connect(self, view: ModelView) -> None:
        """Snippets for clients, each to be copied."""
        base_url = str(self._client.request.base_url).rstrip("/")
        name = view.settings.model_alias or view.id
        needs_key = bool(self._manager.settings.api_key)
        with dialog(f"Use {name} from a client", name="snippets-dialog", wide=True) as shown:
            if needs_key:
                ui.label(f"The key is taken from the variable {snippets.KEY_VARIABLE}.").classes("soft")
            for title, make in snippets.SNIPPETS.items():
                _snippet(title, make(base_url, name, needs_key))
            with ui.element("div").classes("dialog-actions"):
                button("Close", shown.close, name="snippets-close")

    def _load_dialog(self, model_id: str, estimate: Estimate) -> None:
        fits = estimate.verdict != "does not fit"
        with dialog(f"Load {model_id}", name="load-dialog") as shown:
            chip(estimate.verdict, model_words.estimate_line(estimate).tone).props("data-testid=verdict")
            estimate_table(estimate)
            if estimate.evicts:
                ui.label(f"Unloaded first to make room: {', '.join(estimate.evicts)}.").classes("warn-text wrap")
            if not fits:
                ui.label(
                    "Loading it anyway may slow the whole machine down, or fail. A smaller context, a quantised "
                    "drafter or unloading another model makes room."
                ).classes("wrap")

            async def act() -> None:
                shown.close()
                await self._load(model_id, force=not fits)

            with ui.element("div").classes("dialog-actions"):
                button("Cancel", shown.close, name="load-cancel")
                label, name = ("Load", "load-sure") if fits else ("Load anyway", "load-anyway")
                button(label, act, name=name, kind="unelevated", color="primary" if fits else "negative")

    async def _load(self, model_id: str, *, force: bool) -> None:
        try:
            view = await self._manager.load(model_id, force=force)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
            return
        running = view.running
        if running is not None and running.state == "fallback":
            tell(self._client, f"{model_id} is loaded without its drafter: {running.reason}", bad=True)
        else:
            engine = f" with engine {running.engine}, {size(running.memory_bytes)}" if running else ""
            tell(self._client, f"{model_id} is loaded{engine}")

    async def _delete(self, model_id: str) -> None:
        try:
            freed = await self._manager.delete(model_id)
        except DFlashError as error:
            tell(self._client, str(error), bad=True)
            return
        tell(self._client, f"{model_id} is deleted: {size(freed)} freed")


def estimate_table(estimate: Estimate) -> None:
    """Where the memory of a load would go."""
    rows = [
        ("Target", size(estimate.target_bytes)),
        ("Drafter", size(estimate.drafter_bytes) if estimate.drafter_bytes else "none"),
        (f"Caches for {estimate.context:,} tokens".replace(",", "\u202f"), size(estimate.cache_bytes)),
        ("Together", size(estimate.needed)),
        ("Free now", "unknown" if estimate.available is None else size(estimate.available)),
    ]
    with ui.element("dl").classes("facts").props("data-testid=estimate"):
        for label, value in rows:
            with ui.element("dt"):
                ui.label(label)
            with ui.element("dd"):
                ui.label(value)


def _snippet(title: str, text: str) -> None:
    with ui.element("section").classes("full-width"):
        with ui.element("div").classes("line"):
            ui.label(title).classes("grow text-weight-bold").props("role=heading aria-level=3")
            copy = button("Copy", _nothing, name=f"copy-{title}", icon="content_copy", title=f"Copy: {title}")
            copy.on("click", js_handler=f"() => dflashCopy({json.dumps(text)})")
        with ui.element("pre").classes("code mono").props("tabindex=0"):
            ui.label(text)


def _nothing() -> None:
    """The browser does it by itself."""
