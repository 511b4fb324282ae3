"""Arguments by the types of a tool's schema."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.text.arguments import arguments_of, as_texts, coerce

STRING, INTEGER, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY = (
    {"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "object", "array")
)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("30", INTEGER, 30),
        (" 30\n", INTEGER, 30),
        ("-5", INTEGER, -5),
        ("30.0", INTEGER, 30),
        (30.0, INTEGER, 30),
        ("30.5", INTEGER, "30.5"),
        ("many", INTEGER, "many"),
        (True, INTEGER, True),
        ("9" * 5000, INTEGER, "9" * 5000),
        ("1.5", NUMBER, 1.5),
        ("3", NUMBER, 3),
        (3.0, NUMBER, 3.0),
        ("nan", NUMBER, "nan"),
        ("1e999", NUMBER, "1e999"),
        ("true", BOOLEAN, True),
        ("True", BOOLEAN, True),
        ("FALSE", BOOLEAN, False),
        ("yes", BOOLEAN, "yes"),
        (1, BOOLEAN, 1),
        (30, STRING, "30"),
        (1.5, STRING, "1.5"),
        (True, STRING, "true"),
        ({"a": [1, "ä"]}, STRING, '{"a": [1, "ä"]}'),
        (None, STRING, None),
        ("null", STRING, "null"),
        ("007", STRING, "007"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"anyOf": [STRING, NULL]}, None),
        ("null", {"anyOf": [INTEGER, NULL]}, None),
        ("None", {"anyOf": [INTEGER, NULL]}, None),
        ("None", {"type": ["string", "null"]}, "None"),
        ("30", {"anyOf": [INTEGER, NULL]}, 30),
        ("30", {"oneOf": [NULL, NUMBER]}, 30),
        ("30", {"type": ["integer", "string"]}, "30"),
        ("30", {"type": ["boolean", "integer"]}, 30),
        ('{"a": "1"}', {"type": "object", "properties": {"a": INTEGER}}, {"a": 1}),
        ("[1, 2]", OBJECT, "[1, 2]"),
        ('["1", "2"]', {"type": "array", "items": INTEGER}, [1, 2]),
        ("['a']", ARRAY, "['a']"),
        ({"a": {"b": "1"}}, {"properties": {"a": {"properties": {"b": INTEGER}}}}, {"a": {"b": 1}}),
        ({"x": "1"}, {"type": "object", "additionalProperties": INTEGER}, {"x": 1}),
        ({"x": "1"}, {"type": "object", "properties": {"y": INTEGER}}, {"x": "1"}),
        ([{"a": "true"}], {"items": {"properties": {"a": BOOLEAN}}}, [{"a": True}]),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        (2, {"enum": ["1", "2"]}, "2"),
        ("True", {"enum": [True, False]}, True),
        ("null", {"enum": ["a", None]}, None),
        (" b ", {"enum": ["a", "b"]}, "b"),
        ("c", {"enum": ["a", "b"]}, "c"),
        ("3", {"const": 3}, 3),
        ("30", {"allOf": [INTEGER]}, 30),
        ({"a": "1"}, {"anyOf": [{"type": "object", "properties": {"a": INTEGER}}, NULL]}, {"a": 1}),
        (
            {"kind": "b", "n": "1"},
            {
                "anyOf": [
                    {"type": "object", "properties": {"n": BOOLEAN}, "required": ["m"]},
                    {"type": "object", "properties": {"n": INTEGER}, "required": ["n"]},
                ]
            },
            {"kind": "b", "n": 1},
        ),
        ({"a": "1"}, {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": INTEGER}}, {"a": 1}),
        ({"a": "1"}, {"properties": {"a": {"$ref": "#/$defs/none"}}}, {"a": "1"}),
        ({"a": "1"}, {"properties": {"a": {"$ref": "https://example.org/n"}}}, {"a": "1"}),
        ({"a": "1"}, {"properties": {"a": {"$ref": "#/properties/a"}}}, {"a": "1"}),
        ("30", True, "30"),
        ("30", None, "30"),
        ("30", {}, "30"),
        ("30", {"type": "surprise"}, "30"),
        ("30", {"type": 3, "enum": "x", "anyOf": 3, "properties": []}, "30"),
    ],
)
def test_values_by_type(value: Any, schema: Any, expected: Any) -> None:
    found = coerce(value, schema)
    assert found == expected
    assert type(found) is type(expected)


def test_a_tree_that_refers_to_itself() -> None:
    node = {"properties": {"n": INTEGER, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert coerce({"n": "1", "next": {"n": "2", "next": {"n": "3"}}}, schema) == {
        "n": 1,
        "next": {"n": 2, "next": {"n": 3}},
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("x", None), ([1], None), ("[1]", None)],
)
def test_the_object_of_arguments(said: Any, expected: Any) -> None:
    assert arguments_of(said) == expected


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["1", "true", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
_KEYS = ("type", "properties", "items", "anyOf", "enum", "const", "$ref", "a", "b", "required", "additionalProperties")
_SCHEMAS = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array", "#", "#/a"]) | _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(_VALUES, _SCHEMAS)
def test_nothing_raises(value: Any, schema: Any) -> None:
    coerce(value, schema)


SELF = {"$ref": "#"}
# Each of 24 levels offers the next one twice, the last is a number: no way through has a text.
LEVELS = {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(24)} | {"l24": INTEGER}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [SELF, SELF]},
        {"anyOf": [SELF, SELF]},
        {"oneOf": [{"type": "string"}, SELF, SELF]},
        {"anyOf": [{"allOf": [SELF, SELF], "required": ["no"]}] * 4},
        {"anyOf": [SELF] * 3000, "required": ["no"]},
        {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}, {"allOf": [{"$ref": "#/properties/x"}] * 3}]}}},
        {"$ref": "#/$defs/l0", "$defs": LEVELS},
        {"properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": LEVELS},
        {"additionalProperties": {"allOf": [{"$ref": "#/additionalProperties"}] * 3, "enum": list(range(9999))}},
    ],
)
@pytest.mark.parametrize("value", [{"x": 1}, {"x": "[" * 5000}, {"x": [{"x": ["1"] * 50}] * 50}])
def test_alternatives_without_end_come_to_one(schema: Any, value: Any) -> None:
    began = time.perf_counter()
    coerce(value, schema)
    as_texts({"function": {"name": "f", "parameters": schema}}, every=False)
    assert time.perf_counter() - began < 0.7


def test_what_is_left_stays_as_it_is_and_the_rest_is_coerced() -> None:
    schema = {"properties": {"a": INTEGER, "b": {"allOf": [{"$ref": "#/properties/b"}] * 2}, "c": INTEGER}}
    assert coerce({"a": "1", "b": "2", "c": "3"}, schema) == {"a": 1, "b": "2", "c": "3"}
    many = {"type": "array", "items": {"type": "object", "properties": {"n": INTEGER}}}
    assert coerce([{"n": "1"}] * 2000, many) == [{"n": 1}] * 2000, "an ordinary list is not too much"


def test_no_text_is_found_at_the_end_of_many_ways() -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/l16"}, "y": {"anyOf": [INTEGER, STRING]}}, "$defs": LEVELS}
    found = as_texts({"function": {"name": "f", "parameters": schema}}, every=False)
    assert found["function"]["parameters"]["properties"] == {"x": {"type": "number"}, "y": {"type": "string"}}
