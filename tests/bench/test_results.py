"""Results as JSON and back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dflash2_mlx.bench.model import Result
from dflash2_mlx.bench.results import as_dict, from_dict
from dflash2_mlx.bench.run import run
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
        (lambda data: data.pop("plan"), "damaged: it is not whole.*'plan'"),
        (lambda data: data["samples"][0].pop("arm"), "damaged"),
        (lambda data: data.update(samples=7), "samples is 7: a list"),
        (lambda data: data["samples"][3].update(generation_seconds="x"), r"samples\[3\].generation_seconds is 'x'"),
        (lambda data: data["samples"][0].update(prompt_seconds=math.nan), r"samples\[0\].prompt_seconds is nan"),
        (lambda data: data["samples"][0].update(prompt_tokens=True), r"samples\[0\].prompt_tokens is True"),
        (lambda data: data["samples"][0].update(round=1.5), r"samples\[0\].round is 1.5"),
        (lambda data: data["samples"][0].update(acceptance_by_position=[None]), r"acceptance_by_position\[0\] is None"),
        (lambda data: data["samples"][0].update(finish_reason=7), r"finish_reason is 7"),
        (lambda data: data["plan"]["arms"][1].update(temperature="hot"), r"plan.arms\[1\].temperature is 'hot'"),
        (lambda data: data["plan"]["prompts"][0].update(messages=["x"]), r"plan.prompts\[0\].messages\[0\] is 'x'"),
        (lambda data: data["facts"].update(machine=None), "facts.machine is None"),
        (lambda data: data.update(started=1e300), "damaged"),
    ],
)
def test_anything_else_is_refused(full: Result, change: Any, told: str) -> None:
    data = written(full)
    change(data)
    with pytest.raises(ValueError, match=told):
        from_dict(data)


def test_a_list_is_no_result() -> None:
    with pytest.raises(ValueError, match="no result"):
        from_dict([])  # type: ignore[arg-type]


def test_counts_of_drafts_are_kept_and_older_results_have_none(full: Result) -> None:
    data = written(full)
    data["samples"][0].update(accepted_by_position=[3, 1], proposed_by_position=[4, 4])
    first, second, *_ = from_dict(data).samples
    assert (first.accepted_by_position, first.proposed_by_position) == ((3, 1), (4, 4))
    for name in ("accepted_by_position", "proposed_by_position", "cached_tokens"):
        del data["samples"][1][name]
    assert from_dict(data).samples[1] == second
