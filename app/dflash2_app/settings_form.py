"""Settings of a model: under way."""

from __future__ import annotations

from nicegui import ui

from dflash2_server.management import Management


def content(manager: Management, model_id: str) -> None:
    ui.label(model_id)
