"""The choice of a drafter: a text field, with a menu of what fits, what is published, and what does not fit and why."""

from __future__ import annotations

from typing import NamedTuple

from nicegui import ui

from dflash2_app.form_field import Field
from dflash2_app.live import Part
from dflash2_app.model_words import missing_drafter
from dflash2_app.parts import testid
from dflash2_server.management import ModelView


class Choice(NamedTuple):
    """`value` None: it cannot be chosen."""

    value: str | None
    title: str
    words: str


def choices(view: ModelView) -> list[Choice]:
    """What the menu offers for a model."""
    fitting = [fit for fit in view.drafters if fit.fits]
    found = [Choice("", "Chosen by itself", f"{fitting[0].id}, which fits" if fitting else "the published one, if any")]
    found += [
        Choice(fit.repo_id or fit.id, fit.repo_id or fit.id, f"on disk, {fit.engine}, block size {fit.block_size}")
        for fit in fitting
    ]
    missing = missing_drafter(view)
    if missing:
        found.append(Choice(missing, missing, "published for this model, not on disk"))
    found += [Choice(None, fit.repo_id or fit.id, "; ".join(fit.reasons)) for fit in view.drafters if not fit.fits]
    return found


class DraftPicker:
    """The menu at a field's control. `show` brings it to the drafters that are there."""

    def __init__(self, field: Field) -> None:
        self._field = field
        field.control.props["placeholder"] = "chosen by itself"
        with field.control.add_slot("append"), ui.button(icon="arrow_drop_down", color=None) as button:
            button.props('flat round dense aria-label="Choose a drafter" aria-haspopup=menu')
            testid(button, "choose-drafter")
            with ui.menu().props('anchor="bottom right" self="top right"') as self._menu:
                self._part = Part(choices_key, self._build)

    def show(self, view: ModelView) -> None:
        self._part.show(view)

    def _build(self, view: ModelView) -> None:
        for choice in choices(view):
            with ui.item(on_click=lambda _, choice=choice: self._choose(choice)) as item, ui.item_section():
                ui.item_label(choice.title).classes("wrap")
                ui.item_label(choice.words).props("caption").classes("wrap")
            item.props["disable"] = choice.value is None
            testid(item, f"draft-{choice.title}")

    def _choose(self, choice: Choice) -> None:
        if choice.value is not None:
            self._field.put(choice.value)
            self._menu.close()


def choices_key(view: ModelView) -> tuple[Choice, ...]:
    return tuple(choices(view))
