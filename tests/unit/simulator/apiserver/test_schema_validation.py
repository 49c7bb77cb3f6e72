"""Compiled schemas accept exactly the valid objects."""

import pytest

from journeyman_simulator.apiserver.schema_validation import broken_rules, compile_schema, duplicates, schema_errors

NAMED = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 2}}}
SCHEMAS = {
    "plain": {"type": "integer", "minimum": 1},
    "either": {"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+%?$"},
    "number": {"type": "number"},
    "switch": {"type": "boolean"},
    "items": {"type": "array", "maxItems": 3, "items": NAMED},
    "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    "by key": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    "map": {"type": "object", "additionalProperties": {"type": "string"}, "properties": {"size": {"type": "integer"}}},
}
VALUES = (
    *(0, 1, 1.5, True, None, "", "7", "7%", "seven"),
    *([], ["a", "a"], ["a", "b"], [1], [{"name": "ab"}] * 2, [{"name": "ab"}, {"name": "bc"}], [{}] * 4),
    *({}, {"size": 1}, {"size": "large"}, {"colour": "red"}, {"colour": 1}),
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_valid_object_has_no_errors_and_no_duplicates(name):
    """Conversely, an object without errors is valid."""
    schema = SCHEMAS[name]
    made = compile_schema(schema)
    for value in VALUES:
        wrong = [*schema_errors(value, schema, "it"), *duplicates(value, schema, "it")]
        assert made.is_valid(value) == (not wrong), value


RULE = [{"rule": "self.least <= self.most", "message": "the other way round"}]
RANGE = {
    "type": "object",
    "properties": {"least": {"type": "integer"}, "most": {"type": "integer"}, "why": {"type": "string"}},
    "x-kubernetes-validations": RULE,
}
RANGES = {
    "type": "object",
    "properties": {"first": RANGE, "others": {"type": "array", "items": RANGE}, "name": {"type": "string"}},
}
WRONG, RIGHT = {"least": 2, "most": 1, "why": "no"}, {"least": 1, "most": 2}


@pytest.mark.parametrize(
    "schema", [RANGES, {"type": "object", "additionalProperties": RANGE, "properties": {"name": {"type": "string"}}}]
)
def test_rules_are_found_where_they_are(schema):
    """Only parts of the schema without rules are omitted."""
    values = ({"first": WRONG}, {"first": RIGHT, "name": "x"}, {"others": [RIGHT, WRONG]}) if schema is RANGES else ()
    rules = compile_schema(schema).rules
    assert rules is not None
    for value in (*values, {"first": WRONG, "second": RIGHT, "name": "x"}):
        assert list(broken_rules(value, None, rules, "")) == list(broken_rules(value, None, schema, ""))


def test_schema_without_rules_evaluates_none():
    """Most schemas have none."""
    assert compile_schema(NAMED).rules is None
