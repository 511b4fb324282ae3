"""Requests made from the OpenAPI schema, valid and not: no 5xx, and every error in its protocol's envelope."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dflash2_mlx.settings import ServerSettings
from dflash2_server.app import create_app
from tests.server.doubles import ScriptedService

APP = create_app(ScriptedService(), ServerSettings(allowed_host=["testserver", "localhost"]))
schema: Any = schemathesis.openapi.from_asgi("/openapi.json", APP)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_out_of_shape(case: Any) -> None:
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400 and response.content:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"]
        assert (response.json().get("type") == "error") == case.path.startswith("/v1/messages")
