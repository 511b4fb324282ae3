"""The OpenAPI schema as the server behaves: errors in the protocols' envelopes, and no 422."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"anyOf": [_TEXT, {"type": "null"}]}
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
ERRORS: dict[str, Any] = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL},
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
}


def schema(app: FastAPI) -> dict[str, Any]:
    """The schema, built when it is first asked for."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(ERRORS)
        for path, operations in found["paths"].items():
            for operation in operations.values():
                operation["responses"] = _responses(path, operation["responses"])
                if path in STREAMED:
                    content = operation["responses"]["200"].setdefault("content", {"application/json": {"schema": {}}})
                    content["text/event-stream"] = {}
        app.openapi_schema = found
    return app.openapi_schema


def _responses(path: str, given: dict[str, Any]) -> dict[str, Any]:
    """What a route says of itself, and the errors of its protocol (both, where a header tells which it is)."""
    names = ["AnthropicError"] if path.startswith("/v1/messages") else ["OpenAIError"]
    if path.startswith("/v1/models"):
        names.append("AnthropicError")
    body = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    error = {"description": "An error.", "content": {"application/json": {"schema": body}}}
    kept = {status: response for status, response in given.items() if status != "422"}
    return {**kept, "4XX": error, "5XX": error}
