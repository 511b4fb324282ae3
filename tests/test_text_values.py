"""Schemas of argument values between tags that would take without end, or make a grammar without end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.text.tool_grammar import tool_grammar
from tests.text_doubles import tool

INTEGER = {"type": "integer"}


def rules(properties: dict[str, Any], definitions: dict[str, Any]) -> str:
    given = tool("f", **properties)
    given["function"]["parameters"]["$defs"] = definitions
    return tool_grammar("qwen3_coder", [given], token_id=lambda text: None).text


def levels(count: int, width: int) -> dict[str, Any]:
    """Each level offers the next one `width` times; the last is a number."""
    found: dict[str, Any] = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i + 1}"}] * width} for i in range(count)}
    return found | {f"l{count}": INTEGER}


def test_alternatives_that_offer_one_another_are_refused_at_once() -> None:
    began = time.perf_counter()
    with pytest.raises(RequestError, match="too intricate") as caught:
        rules({"x": {"$ref": "#/$defs/l0"}}, levels(14, 4))
    assert caught.value.param == "tools"
    assert time.perf_counter() - began < 2


def test_definitions_that_every_value_brings_along_are_too_much_at_some_point() -> None:
    definitions = {"text": {"enum": ["x" * 2000]}, "n": INTEGER}
    properties = {f"p{i}": {"type": "array", "items": {"$ref": "#/$defs/n"}} for i in range(3000)}
    began = time.perf_counter()
    with pytest.raises(RequestError, match="too intricate"):
        rules(properties, definitions)
    assert time.perf_counter() - began < 5


def test_ordinary_alternatives_are_enforced() -> None:
    assert "p_0_0" in rules({"x": {"$ref": "#/$defs/l0"}}, levels(4, 3))
