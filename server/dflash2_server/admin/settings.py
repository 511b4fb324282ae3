"""A model's settings: read with what a form needs, and changed."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from dflash2_server.admin.asked import PREFIX, Changes, Manager, named
from dflash2_server.admin.refusals import load_refusals
from dflash2_server.admin.views import saved_json, settings_json
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=PREFIX, tags=["admin: models"])


@router.get("/models/{id:path}/settings")
async def get_settings(id: str, manager: Manager) -> Response:
    """A model's settings as they are stored, what they come to, and what there is to set."""
    return json_response(settings_json(named(manager, id)))


@router.put("/models/{id:path}/settings")
async def put_settings(id: str, changes: Changes, manager: Manager) -> Response:
    """Change any of a model's settings. All of them are right and saved, or nothing is.

    What needs a reload of a loaded model comes into force at once where it is idle, else when it is. Where that reload
    fails (409) the settings are saved all the same.
    """
    view = named(manager, id)
    with load_refusals():
        saved = await manager.save_settings(view.id, changes)
    return json_response(saved_json(saved))
