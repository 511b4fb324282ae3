"""What a search of the Hub has found, with what can be downloaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nicegui import ui

from dflash2_app.parts import button, chip, testid
from dflash2_app.wording import count, size
from dflash2_server.downloads.search import Found

Add = Callable[[str, bool], None]


def facts(found: Found) -> tuple[str, ...]:
    words = [size(found.size) if found.size else "size unknown"]
    words += [f"{count(found.downloads)} downloads", f"{count(found.likes)} likes"]
    if found.updated:
        words.append(f"updated {found.updated[:10]}")
    return tuple(words)


def results(found: Sequence[Found], there: Collection[str], add: Add) -> None:
    """`there` are the repositories that are on disk."""
    if not found:
        ui.label("Nothing found. The search looks for text models in safetensors form.").classes("soft")
        return
    with ui.element("div").classes("stack"):
        for each in found:
            _row(each, there, add)


def _row(found: Found, there: Collection[str], add: Add) -> None:
    with ui.element("article").classes("panel model") as row:
        testid(row, f"found-{found.repo_id}")
        with ui.element("div").classes("model-head"):
            with ui.element("div").classes("model-name grow"):
                ui.label(found.repo_id).classes("wrap text-weight-bold")
                if found.kind == "drafter":
                    chip("drafter", "info")
                if found.gated:
                    chip("gated", "warn", title="Its owner has to let you in; a token is needed")
                if found.repo_id in there:
                    chip("on disk", "good")
            _buttons(found, there, add)
        with ui.element("div").classes("model-facts"):
            for word in facts(found):
                ui.label(word)
            if found.drafter:
                ui.label(f"drafter {found.drafter}")


def _buttons(found: Found, there: Collection[str], add: Add) -> None:
    with ui.element("div").classes("line model-buttons"):
        if found.drafter and found.drafter not in there:
            button(
                "With its drafter", lambda: add(found.repo_id, True), name=f"download-both-{found.repo_id}",
                icon="download", kind="unelevated", title=f"Download {found.repo_id} with its drafter",
            ).props("dense padding='4px 12px'")  # fmt: skip
        if found.repo_id not in there:
            button(
                "Download", lambda: add(found.repo_id, False), name=f"download-{found.repo_id}", kind="outline",
                icon=None if found.drafter else "download", title=f"Download {found.repo_id}",
            ).props("dense padding='4px 12px'")  # fmt: skip
