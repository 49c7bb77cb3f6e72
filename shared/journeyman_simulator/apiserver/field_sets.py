"""Computes an object's fields for server-side apply, and merges and removes fields.

Maps are merged field by field. Lists are atomic, unless the schema declares a set or a map: then each item is a field.
Restates: sigs.k8s.io/structured-merge-diff `typed/{tofieldset,merge,remove}.go`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

JSON = Mapping[str, Any]


class Item(Struct, frozen=True):
    """An item of a list. `key` has the key fields of a map's item, or the item of a set under the name ""."""

    key: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in self.key) + "]"


Path = tuple["str | Item", ...]
"""The names and items from the root of an object to a field."""
MISSING: Final = object()
_ANYTHING: Final[JSON] = {}
METADATA_SHAPE: Final[JSON] = {
    "properties": {
        "finalizers": {"x-kubernetes-list-type": "set"},
        "ownerReferences": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}
"""The schema of metadata."""
_CONDITIONS: Final[JSON] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
BUILT_IN_SHAPE: Final[JSON] = {
    "properties": {"metadata": METADATA_SHAPE, "status": {"properties": {"conditions": _CONDITIONS}}},
}
"""The schema of built-in kinds, without lists that are atomic."""


def path_text(path: Path) -> str:
    """Return a path in the server's notation: `.status.conditions[type="Ready"].status`."""
    return "".join(str(part) if isinstance(part, Item) else f".{part}" for part in path)


def field_paths(value: Any, schema: JSON, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every field of a value; the existence of an item is a field as well."""
    parts = list(_parts(value, schema))
    if not parts:
        if path:
            yield path
        return
    for part, inner, shape in parts:
        below = (*path, part)
        if isinstance(part, Item):
            yield below
            if not isinstance(inner, Mapping):
                continue
        yield from field_paths(inner, shape, below)


def undeclared_fields(value: Any, schema: JSON, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of the fields that the schema does not declare."""
    for part, inner, shape in _parts(value, schema):
        known = isinstance(part, Item) or "properties" not in schema or part in schema["properties"]
        if known or schema.get("x-kubernetes-preserve-unknown-fields"):
            yield from undeclared_fields(inner, shape, (*path, part))
        else:
            yield (*path, part)


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path; MISSING if it does not exist."""
    for part in path:
        if isinstance(part, Item):
            found = [item for item in value if _has_key(item, part)] if isinstance(value, list) else []
            value = found[0] if found else MISSING
        else:
            value = value.get(part, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def merge_fields(live: Any, wanted: Any, schema: JSON) -> Any:
    """Return `live` with every field of `wanted` merged into it."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping) and not _is_atomic(wanted, schema):
        result = dict(live)
        for name, value in wanted.items():
            shape = _shape(schema, name)
            result[name] = merge_fields(live[name], value, shape) if name in live else value
        return result
    if isinstance(wanted, list) and isinstance(live, list) and not _is_atomic(wanted, schema):
        result_items = list(live)
        for item in wanted:
            key = _item(item, schema)
            position = next((index for index, other in enumerate(result_items) if _has_key(other, key)), None)
            if position is None:
                result_items.append(item)
            else:
                result_items[position] = merge_fields(result_items[position], item, schema.get("items", _ANYTHING))
        return result_items
    return wanted


def remove_field(value: Any, path: Path) -> Any:
    """Return the value without the field at a path, and without parts that become empty."""
    part, rest = path[0], path[1:]
    inner = value_at(value, (part,))
    if inner is MISSING:
        return value
    remaining = remove_field(inner, rest) if rest else MISSING
    if rest and (remaining or remaining == inner):
        return _with(value, part, remaining)
    if isinstance(part, Item):
        return [item for item in value if not _has_key(item, part)]
    return {name: item for name, item in value.items() if name != part}


def _with(value: Any, part: str | Item, inner: Any) -> Any:
    if isinstance(part, Item):
        return [inner if _has_key(item, part) else item for item in value]
    return {**value, part: inner}


def _parts(value: Any, schema: JSON) -> Iterator[tuple[str | Item, Any, JSON]]:
    """Yield the parts of a value that is merged; none for an atomic value."""
    if _is_atomic(value, schema):
        return
    if isinstance(value, Mapping):
        yield from ((name, inner, _shape(schema, name)) for name, inner in value.items())
    else:
        yield from ((_item(item, schema), item, schema.get("items", _ANYTHING)) for item in value)


def _is_atomic(value: Any, schema: JSON) -> bool:
    if isinstance(value, Mapping):
        return schema.get("x-kubernetes-map-type") == "atomic"
    return not isinstance(value, list) or schema.get("x-kubernetes-list-type", "atomic") == "atomic"


def _shape(schema: JSON, name: str) -> JSON:
    known: JSON = schema.get("properties", _ANYTHING)
    found: JSON = known.get(name) or schema.get("additionalProperties") or _ANYTHING
    return found


def _item(item: Any, schema: JSON) -> Item:
    if schema.get("x-kubernetes-list-type") == "set":
        return Item((("", item),))
    return Item(tuple((name, item.get(name)) for name in schema["x-kubernetes-list-map-keys"]))


def _has_key(item: Any, wanted: Item) -> bool:
    return all(item == value if name == "" else item.get(name) == value for name, value in wanted.key)
