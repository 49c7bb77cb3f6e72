"""Defaulting and pruning by a CRD's structural schema.

Restates: k8s.io/apiextensions-apiserver `pkg/apiserver/schema/defaulting`, `…/pruning`: fields the schema does not know
are dropped, a null that is not allowed reads as missing, and what is missing gets its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = Mapping[str, Any]


def completed(value: Any, schema: JSON) -> Any:
    """The value as the API server stores it. Values of another type than the schema's are left to validation."""
    if isinstance(value, Mapping):
        return _completed_map(value, schema)
    if isinstance(value, list) and "items" in schema:
        return [completed(item, schema["items"]) for item in value]
    return value


def _completed_map(value: JSON, schema: JSON) -> JSON:
    if "additionalProperties" in schema:
        return {key: completed(item, schema["additionalProperties"]) for key, item in value.items()}
    if "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    fields: JSON = schema["properties"]
    kept = {
        key: completed(item, fields[key])
        for key, item in value.items()
        if key in fields and (item is not None or fields[key].get("nullable"))
    }
    for key, field in fields.items():
        if key not in kept and "default" in field:
            kept[key] = completed(field["default"], field)
    return kept
