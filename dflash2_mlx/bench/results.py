"""Results as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..errors import RequestError
from .model import Result
from .typed import typed

FORMAT = "dflash2-mlx bench"
VERSION = 1


def as_dict(result: Result) -> dict[str, Any]:
    """Plain data, which `json` writes as it is."""
    return {"format": FORMAT, "version": VERSION, **asdict(result)}


def from_dict(data: Mapping[str, Any]) -> Result:
    """A result that `as_dict` gave, through JSON or not, by an older version too. Raises RequestError, which is a
    ValueError, for anything else; it names the field that is damaged.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise RequestError("this is no result of `dflash2-mlx bench --json`", param="json")
    if data.get("version") != VERSION:
        raise RequestError(
            f"this result has version {data.get('version')!r}, and {VERSION} is what is read here: measure again",
            param="json",
        )
    try:
        found = typed(Result, data)
        datetime.fromtimestamp(found.started, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise RequestError(f"this result of a benchmark is damaged: {error}", param="json") from None
    return found
