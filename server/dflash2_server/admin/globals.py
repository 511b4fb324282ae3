"""The server's own settings: where each comes from, and changes to its file."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from dflash2_server.admin.asked import PREFIX, Changes, Manager
from dflash2_server.admin.views import globals_json
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=PREFIX, tags=["admin: settings"])


@router.get("/global-settings")
async def get_settings(manager: Manager) -> Response:
    """The server's settings, each with its source. Of a key or token only whether it is set."""
    return json_response(globals_json(manager.global_settings()))


@router.post("/global-settings")
async def save_settings(changes: Changes, manager: Manager) -> Response:
    """Write any of the server's settings to its file. All of them are right and saved, or nothing is.

    `requires_restart` are those of them that come into force only when the server is started again.
    """
    settings = await manager.save_global_settings(changes)
    waiting = [one.name for one in settings if one.name in changes and one.requires_restart]
    return json_response(globals_json(settings) | {"changed": list(changes), "requires_restart": waiting})
