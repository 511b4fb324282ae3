"""Results as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash2_mlx.bench.model import Result
from dflash2_mlx.bench.results import as_dict, from_dict
from dflash2_mlx.bench.run import run
from dflash2_mlx.errors import RequestError
from tests.bench.benching import NoisyBackend, plan


@pytest.fixture
def full() -> Result:
    """With samples, failures and passes."""
    backend = NoisyBackend(concurrent=True, noise=0.1, fails=lambda number: number == 3)
    return run(plan(concurrency=2), {"pair": backend}, facts={"machine": "m"})


def written(result: Result) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(as_dict(result), allow_nan=False))
    return data


def test_json_and_back_is_the_same(full: Result) -> None:
    assert full.failures
    assert full.passes
    assert from_dict(written(full)) == full


def test_what_a_later_version_adds_is_passed_over(full: Result) -> None:
    data = written(full)
    data["samples"][0]["joules"] = 3
    assert from_dict(data) == full


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.pop("format"), "no result"),
        (lambda data: data.update(version=2), "version 2"),
        (lambda data: data.pop("plan"), "damaged: KeyError.'plan'"),
        (lambda data: data["samples"][0].pop("arm"), "damaged"),
        (lambda data: data.update(samples=7), "damaged"),
    ],
)
def test_anything_else_is_refused(full: Result, change: Any, told: str) -> None:
    data = written(full)
    change(data)
    with pytest.raises(RequestError, match=told):
        from_dict(data)


def test_a_list_is_no_result() -> None:
    with pytest.raises(RequestError, match="no result"):
        from_dict([])  # type: ignore[arg-type]
