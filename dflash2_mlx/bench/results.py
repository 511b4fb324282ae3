"""Results as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from ..errors import RequestError
from .model import Arm, BenchPrompt, Failure, Pass, Plan, Result, Sample

FORMAT = "dflash2-mlx bench"
VERSION = 1

T = TypeVar("T")


def as_dict(result: Result) -> dict[str, Any]:
    """Plain data, which `json` writes as it is."""
    return {"format": FORMAT, "version": VERSION, **asdict(result)}


def from_dict(data: Mapping[str, Any]) -> Result:
    """A result that `as_dict` gave, through JSON or not. Raises RequestError for anything else."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise RequestError("this is no result of `dflash2-mlx bench --json`", param="json")
    if data.get("version") != VERSION:
        raise RequestError(
            f"this result has version {data.get('version')!r}, and {VERSION} is what is read here: measure again",
            param="json",
        )
    try:
        return _result(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"this result of a benchmark is damaged: {error!r}", param="json") from None


def _result(data: Mapping[str, Any]) -> Result:
    plan = dict(data["plan"])
    plan["arms"] = _all(Arm, plan["arms"])
    plan["prompts"] = _all(BenchPrompt, plan["prompts"])
    return _one(
        Result,
        {
            **data,
            "plan": _one(Plan, plan),
            "samples": _all(Sample, data["samples"]),
            "failures": _all(Failure, data["failures"]),
            "passes": _all(Pass, data["passes"]),
        },
    )


def _all(kind: type[T], items: Any) -> tuple[T, ...]:
    return tuple(_one(kind, item) for item in items)


def _one(kind: type[T], data: Mapping[str, Any]) -> T:
    """One of the dataclasses; lists become tuples, keys of a later version are left out."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    given = {name: value for name, value in data.items() if name in known}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
