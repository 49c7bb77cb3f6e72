"""A structural schema, made ready for many objects: most are sound, and of those nobody need be told what is wrong.

What `schema` finds in an object it finds all the same; here is what lets it not look. Made once per schema and process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.apiserver import schema as words

JSON = Mapping[str, Any]
Test = Callable[[Any], bool]


class Ready(Struct, frozen=True):
    """A schema; whether a value is sound for certain (`schema.faults` and `duplicates` find nothing); its CEL rules."""

    schema: JSON
    is_sound: Test
    rules: JSON | None  # the schema without what has no rules; None if nothing has any


def ready(schema: JSON) -> Ready:
    """Make a schema ready."""
    return Ready(schema, _test_of(schema), _ruled(schema))


def _test_of(schema: JSON) -> Test:
    fits = (
        _is_integer_or_text if schema.get("x-kubernetes-int-or-string") else _FITS.get(schema.get("type", ""), _never)
    )
    checks = tuple((check, schema[keyword]) for keyword, check in words.CHECKS.items() if keyword in schema)
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
    if (identity := words.identity(schema)) is not None:
        tests.append(lambda value: not isinstance(value, list) or _all_differ([identity(item) for item in value]))
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


def _ruled(schema: JSON) -> JSON | None:
    """The schema, as far as the rules in it are about; None if there is none."""
    parts: dict[str, Any] = {}
    for keyword in ("items", "additionalProperties"):
        if schema.get(keyword) is not None and (inner := _ruled(schema[keyword])) is not None:
            parts[keyword] = inner
    known = {name: _ruled(inner) for name, inner in schema.get("properties", {}).items()}
    if any(known.values()):
        parts["properties"] = {name: inner for name, inner in known.items() if inner is not None}
    if "additionalProperties" in parts and known:
        return schema  # what has a name of its own is none of the rest
    if schema.get("x-kubernetes-validations"):
        parts["x-kubernetes-validations"] = schema["x-kubernetes-validations"]
    return parts or None


def _all_differ(keys: list[Any]) -> bool:
    return all(key not in keys[:index] for index, key in enumerate(keys))


def _never(_: Any) -> bool:
    return False  # of a type that is not known here; `schema` tells


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
