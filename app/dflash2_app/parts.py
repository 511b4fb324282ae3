"""Small things that several pages show: chips, messages, dialogs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nicegui import Client, ui

from dflash2_app.wording import Tone
from dflash2_mlx.errors import DFlashError


def chip(text: str, tone: Tone = "idle", *, title: str | None = None) -> ui.label:
    """A word on a coloured ground; the word says it all, the colour only helps."""
    label = ui.label(text).classes(f"chip chip-{tone}")
    if title:
        label.tooltip(title)
    return label


def testid(element: ui.element, name: str) -> None:
    """A name for tests; it may hold any characters but quotes."""
    element.props["data-testid"] = name


def tell(client: Client, text: str, *, bad: bool = False) -> None:
    """A message on that page, if it is still open. One of an error stays until it is closed."""
    if client.is_deleted:
        return
    with client:
        ui.notify(
            text, type="negative" if bad else "positive", multi_line=True, close_button="Close",
            timeout=0 if bad else 5000, position="bottom-right",
        )  # fmt: skip


async def attempt(client: Client, work: Awaitable[None]) -> bool:
    """Await it; an error of ours is told on the page. Whether it went well."""
    try:
        await work
    except DFlashError as error:
        tell(client, str(error), bad=True)
        return False
    return True


@contextmanager
def dialog(title: str, *, name: str, wide: bool = False) -> Iterator[ui.dialog]:
    """An open dialog that Escape closes and that is gone once closed; the focus goes back to where it was."""
    with ui.dialog(value=True) as shown, ui.card().classes("dialog wide" if wide else "dialog"):
        shown.props["aria-label"] = title
        shown.props["data-testid"] = name
        shown.on("hide", shown.delete)
        ui.label(title).classes("dialog-title").props("role=heading aria-level=2")
        yield shown


def button(
    label: str,
    action: Callable[[], object],
    *,
    name: str,
    icon: str | None = None,
    kind: str = "flat",
    color: str | None = "primary",
    title: str | None = None,
) -> ui.button:
    """`kind` is Quasar's: flat, outline or unelevated. `title` says aloud what the label does not."""
    made = ui.button(label, on_click=action, icon=icon, color=color).props(f"{kind} no-caps")
    testid(made, name)
    if title:
        made.props["aria-label"] = title
    return made
