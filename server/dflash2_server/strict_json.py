"""JSON that every reader takes: in UTF-8, without NaN and infinities."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response


def strict_json(value: Any) -> str:
    """Compact JSON. Raises ValueError for NaN and infinities."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """A JSON body; half a surrogate pair, which a request or a model may have put there, becomes a question mark."""
    content = strict_json(body).encode("utf-8", "replace")
    return Response(content, status, dict(headers or {}), media_type="application/json")
