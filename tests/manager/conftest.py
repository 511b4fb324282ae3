"""A manager in memory and a client of its admin API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.manager.admin_app import client_of
from tests.manager.doubles import FakeManager


@pytest.fixture
def manager() -> FakeManager:
    return FakeManager()


@pytest.fixture
def client(manager: FakeManager) -> Iterator[TestClient]:
    with client_of(manager) as made:
        yield made
