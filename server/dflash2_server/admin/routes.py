"""All routers of the admin API, in the order in which the application includes them."""

from __future__ import annotations

from fastapi import APIRouter

from dflash2_server.admin import benches, globals, hub, live, models, quantize, settings


def routers() -> list[APIRouter]:
    """For an application whose `state.manager` is a `management.Management`.

    The settings come before the models: an id may have slashes, so that of a model would take their path.
    """
    parts = (settings, models, benches, quantize, hub, live, globals)
    return [part.router for part in parts]
