"""The models on disk: list, load, unload, delete. Ids may have slashes, as repository ids do."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from dflash2_mlx.errors import RequestError
from dflash2_server.admin.asked import PREFIX, Manager, Options, named
from dflash2_server.admin.background import ended_at_once
from dflash2_server.admin.refusals import load_refusals
from dflash2_server.admin.views import estimate_json, model_json, unloaded_json
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=PREFIX, tags=["admin: models"])

_GOES_ON: dict[int | str, dict[str, Any]] = {
    202: {"description": "It goes on: the model as it is now. Its state and GET /events tell the rest."}
}
Wait = Annotated[bool, Query(description="false: answer before it is through, with 202.")]
Force = Annotated[bool, Query(description="Load also what the estimate says is too big.")]
Confirm = Annotated[str | None, Query(description="The model's id once more.")]


class LoadOptions(Options):
    """The same as in the query; what is here counts."""

    force: bool | None = None
    wait: bool | None = None


class UnloadOptions(Options):
    """The same as in the query; what is here counts."""

    wait: bool | None = None


class Confirmation(Options):
    """The same as in the query; what is here counts."""

    confirm: str


@router.get("/models")
async def list_models(manager: Manager) -> Response:
    """Everything on disk that is complete: models, then drafters."""
    return json_response({"models": [model_json(view) for view in manager.models()]})


@router.get("/models/{id:path}/estimate")
async def estimate(id: str, manager: Manager) -> Response:
    """The memory that a load with the saved settings would take."""
    view = named(manager, id)
    return json_response(estimate_json(view, manager.estimate(view.id)))


@router.get("/models/{id:path}")
async def one_model(id: str, manager: Manager) -> Response:
    """A model or drafter by id, repository id or alias."""
    return json_response(model_json(named(manager, id)))


@router.post("/models/{id:path}/load", responses=_GOES_ON)
async def load(
    id: str, manager: Manager, options: LoadOptions | None = None, wait: Wait = True, force: Force = False
) -> Response:
    """Load a model with its saved settings, or join a load under way."""
    view = named(manager, id)
    given = options or LoadOptions()
    force, wait = _first(given.force, force), _first(given.wait, wait)
    loading = asyncio.ensure_future(manager.load(view.id, force=force))
    with load_refusals():
        if wait or await ended_at_once(loading):
            return json_response(model_json(await loading))
    return json_response(model_json(manager.model(view.id)), status=202)


@router.post("/models/{id:path}/unload", responses=_GOES_ON)
async def unload(id: str, manager: Manager, options: UnloadOptions | None = None, wait: Wait = True) -> Response:
    """Unload a model once its requests have ended; the answer says what was freed."""
    view = named(manager, id)
    wait = _first((options or UnloadOptions()).wait, wait)
    unloading = asyncio.ensure_future(manager.unload(view.id))
    if wait or await ended_at_once(unloading):
        return json_response(unloaded_json(view, await unloading))
    return json_response(model_json(manager.model(view.id)), status=202)


@router.delete("/models/{id:path}")
async def delete(id: str, manager: Manager, options: Confirmation | None = None, confirm: Confirm = None) -> Response:
    """Delete a model or drafter from disk. It has to be confirmed with its id, and must not be loaded."""
    view = named(manager, id)
    given = confirm if options is None else options.confirm
    if given != view.id:
        told = "is missing" if given is None else f"is {given!r:.200}"
        raise RequestError(
            f"confirm {told}: to delete {view.id!r} for good, give its id, ?confirm={view.id}", param="confirm"
        )
    return json_response({"id": view.id, "freed": await manager.delete(view.id)})


def _first(given: bool | None, other: bool) -> bool:
    return other if given is None else given
