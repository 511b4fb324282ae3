"""The models that are served, in OpenAI's shape, or in Anthropic's where the request bears its version header."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from dflash2_mlx.errors import ModelNotFound
from dflash2_server.errors import speaks_anthropic
from dflash2_server.inference import ModelInfo, Service

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    service: Service = request.app.state.service
    models = service.models()
    if not speaks_anthropic(request.scope):
        return {"object": "list", "data": [openai_model(model) for model in models]}
    data = [anthropic_model(model) for model in models]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False, **ends}


@router.get("/v1/models/{name:path}", responses={404: {"description": "No such model is served."}})
async def one_model(name: str, request: Request) -> dict[str, Any]:
    """A model by its id or by a name that it also answers to; ids may have slashes."""
    if not name:
        raise ModelNotFound("no model is named: GET /v1/models lists them")
    service: Service = request.app.state.service
    model = service.model(name)
    return anthropic_model(model) if speaks_anthropic(request.scope) else openai_model(model)


def openai_model(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "dflash2-mlx",
        "context_length": model.context_length,
        "max_model_len": model.context_length,
        "dflash": {
            "engine": model.engine,
            "block_size": model.block_size,
            "automatic": model.automatic,
            "drafter": model.drafter,
            "fallback_reason": model.fallback_reason,
        },
    }


def anthropic_model(model: ModelInfo) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {"max_input_tokens": model.context_length} if model.context_length else {}
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": created,
        "lifecycle": "active",
        **known,
    }
