"""Colours, style sheet and the light or dark choice, which the browser keeps. Nothing is fetched from elsewhere.

Tailwind is off: its classes would be worked out by a script in the page, anew with each change. Quasar's classes
(`row`, `items-center`, `q-pa-md`, …) and those of theme.css are what there is.
"""

from __future__ import annotations

from pathlib import Path

from nicegui import app, ui

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0f6e84"/>'
    '<path d="M18 4 7 18h7l-2 10 13-15h-8z" fill="#fff"/></svg>'
)
_HERE = Path(__file__).parent


def install() -> None:
    """For every page: brand colours, style sheet and the script that applies the choice before the first paint."""
    app.colors(
        primary="#0f6e84", secondary="#4b5a66", accent="#7a4fb5", positive="#1d7f4e", negative="#b3261e",
        info="#2f6fb0", warning="#9a5b00", dark="#1d2328", dark_page="#14181c",
    )  # fmt: skip
    ui.add_head_html(f"<script>{(_HERE / 'theme.js').read_text('utf-8')}</script>", shared=True)
    ui.add_css(_HERE / "theme.css", shared=True)
