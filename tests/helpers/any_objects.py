"""Random Kubernetes objects as JSON, from the fields of the product's Structs: each field is set, empty, or missing."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from journeyman.core.api.objects import Resource
from journeyman.kube.protobuf import message_classes as messages
from journeyman.kube.protobuf.field_numbers import AS_JSON

MARK = "drawn-by"
_NEVER_EMPTY = {
    "spec",
    "template",
    "containers",
    "node_selector_terms",
    "drivers",
}  # or in them, lists that are null in JSON
_TEXTS = ("a", "Exists", "größer", "日本", "x" * 200, 'a"\\\n\u2028b')
_QUANTITIES = ("100m", "1.5Gi", "0.1", "2", 3, 1.5, "1e3", "1024Ki", "-1", "0", "1n", "12E")
_TIMES = ("2026-11-20T08:15:00Z", "1969-12-31T23:59:59Z", "2038-01-19T03:14:08Z", "2026-11-20T10:15:00+02:00")


fields_of = cache(msgspec.structs.fields)  # it evaluates all annotations of a Struct anew


class ObjectGenerator:
    """Generates random objects. The same seed generates the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._share = 1.0

    def objects(self, resource: Resource[Any], count: int, *, namespace: str, mark: str) -> Iterator[dict[str, Any]]:
        """Return random objects of a kind, the first with all fields set."""
        for number in range(count):
            self._share = self._random.random() if number else 1.0
            body = self._struct(resource.type)
            where = {"namespace": namespace} if resource.namespaced else {}
            own = {"name": f"{mark}-{number}", "uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4))}
            metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "namespace"}
            metadata = {**metadata, **own, **where, "labels": {**metadata.get("labels", {}), MARK: mark}}
            yield {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}

    def _struct(self, type_: Any) -> dict[str, Any]:
        body = {}
        known = messages.fields(type_)
        for field in fields_of(type_):
            if field.name in known and (_needed(field) or self._random.random() <= self._share):
                value = self._value(AS_JSON.get((type_, field.name)), known[field.name], _needed(field))
                body[field.encode_name] = value
        return body

    def _value(self, raw: Any, hint: Any, needed: bool) -> Any:
        empty = not needed and self._random.random() > max(self._share, 0.8)
        if get_origin(hint) is tuple:
            one = raw or get_args(hint)[0]
            return [] if empty else [self._one(one) for _ in range(self._random.randint(1, 3))]
        if get_origin(hint) is dict and raw is None:
            keys = self._random.sample(["b", "a.example.com/b", "a", "Z"], self._random.randint(1, 4))
            texts = _TEXTS if get_args(hint)[1] is str else _QUANTITIES
            return {} if empty else {key: self._random.choice(texts) for key in keys}
        return self._one(raw or hint, empty=empty)

    def _one(self, type_: Any, *, empty: bool = False) -> Any:
        if type_ is str:
            return "" if empty else self._random.choice(_TEXTS)
        if type_ is int:
            return 0 if empty else self._random.choice((1, 7, 300, 2**31 - 1))
        if type_ is bool:
            return not empty
        if type_ is datetime:
            return None if empty else self._random.choice(_TIMES)
        if type_ == (int | str):
            return self._random.choice((0, 3, "50%"))
        return {} if empty and not any(_needed(field) for field in fields_of(type_)) else self._struct(type_)


def _needed(field: msgspec.structs.FieldInfo) -> bool:
    return field.required or field.name in _NEVER_EMPTY


def fields_with_values(found: Any) -> Iterator[tuple[type, str]]:
    """Yield (Struct, field) for each field that does not have its default, nested Structs included."""
    if isinstance(found, msgspec.Struct):
        for field in fields_of(type(found)):
            value = getattr(found, field.name)
            if field.required or value != messages.default_of(type(found), field.name):
                yield type(found), field.name
            yield from fields_with_values(value)
    elif isinstance(found, tuple):
        for one in found:
            yield from fields_with_values(one)


def kubernetes_fields(type_: Any) -> set[tuple[type, str]]:
    """Return (Struct, field) for each field of a Struct and of its nested Structs that Kubernetes' schema has."""
    found: set[tuple[type, str]] = set()
    waiting = [type_]
    while waiting:
        struct = waiting.pop()
        for name, hint in messages.fields(struct).items():
            if (struct, name) in found:
                continue
            found.add((struct, name))
            waiting += [
                one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, msgspec.Struct)
            ]
    return found
