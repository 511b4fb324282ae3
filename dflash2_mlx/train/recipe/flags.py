"""A flag for every field of a recipe. What is not given comes from the recipe's file, or from the defaults."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .fields import FIELDS, PARTS, TITLES, Field
from .file import check, from_values, read_recipe, shown
from .values import Recipe

EMBEDDED = "demo"


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """A group for each table of the file; every help tells the default. What is not given is None."""
    for part in PARTS:
        group = parser.add_argument_group(TITLES[part])
        for field in FIELDS:
            if field.part == part:
                _add(group, field)


def recipe_from(args: argparse.Namespace, base: Recipe | None = None) -> Recipe:
    """The checked recipe: the file of `args.recipe`, else `base`, else the defaults, with the flags that were given.

    `demo` is the recipe of the embedded pair's drafter, which comes with the package. Raises RequestError.
    """
    if args.recipe is not None:
        base = read_recipe(recipe_path(args.recipe))
    given = {field: getattr(args, field.key) for field in FIELDS if getattr(args, field.key) is not None}
    recipe = from_values(base or Recipe(), {field: _parsed(field, value) for field, value in given.items()})
    check(recipe)
    return recipe


def recipe_path(name: str) -> Path:
    """The file of a recipe's name: a path, or `demo`."""
    if name == EMBEDDED:
        return Path(__file__).with_name("demo.toml")
    return Path(name).expanduser()


def _add(group: argparse._ArgumentGroup, field: Field) -> None:
    name, default = f"--{field.key.replace('_', '-')}", field.of(Recipe())
    options: dict[str, Any] = {"dest": field.key, "default": None}
    if field.type == "switch":
        switch = f"{field.help} (default: {'yes' if default else 'no'})"
        group.add_argument(name, action=argparse.BooleanOptionalAction, help=switch, **options)
        return
    if field.choices:
        options["choices"] = field.choices
    else:
        options["metavar"] = _metavar(field)
    if field.type == "number":
        options["type"] = float
    elif field.type == "whole" and field.empty is None:
        options["type"] = int
    group.add_argument(name, help=f"{field.help} (default: {shown(field, default)})", **options)


def _metavar(field: Field) -> str:
    if field.type == "text":
        return {"model": "ID|PATH", "data": "DIR", "held_out": "FILE"}.get(field.key, "ID|PATH")
    return {"whole": "N", "number": "X", "list": "N,N,…"}[field.type]


def _parsed(field: Field, value: Any) -> Any:
    """A flag's value in the type of its field, where argparse has left it a text."""
    if field.type in ("text", "switch", "number") or not isinstance(value, str) or value == field.empty:
        return value
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words) or (field.type == "whole" and len(words) > 1):
        kind = "numbers such as 1,9,17" if field.type == "list" else "a whole number"
        raise RequestError(f"{field.key} is {value!r}: give {kind}, or {field.empty}", param=field.key)
    return [int(word) for word in words] if field.type == "list" else int(words[0])
