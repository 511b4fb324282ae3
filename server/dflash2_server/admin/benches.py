"""Benches on a loaded pair: start, follow, read, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from dflash2_mlx.bench import results
from dflash2_mlx.bench.blocks import report
from dflash2_mlx.bench.model import Result
from dflash2_mlx.errors import RequestError
from dflash2_mlx.report.page import html_page
from dflash2_server import sse
from dflash2_server.admin.asked import PREFIX, Manager, named
from dflash2_server.admin.refusals import no_bench, not_measured, unshown, work_refusals
from dflash2_server.events import MISSED, EventBus
from dflash2_server.management import Management
from dflash2_server.strict_json import json_response
from dflash2_server.work import BenchJob

router = APIRouter(prefix=f"{PREFIX}/bench", tags=["admin: benches"])

Wanted = Annotated[
    dict[str, Any],
    Body(
        description="model, and any of block_sizes, verify_modes, kinds, prompts_per_kind, max_tokens, rounds, "
        "temperatures, depths."
    ),
]
Format = Annotated[Literal["json", "html"], Query(description="html: the report as one file, with its plots.")]


@router.get("")
async def benches(manager: Manager) -> Response:
    """The benches that are kept and the one that runs, the newest first, without their samples."""
    return json_response({"benches": [job.summary() for job in manager.benches.list()]})


@router.post("/start", status_code=202)
async def start(wanted: Wanted, manager: Manager) -> Response:
    """Compare plain and speculative decoding on a model, which is loaded first where it is not. One at a time."""
    model = wanted.pop("model", None)
    if not isinstance(model, str):
        raise RequestError("model is missing: name the model to measure", param="model")
    view = named(manager, model)
    with work_refusals("bench"):
        return json_response(manager.benches.start(view.id, wanted).summary(), status=202)


@router.get(
    "/{id}/stream",
    response_class=StreamingResponse,
    responses={200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
)
async def stream(id: str, manager: Manager) -> Response:
    """A bench as it goes on: `state` with the samples so far, `progress` with each new one, at last `end`.

    It goes on without its readers.
    """
    _known(manager, id)
    frames = _frames(manager, manager.events, id)
    return sse.stream(frames, keep_alive=sse.comment, every=manager.settings.keep_alive_seconds)


@router.get("/{id}/results")
async def get_results(id: str, manager: Manager, format: Format = "json") -> Response:
    """The samples with what they stand on, once the bench has ended."""
    job = _known(manager, id)
    result = job.result
    if result is None:
        raise not_measured(job)
    if format == "html":
        page = await asyncio.to_thread(_page, job, result)
        return HTMLResponse(page, headers={"Content-Disposition": f'inline; filename="bench-{job.id}.html"'})
    with unshown(job):
        return json_response(results.as_dict(result))


def _page(job: BenchJob, result: Result) -> str:
    with unshown(job):
        return html_page(report(result))


@router.post("/{id}/cancel")
async def cancel(id: str, manager: Manager) -> Response:
    """End a bench with the cycle under way. The samples that are there are kept."""
    _known(manager, id)
    return json_response(manager.benches.cancel(id).summary())


async def _frames(manager: Management, events: EventBus, id: str) -> AsyncIterator[str]:
    coming = events.subscribe()  # before the state is read, so that nothing is between them
    job = manager.benches.get(id)
    yield sse.frame(job.as_dict(), event="state")
    if job.ended:
        yield sse.frame(job.summary(), event="end")
        return
    async for event in coming:
        if event.kind == MISSED:
            job = manager.benches.get(id)
            yield sse.frame(job.as_dict(), event="state")
            if job.ended:
                yield sse.frame(job.summary(), event="end")
                return
        elif event.kind == "bench" and event.data["id"] == id:
            ended = event.data["state"] != "running"
            yield sse.frame(dict(event.data), event="end" if ended else "progress")
            if ended:
                return


def _known(manager: Management, id: str) -> BenchJob:
    """The bench of that id."""
    if all(job.id != id for job in manager.benches.list()):
        raise no_bench(id)
    return manager.benches.get(id)
