"""Generates objects of Karpenter's kinds: a valid object, in which up to three fields have valid, borderline or invalid values.

The values are those of the rules, and those that follow from Karpenter's schema, so that every field and every rule has its
turn, also ones that no rule here knows. The same seed gives the same objects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.contract.crds.all_rules import RULES
from tests.contract.crds.edge_values import (
    DURATIONS_BAD,
    DURATIONS_GOOD,
    KEYS_BAD,
    KEYS_GOOD,
    QUANTITIES_BAD,
    QUANTITIES_GOOD,
)
from tests.contract.crds.rule import ARCH, BASES, NODE_CLASS_REF, TAINT, JSONDict, with_value

KINDS: Final = ("NodePool", "EC2NodeClass", "NodeClaim", "NodeOverlay", "CapacityBuffer", "CCENodeClass")

_TEXTS: Final = ("", "a", " ", "A", "default", "a" * 64, "a.b/c", "ä", "1", "0", "-1", "1.5", "10%", "Never", "true")
_WRONG: Final = (None, True, 0, -1, 1.5, 2**31, 2**63, "", "a", [], {}, [None], {"a": None}, {"": ""})
_ITEMS: Final[Mapping[str, Any]] = {
    "requirements": ARCH,
    "taints": TAINT,
    "startupTaints": {**TAINT, "key": "example.com/startup"},
    "budgets": {"nodes": "10%"},
    "networkInterfaces": {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
    "blockDeviceMappings": {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi"}},
}
_OBJECTS: Final[Mapping[str, Any]] = {
    "nodeClassRef": NODE_CLASS_REF,
    "disruption": {"consolidateAfter": "0s"},
    "ebs": {"volumeSize": "20Gi"},
}
_SHARE_OF_RULES: Final = 0.6


def generated_objects(schemas: Mapping[str, JSONDict], number: int, seed: int) -> Iterator[JSONDict]:
    """Yield so many objects, as many of each kind.

    Args:
        schemas: Karpenter's schema of each kind.
        number: How many.
        seed: The same seed gives the same objects.
    """
    draw = random.Random(seed)
    values = {kind: _rule_values(kind) for kind in KINDS}
    for values_of_kind in values.values():
        draw.shuffle(values_of_kind)
    for index in range(number):
        kind = KINDS[index % len(KINDS)]
        obj = BASES[kind]
        for change in range(draw.choice((1, 1, 1, 2, 3))):
            if draw.random() < _SHARE_OF_RULES and values[kind]:
                # in turn, so that each has one, then any
                at = index // len(KINDS) if not change else draw.randrange(len(values[kind]))
                path, value = values[kind][at % len(values[kind])]
            else:
                path, value = _schema_value(draw, schemas[kind]["properties"]["spec"], obj.get("spec"), "spec")
            obj = _changed(obj, path, value)
        yield obj


def _rule_values(kind: str) -> list[tuple[str, Any]]:
    return [
        (rule.path, value) for rule in RULES if rule.kind == kind for value in (*rule.good, *rule.bad, *rule.listed)
    ]


def _changed(obj: JSONDict, path: str, value: Any) -> JSONDict:
    """Return the object with the value; unchanged if an earlier change removed a parent of the path."""
    try:
        return with_value(obj, path, value)
    except (AttributeError, IndexError, TypeError, ValueError):
        return obj


def _schema_value(draw: random.Random, schema: JSONDict, value: Any, path: str) -> tuple[str, Any]:
    """Return the path of a field below `path`, and a value for it."""
    if "properties" in schema and draw.random() < 0.95:
        name = draw.choice(sorted(schema["properties"]))
        inside = value.get(name) if isinstance(value, dict) else None
        if inside is None and draw.random() < 0.7:
            inside = _sample(schema["properties"][name], name)
        where, found = _schema_value(draw, schema["properties"][name], inside, f"{path}.{name}")
        if isinstance(value, dict) and value.get(name) is None and where != f"{path}.{name}":
            return f"{path}.{name}", _changed({"it": inside}, "it" + where.removeprefix(f"{path}.{name}"), found)["it"]
        return where, found
    if schema.get("type") == "array" and isinstance(value, list) and value and draw.random() < 0.8:
        index = draw.randrange(len(value))
        return _schema_value(draw, schema["items"], value[index], f"{path}.{index}")
    return path, _value(draw, schema, value)


def _value(draw: random.Random, schema: JSONDict, value: Any) -> Any:
    """Return a valid, borderline or invalid value of a field that has this value."""
    if draw.random() < 0.15:
        return draw.choice(_WRONG)
    return draw.choice(tuple(_candidates(draw, schema, value)))


def _candidates(draw: random.Random, schema: JSONDict, value: Any) -> Iterator[Any]:
    kind = schema.get("type")
    yield value
    if schema.get("x-kubernetes-int-or-string"):
        yield from (*QUANTITIES_GOOD, *QUANTITIES_BAD)
    elif "enum" in schema:
        yield from (*schema["enum"], str(schema["enum"][0]).lower(), f"{schema['enum'][0]}x")
    elif kind == "integer":
        low, high = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
        yield from (low, high, low + 1, low - 1, high + 1, 2**63 - 1, float(low))
    elif kind == "boolean":
        yield from (True, False)
    elif kind == "string":
        length = schema.get("maxLength", 253)
        yield from (*_TEXTS, "a" * length, "a" * (length + 1), *draw.sample((*DURATIONS_GOOD, *DURATIONS_BAD), 3))
        yield from draw.sample((*KEYS_GOOD, *KEYS_BAD), 3)
    elif kind == "array":
        item = value[0] if isinstance(value, list) and value else _sample(schema["items"], "")
        most = schema.get("maxItems", 100)
        yield from ([], [item], [item, item], [item] * most, [item] * (most + 1))
    elif kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        inner, most = schema["additionalProperties"], schema.get("maxProperties", 60)
        keys = ("cpu", "memory", "nodes", "nvidia.com/gpu", *draw.sample(KEYS_GOOD, 2), *draw.sample(KEYS_BAD, 2))
        yield from ({key: _value(draw, inner, _sample(inner, key))} for key in keys)
        yield from ({f"k{i}": _sample(inner, "") for i in range(n)} for n in (0, most, most + 1))
    elif kind == "object":
        yield from ({}, _sample(schema, ""))


def _sample(schema: JSONDict, name: str) -> Any:
    """Return a value of this schema, valid if it is simple."""
    if name in _OBJECTS:
        return _OBJECTS[name]
    kind: Sequence[str] | str | None = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return "1"
    if "enum" in schema:
        return schema["enum"][0]
    if kind == "array":
        return [_ITEMS[name]] if name in _ITEMS else [_sample(schema["items"], "")]
    if kind == "object":
        required = schema.get("required") or sorted(schema.get("properties", {}))[:1]
        return {key: _sample(schema["properties"][key], key) for key in required}
    return {"integer": schema.get("minimum", 1), "boolean": True}.get(str(kind), "a")
