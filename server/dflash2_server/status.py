"""Whether the process lives, whether it serves, and its figures."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse

router = APIRouter(tags=["status"])


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> dict[str, str]:
    """Liveness: it answers while the process does, whatever the engine is at."""
    return {"status": "ok", "server": "dflash2-mlx"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"description": "Requests are not served now."}})
async def ready(request: Request) -> JSONResponse:
    """Readiness: whether requests are served, and the engine's state or the reason."""
    serves, state = request.app.state.service.readiness()
    return JSONResponse({"ready": serves, "state": state}, 200 if serves else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Figures in Prometheus' text format."""
    text = request.app.state.service.metrics()
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
