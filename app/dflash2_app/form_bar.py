"""What stands below a form: how many changes are not saved, Save, Discard, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from nicegui import ui

from dflash2_app.parts import button

NAMED = 4


class SaveBar:
    """It stays in sight at the bottom of the window."""

    def __init__(self, save: Callable[[], Awaitable[None]], discard: Callable[[], None]) -> None:
        self._any = False
        with ui.element("div").classes("save-bar").props('role=region aria-label="Changes"'):
            with ui.element("div").classes("grow"):
                self._unsaved = ui.label().classes("wrap").props("data-testid=unsaved")
                self._said = ui.label().classes("wrap small").props("role=status data-testid=save-result")
            self._discard = button("Discard", discard, name="discard")
            self._save = button("Save", save, name="save", kind="unelevated")
        self.show([])
        self.say("")

    def show(self, unsaved: Sequence[str]) -> None:
        """The labels of the fields that are not saved."""
        self._unsaved.set_text(unsaved_words(unsaved))
        self._discard.set_enabled(bool(unsaved))
        self._save.set_enabled(bool(unsaved))
        if bool(unsaved) != self._any:
            self._any = bool(unsaved)
            ui.run_javascript(f"window.dflashUnsaved = {str(self._any).lower()}")

    def say(self, text: str, *, bad: bool = False) -> None:
        self._said.set_text(text)
        self._said.set_visibility(bool(text))
        self._said.classes(add="bad-text" if bad else "tone-good", remove="tone-good" if bad else "bad-text")


def unsaved_words(labels: Sequence[str]) -> str:
    """2 unsaved changes: DFlash, Draft model."""
    if not labels:
        return "No unsaved changes"
    named = ", ".join(labels[:NAMED]) + (f" and {len(labels) - NAMED} more" if len(labels) > NAMED else "")
    return f"{len(labels)} unsaved change{'s' if len(labels) > 1 else ''}: {named}"
