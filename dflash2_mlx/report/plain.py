"""A report as plain data, for JSON: what is no finite number is null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from dflash2_mlx.report.blocks import Block, Report


def as_dict(report: Report) -> dict[str, Any]:
    """`title`, `facts` and `blocks`; each block has a `type` (text, table, plot, heatmap) and its fields."""
    return {"title": report.title, "facts": dict(report.facts), "blocks": [_block(block) for block in report.blocks]}


def _block(block: Block) -> dict[str, Any]:
    return {"type": type(block).__name__.lower()} | _fields(block)


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(thing, field.name)) for field in fields(thing)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return _fields(value)
