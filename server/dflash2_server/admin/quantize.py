"""Quantised copies of drafters: start, list, cancel."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field

from dflash2_server.admin.asked import PREFIX, Manager, Options, named
from dflash2_server.admin.refusals import no_quantize_job, work_refusals
from dflash2_server.strict_json import json_response

router = APIRouter(prefix=PREFIX, tags=["admin: quantise"])


class Quantize(Options):
    """Bits, compute type and group size, and the folder of the copy."""

    spec: str = Field(default="w4a16:gs64", description="w(2|4|8)[a(16|32)][:gs(32|64|128)]")
    name: str | None = Field(default=None, description="Its folder and id; by default the drafter's, with the spec.")


@router.post("/models/{id:path}/quantize", status_code=202)
async def quantize(id: str, manager: Manager, wanted: Quantize | None = None) -> Response:
    """Write a quantised copy of a drafter beside the other models. One at a time, in a process of its own."""
    view = named(manager, id)
    given = wanted or Quantize()
    with work_refusals("quantize"):
        job = manager.quantizations.start(view.id, given.spec, given.name)
    return json_response(job.as_dict(), status=202)


@router.get("/quantize")
async def jobs(manager: Manager) -> Response:
    """The quantise jobs since the server's start, the newest first."""
    return json_response({"jobs": [job.as_dict() for job in manager.quantizations.list()]})


@router.post("/quantize/{id}/cancel")
async def cancel(id: str, manager: Manager) -> Response:
    """End a job at once. Nothing of its copy stays."""
    if all(job.id != id for job in manager.quantizations.list()):
        raise no_quantize_job(id)
    return json_response(manager.quantizations.cancel(id).as_dict())
