"""Plans: the arms that come of flags, and every value that is refused before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from dflash2_mlx.bench.plan import make_plan
from dflash2_mlx.errors import RequestError
from dflash2_mlx.prompts import Prompt


def some(*kinds: str) -> list[Prompt]:
    messages = ({"role": "user", "content": "hello"},)
    return [Prompt(id=f"p{i}", kind=kind, messages=messages, source="test") for i, kind in enumerate(kinds)]


def names(**options: Any) -> list[str]:
    return [arm.name for arm in make_plan(some("code"), **options).arms]


def test_plain_decoding_is_the_baseline_and_there_once() -> None:
    assert names() == ["plain", "automatic block"]
    assert names(block_sizes=(1, 3, None), verify_modes=("off", "dflash")) == ["plain", "block 3", "automatic block"]
    assert names(verify_modes=("off",)) == ["plain"]


def test_modes_and_block_sizes_are_combined() -> None:
    found = make_plan(some("code"), block_sizes=(5, None), verify_modes=("dflash", "adaptive")).arms
    assert [arm.name for arm in found] == ["plain", "block 5", "automatic block", "adaptive up to 5", "adaptive"]
    assert [(arm.block_size, arm.verify_mode) for arm in found[1:]] == [
        (5, "dflash"),
        (None, "dflash"),
        (5, "adaptive"),
        (None, "adaptive"),
    ]


def test_every_temperature_has_its_own_baseline() -> None:
    plan = make_plan(some("code"), temperatures=(0, 1.0), block_sizes=(3,))
    assert [arm.name for arm in plan.arms] == ["plain, T=0", "block 3, T=0", "plain, T=1", "block 3, T=1"]
    assert plan.baseline(plan.arms[3]) == plan.arms[2]


def test_further_pairs_and_endpoints_have_their_backend_named() -> None:
    plan = make_plan(some("code"), pairs=("a", "b"), block_sizes=(3,), endpoints=("host:1",))
    assert [(arm.name, arm.backend, arm.verify_mode) for arm in plan.arms] == [
        ("plain", "a", "off"),
        ("block 3 · a", "a", "dflash"),
        ("block 3 · b", "b", "dflash"),
        ("host:1", "host:1", "server"),
    ]


def test_a_control_is_the_baseline_again() -> None:
    assert names(control=True, block_sizes=(3,)) == ["plain", "plain again", "block 3"]
    assert names(control=True, pairs=(), endpoints=("a", "b")) == ["a", "b", "a again"]


def test_kinds_and_depths_are_mixed() -> None:
    prompts = make_plan(some("code", "code", "chat"), depths=(0, 64)).prompts
    assert [(p.id, p.depth) for p in prompts] == [
        ("p0", 0),
        ("p0", 64),
        ("p2", 0),
        ("p2", 64),
        ("p1", 0),
        ("p1", 64),
    ]


@pytest.mark.parametrize(
    ("options", "param", "told"),
    [
        ({"block_sizes": (0,)}, "block_sizes", "0"),
        ({"block_sizes": (True,)}, "block_sizes", "True"),
        ({"block_sizes": ()}, "block_sizes", "empty"),
        ({"verify_modes": ("fast",)}, "verify_modes", "'fast'"),
        ({"verify_modes": ()}, "verify_modes", "empty"),
        ({"temperatures": (-1.0,)}, "temperatures", "-1"),
        ({"temperatures": (float("nan"),)}, "temperatures", "nan"),
        ({"depths": (-1,)}, "depths", "-1"),
        ({"depths": ()}, "depths", "empty"),
        ({"max_tokens": 1}, "max_tokens", "1"),
        ({"max_tokens": "8"}, "max_tokens", "'8'"),
        ({"rounds": 0}, "rounds", "0"),
        ({"cool_down": float("inf")}, "cool_down", "inf"),
        ({"concurrency": 0}, "concurrency", "0"),
        ({"seed": -1}, "seed", "-1"),
        ({"pairs": ()}, "model", "nothing to measure"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(RequestError, match=told) as caught:
        make_plan(some("code"), **options)
    assert caught.value.param == param


def test_prompts_are_needed_each_with_its_own_id() -> None:
    with pytest.raises(RequestError, match="no prompts"):
        make_plan([])
    with pytest.raises(RequestError, match="'p0' is the id of several prompts"):
        make_plan([*some("code"), *some("chat")])
