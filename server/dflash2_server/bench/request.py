"""What a bench is asked for, checked: from plain data to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dflash2_mlx.bench.model import Plan
from dflash2_mlx.bench.plan import make_plan
from dflash2_mlx.drafter.config import parse_config, read_config
from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.prompts import KINDS, Prompt, own
from dflash2_server.library.library import Library
from dflash2_server.pool.plan import LoadPlan

_MOST_VALUES = 32  # of each list
_MOST_SAMPLES = 10_000


class BenchRequest(BaseModel):
    """The fields of a request, the model left out."""

    model_config = ConfigDict(strict=True, extra="forbid")

    block_sizes: Annotated[list[int | None], Field(max_length=_MOST_VALUES)] = [None]
    verify_modes: Annotated[list[str], Field(max_length=_MOST_VALUES)] = ["dflash"]
    kinds: Annotated[list[str], Field(max_length=_MOST_VALUES)] = list(KINDS)
    prompts_per_kind: Annotated[int, Field(ge=1)] = 2
    max_tokens: int = 128
    rounds: int = 3
    temperatures: Annotated[list[float], Field(max_length=_MOST_VALUES)] = [0.0]
    depths: Annotated[list[int], Field(max_length=_MOST_VALUES)] = [0]


def plan_of(request: Mapping[str, Any]) -> tuple[Plan, list[Prompt]]:
    """The plan and its prompts. Raises RequestError by the field."""
    try:
        wanted = BenchRequest.model_validate(dict(request))
    except ValidationError as error:
        raise _told(error) from None
    prompts = own(wanted.kinds, wanted.prompts_per_kind)
    plan = make_plan(prompts, **wanted.model_dump(exclude={"kinds", "prompts_per_kind"}))
    if plan.total > _MOST_SAMPLES:
        raise RequestError(
            f"these are {plan.total} samples: a bench has at most {_MOST_SAMPLES}, so ask for fewer rounds or arms",
            param="rounds",
        )
    return plan, prompts


def check_pair(plan: Plan, pair: Pair, name: str) -> None:
    """Raises RequestError where a loaded pair cannot run the arms of a plan."""
    _check(plan, name, drafts=pair.drafter is not None, why=pair.fallback_reason, block_size=pair.block_size)


def check_on_disk(plan: Plan, load: LoadPlan, library: Library, name: str) -> None:
    """The same of a pair before it is loaded, as far as its settings and its drafter's config tell."""
    widest = None if load.drafter is None else _block_size(load.drafter, library)
    _check(plan, name, drafts=load.drafter is not None, why=load.missing, block_size=widest)


def _check(plan: Plan, name: str, *, drafts: bool, why: str | None, block_size: int | None) -> None:
    """`why` there is no drafter, None: by the settings; `block_size` None is not known."""
    for arm in plan.arms:
        if not arm.asks_for_speculation:
            continue
        if not drafts:
            why = why or "DFlash is off in its settings"
            raise RequestError(f"{name} runs without a drafter ({why}): there is nothing to compare", param="model")
        if arm.block_size is not None and block_size is not None and arm.block_size > block_size:
            raise RequestError(
                f"block_sizes has {arm.block_size}: the drafter of {name} gives blocks of 1 to {block_size}",
                param="block_sizes",
            )


def _block_size(drafter: str, library: Library) -> int | None:
    """Of a drafter as `load` takes it; None where the disk does not tell."""
    try:
        folder = library.resolve_drafter(drafter)
        return parse_config(read_config(folder)).block_size
    except DFlashError:  # not here yet, or damaged: the load tells
        return None


def _told(error: ValidationError) -> RequestError:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else "the body"
    if first["type"] == "extra_forbidden":
        known = ", ".join(BenchRequest.model_fields)
        return RequestError(f"a bench has no {field!r:.100}: it takes {known}", param=field)
    return RequestError(f"{field} is {first['input']!r:.100}: {first['msg']}", param=field)
