"""A recipe as a TOML file: read, written and checked. The flags are in `flags`."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, RequestError
from ..wording import counted
from .fields import FIELDS, PARTS, Field
from .values import Loop, Loss, Recipe, Shape

_EXPECTED = {
    "whole": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "text": "a text",
    "list": "a list of distinct whole numbers",
}


def read_recipe(path: Path) -> Recipe:
    """The recipe of a file; what it leaves out is at its default.

    Raises RequestError (param recipe for the file as a whole, else the field) with the file's name.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read ({error.strerror or error}): name a recipe", param="recipe"
        ) from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise RequestError(f"{path} is no TOML file ({error})", param="recipe") from None
    try:
        recipe = from_values(Recipe(), _flat(tables))
        check(recipe)
    except RequestError as error:
        raise RequestError(f"{path}: {error}", param=error.param) from None
    return recipe


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Every field, also those at their defaults. Raises CheckpointError where the file cannot be written."""
    lines = ["# A recipe of `dflash2-mlx train`: --recipe reads it, flags override it."]
    for part in PARTS:
        lines += ["", f"[{part}]"] if part else [""]
        lines += [f"{field.name} = {_written(field, field.of(recipe))}" for field in FIELDS if field.part == part]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or error}): make room, or use another folder"
        ) from None


def from_values(base: Recipe, values: Mapping[Field, Any]) -> Recipe:
    """`base` with those fields replaced; an empty word becomes None. Raises RequestError for a wrong type."""
    parts: dict[str, dict[str, Any]] = {part: {f.name: f.of(base) for f in FIELDS if f.part == part} for part in PARTS}
    for field, value in values.items():
        parts[field.part][field.name] = _typed(field, value)
    return Recipe(**parts[""], shape=Shape(**parts["shape"]), loss=Loss(**parts["loss"]), loop=Loop(**parts["loop"]))


def check(recipe: Recipe) -> None:
    """Raises RequestError that names the field, its value and what it may be. Only a target can tell the rest."""
    for field in FIELDS:
        _check_range(field, field.of(recipe))
    shape, loss, loop = recipe.shape, recipe.loss, recipe.loop
    layers, steps = counted(shape.layers, "layer"), counted(loop.steps, "step")
    if shape.full_layers > shape.layers:
        _refuse("full_layers", shape.full_layers, f"the drafter has {layers}: give at most that")
    if loop.micro_batch > loop.batch:
        _refuse("micro_batch", loop.micro_batch, f"a step has {loop.batch} conversations (batch): give at most that")
    if loop.max_tokens <= shape.block_size:
        _refuse("max_tokens", loop.max_tokens, f"a block has {shape.block_size} rows: give more")
    if loop.warmup >= loop.steps:
        _refuse("warmup", loop.warmup, f"the run has {steps}: give fewer, such as {loop.steps // 10}")
    if loss.full_steps > loop.steps:
        _refuse("full_steps", loss.full_steps, f"the run has {steps}: give at most that")
    if 0 < loss.frequent < shape.selector_top_k:
        _refuse("frequent", loss.frequent, f"a row has {shape.selector_top_k} candidates: give more, or 0 for all")


def shown(field: Field, value: Any) -> str:
    """A value as the command line takes it."""
    if value is None:
        return str(field.empty)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _flat(tables: Mapping[str, Any]) -> dict[Field, Any]:
    """Values by field. Raises RequestError for a name that there is not."""
    known = {(field.part, field.name): field for field in FIELDS}
    found = {}
    for name, value in tables.items():
        inner = {(name, key): one for key, one in value.items()} if isinstance(value, Mapping) else {("", name): value}
        for place, one in inner.items():
            if place not in known:
                part = f" in [{place[0]}]" if place[0] else ""
                names = ", ".join(field.name for field in FIELDS if field.part == place[0]) or "no such table"
                raise RequestError(f"there is no {place[1]!r}{part}: {names}", param=place[1])
            found[known[place]] = one
    return found


def _typed(field: Field, value: Any) -> Any:
    if value is None or (field.empty is not None and value == field.empty):
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field.type == "number" and (whole or isinstance(value, float)):
        return float(value)
    if field.type == "list" and isinstance(value, list | tuple):
        if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return tuple(value)
    elif (field.type, True) in (
        ("whole", whole),
        ("switch", isinstance(value, bool)),
        ("text", isinstance(value, str)),
    ):
        return value
    word = f", or {field.empty!r}" if field.empty else ""
    raise RequestError(f"{field.key} is {value!r}: it must be {_EXPECTED[field.type]}{word}", param=field.key)


def _check_range(field: Field, value: Any) -> None:
    if value is None and field.empty is not None:
        return
    _typed(field, value)
    if field.type == "text":
        if field.choices and value not in field.choices:
            _refuse(field.key, value, f"use one of {', '.join(field.choices)}")
        if not value or not value.isprintable():
            _refuse(field.key, value, "it must be a text of printable characters")
    elif field.type == "list" and (not value or len(set(value)) != len(value)):
        _refuse(field.key, value, f"it must be {_EXPECTED['list']}, or {field.empty!r}")
    elif field.type != "switch":
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(math.isfinite(n) and field.low <= n <= field.high for n in numbers):
            _refuse(field.key, value, f"it must be from {field.low:g} to {field.high:g}")


def _refuse(name: str, value: object, remedy: str) -> None:
    raise RequestError(f"{name} is {value!r}: {remedy}", param=name)


def _written(field: Field, value: Any) -> str:
    """A value in TOML."""
    if value is None:
        return json.dumps(field.empty)
    if isinstance(value, tuple):
        return json.dumps(list(value))
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
