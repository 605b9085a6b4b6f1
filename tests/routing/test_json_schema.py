"""Whether a JSON value fits a JSON schema."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.routing.json_schema import check_schema

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": ["integer", "null"], "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        "address": {"$ref": "#/$defs/address"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"address": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"name": "Ada", "age": 36.0, "tags": ["a", "b"], "address": {"city": "Rome"}}, None),
        ({"name": "Ada", "age": None}, None),
        ({}, "$: lacks name"),
        ({"name": ""}, "$.name: shorter than 1"),
        ({"name": "Ada", "age": -1}, "$.age: less than 0"),
        ({"name": "Ada", "age": True}, "$.age: not of type integer or null"),
        ({"name": "Ada", "tags": ["c"]}, "$.tags[0]: none of the allowed values"),
        ({"name": "Ada", "tags": ["a", "a"]}, "$.tags: an item stands there twice"),
        ({"name": "Ada", "address": {}}, "$.address: lacks city"),
        ({"name": "Ada", "extra": 1}, "$: has extra, which is not allowed"),
        ([], "$: not of type object"),
    ],
)
def test_an_object_is_held_against_its_schema(given: Any, fault: str | None):
    report = check_schema(given, PERSON)
    assert report.unchecked == ()
    assert report.faults == (() if fault is None else (fault,))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 1}, 1.0, True),
        ({"exclusiveMinimum": 1}, 1.5, 1),
        ({"exclusiveMaximum": 1}, 0, 1),
        ({"maximum": 1}, 1, 2),
        ({"multipleOf": 0.1}, 0.3, 0.35),
        ({"multipleOf": 3}, 9, 10),
        ({"pattern": "^a+$"}, "aa", "ab"),
        ({"maxLength": 2}, "ab", "abc"),
        ({"minItems": 1}, [1], []),
        ({"minProperties": 1}, {"a": 1}, {}),
        ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, 4, 2),
        ({"oneOf": [{"minimum": 3}, {"multipleOf": 2}]}, 5, 4),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, None, 4),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}]}, 4, 6),
        ({"not": {"type": "string"}}, 1, "x"),
        ({"if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"multipleOf": 2}}, 10, 6),
        ({"if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"multipleOf": 2}}, 4, 3),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, {"xy": 1}, {"y": 1}),
        ({"patternProperties": {"^x": {"type": "integer"}}}, {"xy": 1, "y": "s"}, {"xy": "s"}),
        ({"additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "s"}),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1], ["a", "b"]),
        ({"items": [{"type": "string"}]}, ["a", 1], [1]),
        ({"contains": {"type": "string"}}, [1, "a"], [1]),
        ({"contains": {"type": "string"}, "maxContains": 1}, [1, "a"], ["b", "a"]),
        ({"type": "string", "nullable": True}, None, 1),
        ({"type": "object", "properties": {"a": False}}, {"b": 1}, {"a": 1}),
    ],
)
def test_keywords(schema: Any, good: Any, bad: Any):
    assert check_schema(good, schema).fits
    assert check_schema(good, schema).unchecked == ()
    assert not check_schema(bad, schema).fits


def test_a_keyword_is_no_business_of_another_type():
    assert check_schema("text", {"minimum": 3, "items": False, "required": ["a"], "maxItems": 0}).fits


def test_a_schema_may_refer_to_itself():
    tree = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}}
    assert check_schema({"value": 1, "next": {"value": 2}}, tree).fits
    assert check_schema({"value": 1, "next": {"value": "2"}}, tree).faults == ("$.next.value: not of type integer",)


@pytest.mark.parametrize(
    ("schema", "unchecked"),
    [
        ({"format": "email"}, "format"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#/nowhere"}, "$ref"),
        ({"pattern": "(?=x)"}, "pattern"),
        ({"pattern": 3}, "pattern"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"minLength": "two"}, "limit"),
        ({"not": {"format": "email"}}, "format"),
        ({"oneOf": [{"format": "email"}, {"format": "uri"}]}, "format"),
        ("string", "schema"),
    ],
)
def test_what_is_not_checked_is_named_and_lets_pass(schema: Any, unchecked: str):
    report = check_schema("text", schema)
    assert report.fits
    assert report.unchecked == (unchecked,)


def test_a_schema_that_would_take_for_ever_is_given_up():
    schema: dict[str, Any] = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}
    schema["$ref"] = "#/$defs/a"
    began = time.process_time()
    report = check_schema("text", schema)
    assert report.fits
    assert report.unchecked
    assert time.process_time() - began < 0.5


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = st.sampled_from(
    """type enum const required properties patternProperties additionalProperties propertyNames items prefixItems
    uniqueItems contains minimum multipleOf minLength maxItems pattern allOf anyOf oneOf not if then else
    dependentRequired $ref nullable minContains""".split()
)
SCHEMAS = st.recursive(
    VALUES | st.sampled_from(["string", "object", "#", "#/items", "^a"]),
    lambda inner: st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=2), max_size=4),
    max_leaves=10,
)


@given(VALUES, SCHEMAS)
@settings(max_examples=300, deadline=None)
def test_any_schema_is_read_without_raising(given: Any, schema: Any):
    check_schema(given, schema)
