"""Custom resources as their definitions make the API server treat them: defaults, pruning, schema and rules.

Restates: k8s.io/apiextensions-apiserver `pkg/registry/customresource/strategy.go` `Validate`, `ValidateUpdate`;
`validator.go` `validateScaleSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from journeyman.core.api.crds import CRDDefinition, object_schema
from journeyman.core.api.model import Model
from journeyman_simulator.apiserver import schema_validation
from journeyman_simulator.apiserver.api_errors import ErrorCause
from journeyman_simulator.apiserver.field_sets import METADATA_SHAPE
from journeyman_simulator.apiserver.schema_validation import CompiledSchema, compile_schema

JSON = Mapping[str, Any]


class CustomResource:
    """How the server treats one kind because of its CustomResourceDefinition."""

    def __init__(self, definition: CRDDefinition) -> None:
        """Follow `definition`; its schema is compiled with the first object, once for all servers of this process."""
        self.resource = definition.resource
        self._definition = definition

    @property
    def _schema(self) -> JSON:
        return _schema_of(self._definition.model)

    def shape(self) -> JSON:
        """Return the schema, with that of the metadata."""
        return {**self._schema, "properties": {**self._schema["properties"], "metadata": METADATA_SHAPE}}

    def default(self, obj: JSON) -> JSON:
        """Return the object with defaults, and without undeclared fields."""
        whole: JSON = apply_defaults_and_prune(obj, self._schema)
        return whole

    def validate(self, new: JSON, old: JSON | None) -> Iterable[ErrorCause]:
        """Return what is invalid in an object.

        Faults that the stored object has already do not count (CRD ratcheting), so unchanged parts are not checked; that makes
        status writes cheap.
        """
        changed = new if old is None else (field for field in new if new[field] != old.get(field))
        made = _ready(self._definition.model, frozenset(changed))
        schema = made.schema
        found = [*self._bad_scale(new)]
        if not made.is_sound(new):
            found = [
                *schema_validation.faults(new, schema, ""),
                *found,
                *schema_validation.duplicates(new, schema, ""),
            ]
        if any(cause.blocks for cause in found):
            found.append(schema_validation.UNCHECKED)
        elif made.rules is not None:
            found += schema_validation.broken_rules(new, old, made.rules, "")
        return found if old is None or not found else self._beyond(old, found, schema)

    def _beyond(self, old: JSON, found: list[ErrorCause], schema: JSON) -> Iterable[ErrorCause]:
        """Return the faults that the stored object does not have."""
        known = {*schema_validation.faults(old, schema, ""), *schema_validation.duplicates(old, schema, "")}
        known |= {*schema_validation.broken_rules(old, None, schema, "")}
        kept = [cause for cause in found if cause not in known]
        return () if kept == [schema_validation.UNCHECKED] else kept

    def _bad_scale(self, obj: JSON) -> Iterable[ErrorCause]:
        """Refuse a negative number of replicas in the scale subresource."""
        if self._definition.scale is None:
            return
        path = self._definition.scale[0]
        value: Any = obj
        for part in path.strip(".").split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value < 0:
            yield ErrorCause(path, f"Invalid value: {value}: should be a non-negative integer")


@cache
def _ready(model: type[Model], fields: frozenset[str]) -> CompiledSchema:
    """Return the compiled schema of these fields; the others must only be present."""
    whole = _schema_of(model)
    return compile_schema(
        {**whole, "properties": {name: part for name, part in whole["properties"].items() if name in fields}}
    )


@cache
def _schema_of(model: type[Model]) -> JSON:
    return object_schema(model)


def apply_defaults_and_prune(value: Any, schema: JSON) -> Any:
    """Return the value as the API server stores it. Values of a wrong type are left to validation."""
    if isinstance(value, str):  # most values; `isinstance(…, Mapping)` is slow
        return value
    if isinstance(value, Mapping):
        return _completed_map(value, schema)
    if isinstance(value, list) and "items" in schema:
        return [apply_defaults_and_prune(item, schema["items"]) for item in value]
    return value


def _completed_map(value: JSON, schema: JSON) -> JSON:
    if "additionalProperties" in schema:
        return {key: apply_defaults_and_prune(item, schema["additionalProperties"]) for key, item in value.items()}
    if "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    fields: JSON = schema["properties"]
    kept = {
        key: apply_defaults_and_prune(item, fields[key])
        for key, item in value.items()
        if key in fields and (item is not None or fields[key].get("nullable"))
    }
    for key, field in fields.items():
        if key not in kept and "default" in field:
            kept[key] = apply_defaults_and_prune(field["default"], field)
    return kept
