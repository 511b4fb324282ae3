"""The page Logs: the latest lines with level and text to choose by, and the versions of what runs."""

from __future__ import annotations

import asyncio
import time
from html import escape
from pathlib import Path

from nicegui import ui

from dflash2_app.chat_view import copy_button
from dflash2_app.parts import testid
from dflash2_server.logs import LogEntry
from dflash2_server.management import Management

LOOK_SECONDS = 0.7
MOST_LINES = 500
LEVELS = {"debug": "everything", "info": "info and above", "warning": "warnings and errors", "error": "errors"}
_HERE = Path(__file__).parent


def content(manager: Management) -> None:
    ui.add_css(_HERE / "logs.css")
    ui.add_head_html(f"<script>{(_HERE / 'chat.js').read_text('utf-8')}</script>")
    _Tail(manager)
    ui.label("Versions").classes("section-title").props("role=heading aria-level=2")
    versions = ui.html('<p class="soft">Looking …</p>').classes("panel").props("data-testid=versions")

    async def show() -> None:
        facts = await asyncio.to_thread(machine_facts)
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
        versions.set_content(f'<dl class="facts">{rows}</dl>')

    ui.timer(0, show, once=True)


class _Tail:
    """The lines that the choices let through, the latest last. New ones are added, old ones are not sent again."""

    def __init__(self, manager: Management) -> None:
        self._logs = manager.logs
        self._choices: tuple[str, str] | None = None
        self._latest = 0
        with ui.element("div").classes("line log-choices"):
            self._level = ui.select(LEVELS, value="info", label="Level").props("outlined dense options-dense")
            self._text = ui.input("Text").props("outlined dense clearable debounce=250")
            self._paused = ui.switch("Pause")
            place = ui.element("div")
        for element, name in ((self._level, "log-level"), (self._text, "log-text"), (self._paused, "log-pause")):
            testid(element, name)
        self._lines = ui.log(max_lines=MOST_LINES).classes("log-lines")
        self._lines.props('role=log aria-label="Log" tabindex=0 data-testid=log')
        self._empty = ui.label("No line matches.").classes("soft").props("data-testid=log-empty")
        with place:
            copy_button(f"getHtmlElement({self._lines.id}).innerText", "Copy these lines", name="copy-log")
        ui.timer(LOOK_SECONDS, self._look)
        for choice in (self._level, self._text, self._paused):
            choice.on_value_change(self._look)

    def _look(self) -> None:
        choices = (self._level.value, self._text.value or "")
        if choices != self._choices:
            self._choices, self._latest = choices, 0
            self._lines.clear()
        elif self._paused.value:
            return
        level, text = choices
        entries = self._logs.entries(level, text, limit=MOST_LINES, after=self._latest)
        for entry in entries:
            self._latest = entry.number
            self._lines.push(line_of(entry), classes=f"log-{entry.level.lower()}")
        self._empty.set_visibility(not self._lines.default_slot.children)


def line_of(entry: LogEntry) -> str:
    """12:03:04 INFO dflash2_server.manager: what happened; the time is this machine's."""
    clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
    return f"{clock} {entry.level} {entry.name}: {entry.message}"


def machine_facts() -> dict[str, str]:
    """Versions, system and device, as `dflash2-mlx doctor` tells them."""
    from dflash2_mlx import machine

    device = machine.device()
    named = " ".join(str(device[key]) for key in ("backend", "device_name", "architecture") if device.get(key))
    return {**machine.versions(), "system": machine.system(), "device": named, "BLAS": machine.blas()}
