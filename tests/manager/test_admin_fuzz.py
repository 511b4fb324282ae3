"""Requests of the admin API made from its schema: no 5xx but those that are meant, and every error in the envelope."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from dflash2_mlx.settings import ServerSettings
from dflash2_server.admin import hub
from tests.manager.admin_app import API, admin_app
from tests.manager.doubles import FakeManager
from tests.manager.fake_downloads import fake_search

APP = admin_app(FakeManager(ServerSettings(allowed_host=["testserver"])))
# A stream does not end by itself.
schema: Any = schemathesis.openapi.from_asgi("/openapi.json", APP).include(path_regex=f"^{API}/").exclude(
    path=f"{API}/events"
)  # fmt: skip
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.hub, "search", fake_search)


@schema.parametrize()
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_out_of_shape(case: Any) -> None:
    response = case.call()
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400 and response.content:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"]
