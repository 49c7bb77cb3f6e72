"""Validates custom resources against their structural schema, with the API server's messages.

Restates: k8s.io/apiextensions-apiserver `pkg/apiserver/validation/validation.go`, k8s.io/kube-openapi
`pkg/validation/{validate,errors}`; `pkg/apiserver/schema/listtype/validation.go`; `pkg/apiserver/schema/cel/validation.go`.
Differs: errors are in the order of the schema, where the server's order follows from its maps; formats other than
date-time, and bounds that the generated definitions do not use, are not checked. A compiled schema accepts valid objects
fast; the slower functions compute the errors of invalid ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.apiserver import crd_expressions
from journeyman_simulator.apiserver.api_errors import ErrorCause

JSON = Mapping[str, Any]
UNCHECKED: Final = ErrorCause(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
"""The error that the server adds if another error prevents the check of rules."""


def schema_errors(value: Any, schema: JSON, path: str) -> Iterator[ErrorCause]:
    """Yield the errors of a value, recursively: types, bounds, patterns and required fields."""
    wrong = _type_error(value, schema, path)
    if wrong is not None:
        yield wrong
        return
    for keyword, check in CHECKS.items():
        if keyword in schema:
            message = check(value, schema[keyword], path)
            if message:
                yield ErrorCause(path, message)
    yield from _part_errors(value, schema, path)


def duplicates(value: Any, schema: JSON, path: str) -> Iterator[ErrorCause]:
    """Yield an error for each repeated item of a list of type set or map."""
    if isinstance(value, list) and (identify := identity(schema)) is not None:
        seen: list[Any] = []
        for index, item in enumerate(value):
            key = identify(item)
            if key in seen:
                yield ErrorCause(f"{path}[{index}]", f"Duplicate value: {_json_text(key)}")
            seen.append(key)
    for _, part, inner, where in _parts(value, schema, path):
        yield from duplicates(part, inner, where)


def broken_rules(value: Any, old: Any, schema: JSON, path: str) -> Iterator[ErrorCause]:
    """Yield an error for each CEL rule that does not hold.

    Args:
        value: The new value, which satisfies the schema.
        old: The stored value; if it is None, transition rules are not checked.
        schema: The schema of both values.
        path: The path of both values in the object.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        message = _rule_error(rule, value, old)
        if message:
            yield ErrorCause(path, f"Invalid value: {message}")
    for name, part, inner, where in _parts(value, schema, path):
        before = old.get(name) if isinstance(old, Mapping) else None  # items of a list have no old value
        yield from broken_rules(part, before, inner, where)


def _rule_error(rule: JSON, value: Any, old: Any) -> str:
    """Return the message of a rule that does not hold; empty if it holds."""
    scope = {"self": value, "oldSelf": old}
    if old is None:
        if "oldSelf" in rule["rule"]:
            return ""
        del scope["oldSelf"]
    message = rule.get("message") or f"failed rule: {rule['rule']}"
    try:
        holds = crd_expressions.parse_rule(rule["rule"])(scope)
    except crd_expressions.RuleEvaluationError as error:
        return f'"{_type_of(value)}": {error} evaluating rule: {message}'
    shown = "" if isinstance(value, (Mapping, list)) else f"{_json_text(value)}: "
    return "" if holds is True else f"{shown}{message}"


def _parts(value: Any, schema: JSON, path: str) -> Iterator[tuple[str, Any, JSON, str]]:
    """Yield each part of a value as (name, value, schema, path); items of a list have the name ""."""
    if isinstance(value, list) and "items" in schema:
        yield from (("", item, schema["items"], f"{path}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, Mapping):
        known: JSON = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        for name, inner in known.items():
            if name in value:
                yield name, value[name], inner, f"{path}.{name}" if path else name
        if rest is not None:
            yield from ((name, item, rest, f"{path}.{name}") for name, item in value.items() if name not in known)


def _part_errors(value: Any, schema: JSON, path: str) -> Iterator[ErrorCause]:
    for _, part, inner, where in _parts(value, schema, path):
        yield from schema_errors(part, inner, where)
    if isinstance(value, Mapping):
        for name in schema.get("required", ()):
            if name not in value:
                yield ErrorCause(f"{path}.{name}" if path else name, "Required value")


def _type_error(value: Any, schema: JSON, path: str) -> ErrorCause | None:
    if schema.get("x-kubernetes-int-or-string"):
        wanted, fits = "integer,string", isinstance(value, (int, str)) and not isinstance(value, bool)
    else:
        wanted = schema.get("type", "")
        fits = not wanted or _type_of(value) == wanted or (wanted == "number" and _type_of(value) == "integer")
    if fits:
        return None
    found = _type_of(value)
    return ErrorCause(path, f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"')


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for type_, name in _TYPES.items() if isinstance(value, type_)), "null")


_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", list: "array", Mapping: "object"}


def identity(schema: JSON) -> Callable[[Any], Any] | None:
    """Return a function that returns the identity of a list's item; None if the list allows duplicates."""
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", ())
    if kind == "set":
        return lambda item: item
    return (lambda item: _named(item, keys)) if kind == "map" else None


def _named(item: Any, keys: Iterable[str]) -> Any:
    return {key: item[key] for key in keys if key in item} if isinstance(item, Mapping) else item


def _enum(value: Any, allowed: Any, _: str) -> str:
    if value in allowed:
        return ""
    return f"Unsupported value: {_json_text(value)}: supported values: {', '.join(map(_json_text, allowed))}"


def _pattern(value: Any, pattern: str, path: str) -> str:
    if not isinstance(value, str) or _compiled(pattern).search(value):
        return ""
    return f"Invalid value: {_json_text(value)}: {path} in body should match '{pattern}'"


def _format(value: Any, name: str, path: str) -> str:
    if name != "date-time" or not isinstance(value, str) or _is_time(value):
        return ""
    return f"Invalid value: {_json_text(value)}: {path} in body must be of type date-time: {_json_text(value)}"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None
    except ValueError:
        return False


def _minimum(value: Any, least: Any, path: str) -> str:
    wrong = isinstance(value, (int, float)) and value < least
    return f"Invalid value: {value}: {path} in body should be greater than or equal to {least}" if wrong else ""


def _maximum(value: Any, most: Any, path: str) -> str:
    wrong = isinstance(value, (int, float)) and value > most
    return f"Invalid value: {value}: {path} in body should be less than or equal to {most}" if wrong else ""


def _min_length(value: Any, least: int, path: str) -> str:
    wrong = isinstance(value, str) and len(value) < least
    return f"Invalid value: {_json_text(value)}: {path} in body should be at least {least} chars long" if wrong else ""


def _max_length(value: Any, most: int, _: str) -> str:
    return f"Too long: may not be more than {most} bytes" if isinstance(value, str) and len(value) > most else ""


def _min_items(value: Any, least: int, path: str) -> str:
    wrong = isinstance(value, list) and len(value) < least
    return f"Invalid value: {len(value)}: {path} in body should have at least {least} items" if wrong else ""


def _max_items(value: Any, most: int, _: str) -> str:
    wrong = isinstance(value, (list, Mapping)) and len(value) > most
    return f"Too many: {len(value)}: must have at most {most} items" if wrong else ""


CHECKS: Final[Mapping[str, Callable[[Any, Any, str], str]]] = {
    "enum": _enum,
    "pattern": _pattern,
    "format": _format,
    "minimum": _minimum,
    "maximum": _maximum,
    "minLength": _min_length,
    "maxLength": _max_length,
    "minItems": _min_items,
    "maxItems": _max_items,
    "maxProperties": _max_items,
}
"""The check of each keyword, which returns an error's message or, for a valid value, an empty text."""


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


Test = Callable[[Any], bool]


class CompiledSchema(Struct, frozen=True):
    """A compiled schema: a fast test for values without errors (of `schema_errors` and `duplicates`), and the CEL rules."""

    schema: JSON
    is_valid: Test
    rules: JSON | None  # the schema without the parts that have no rules; None if it has no rules


def compile_schema(schema: JSON) -> CompiledSchema:
    """Compile a schema."""
    return CompiledSchema(schema, _test_of(schema), _rules_schema(schema))


def _test_of(schema: JSON) -> Test:
    fits = (
        _is_integer_or_text if schema.get("x-kubernetes-int-or-string") else _FITS.get(schema.get("type", ""), _never)
    )
    checks = tuple((check, schema[keyword]) for keyword, check in CHECKS.items() if keyword in schema)
    inside = (*_inside_lists(schema), *_inside_maps(schema))

    def test(value: Any) -> bool:
        if not fits(value):
            return False
        for check, wanted in checks:
            if check(value, wanted, ""):
                return False
        return all(look(value) for look in inside)

    return test if checks or inside else fits


def _inside_lists(schema: JSON) -> tuple[Test, ...]:
    tests: list[Test] = []
    if "items" in schema:
        item = _test_of(schema["items"])
        tests.append(lambda value: not isinstance(value, list) or all(map(item, value)))
    if (identity_of := identity(schema)) is not None:
        tests.append(lambda value: not isinstance(value, list) or _all_differ([identity_of(item) for item in value]))
    return tuple(tests)


def _inside_maps(schema: JSON) -> tuple[Test, ...]:
    known = {name: _test_of(inner) for name, inner in schema.get("properties", {}).items()}
    required = tuple(schema.get("required", ()))
    rest = _test_of(schema["additionalProperties"]) if schema.get("additionalProperties") is not None else None

    def test(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return True
        for name, item in value.items():
            inner = known.get(name, rest)
            if inner is not None and not inner(item):
                return False
        return all(name in value for name in required)

    return (test,) if known or required or rest is not None else ()


def _rules_schema(schema: JSON) -> JSON | None:
    """Return the schema without the parts that have no rules; None if it has no rules."""
    parts: dict[str, Any] = {}
    for keyword in ("items", "additionalProperties"):
        if schema.get(keyword) is not None and (inner := _rules_schema(schema[keyword])) is not None:
            parts[keyword] = inner
    known = {name: _rules_schema(inner) for name, inner in schema.get("properties", {}).items()}
    if any(known.values()):
        parts["properties"] = {name: inner for name, inner in known.items() if inner is not None}
    if "additionalProperties" in parts and known:
        return schema  # unreduced, since `additionalProperties` excludes the names in `properties`
    if schema.get("x-kubernetes-validations"):
        parts["x-kubernetes-validations"] = schema["x-kubernetes-validations"]
    return parts or None


def _all_differ(keys: list[Any]) -> bool:
    return all(key not in keys[:index] for index, key in enumerate(keys))


def _never(_: Any) -> bool:
    return False  # for an unknown type, which `schema_errors` reports


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer_or_text(value: Any) -> bool:
    return isinstance(value, str) or _is_integer(value)


_FITS: Final[Mapping[str, Test]] = {
    "": lambda _: True,
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": lambda value: isinstance(value, float) or _is_integer(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}
