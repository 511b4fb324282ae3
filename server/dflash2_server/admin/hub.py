"""The Hub: search, and downloads with their queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import Field

from dflash2_server.admin.asked import PREFIX, Manager, Options
from dflash2_server.admin.refusals import hub_refusals, no_download
from dflash2_server.downloads import search as hub
from dflash2_server.management import Management
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=f"{PREFIX}/hf", tags=["admin: downloads"])


class Download(Options):
    """A repository, as owner/name or as a link to it."""

    repo_id: str = Field(min_length=1)
    with_drafter: bool = Field(False, description="Fetch the drafter that is published for the model too.")


@router.post("/download")
async def download(wanted: Download, manager: Manager) -> Response:
    """Queue a download. A repository that is under way already is not queued twice; its task is the answer."""
    with hub_refusals():
        tasks = manager.downloads.add(wanted.repo_id, with_drafter=wanted.with_drafter)
    return json_response({"tasks": [task.as_dict() for task in tasks]})


@router.get("/tasks")
async def tasks(manager: Manager) -> Response:
    """The queue, with those that have ended until they are removed."""
    return json_response({"tasks": [task.as_dict() for task in manager.downloads.tasks()]})


@router.post("/cancel/{task}")
async def cancel(task: str, manager: Manager) -> Response:
    """Stop a transfer at once. What has come is kept for a retry."""
    return json_response({"task": manager.downloads.cancel(_known(manager, task)).as_dict()})


@router.post("/retry/{task}")
async def retry(task: str, manager: Manager) -> Response:
    """Queue a failed or cancelled download again. It resumes from what has come."""
    return json_response({"task": manager.downloads.retry(_known(manager, task)).as_dict()})


@router.delete("/tasks/{task}")
async def remove(task: str, manager: Manager) -> Response:
    """Forget a download that has ended, and what has come of an incomplete one. Complete models stay."""
    manager.downloads.remove(_known(manager, task))
    return json_response({"id": task, "removed": True})


@router.get("/search")
async def search(
    manager: Manager,
    q: Annotated[str, Query(description="Words of a name, or a link; empty: popular models in MLX form.")] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """Models on the Hub that this program can read, and drafters; the most downloaded first."""
    settings = manager.settings
    token = None if settings.hf_token is None else settings.hf_token.get_secret_value()
    with hub_refusals():
        found = await hub.search(q, endpoint=settings.hf_endpoint, token=token, limit=limit)
    return json_response({"models": [asdict(one) for one in found]})


def _known(manager: Management, id: str) -> str:
    """The id of a task that is there."""
    if all(task.id != id for task in manager.downloads.tasks()):
        raise no_download(id)
    return id
