"""Applies CustomResourceDefinitions to custom resources: defaults, pruning, schema and validation rules.

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
    """The defaults and validation of one kind, from its CustomResourceDefinition."""

    def __init__(self, definition: CRDDefinition) -> None:
        """Create the kind of `definition`, whose schema is compiled on first use, once per process."""
        self.resource = definition.resource
        self._definition = definition

    @property
    def _schema(self) -> JSON:
        return _schema_of(self._definition.model)

    def shape(self) -> JSON:
        """Return the schema of the object, including its metadata."""
        return {**self._schema, "properties": {**self._schema["properties"], "metadata": METADATA_SHAPE}}

    def default(self, obj: JSON) -> JSON:
        """Return the object with defaults and without undeclared fields."""
        whole: JSON = apply_defaults_and_prune(obj, self._schema)
        return whole

    def validate(self, new: JSON, old: JSON | None) -> Iterable[ErrorCause]:
        """Return the errors of an object.

        Errors that the stored object has as well do not count (CRD ratcheting), so unchanged parts are not checked, which
        makes status writes fast.
        """
        changed = new if old is None else (field for field in new if new[field] != old.get(field))
        compiled = _compiled_schema(self._definition.model, frozenset(changed))
        schema = compiled.schema
        found = [*self._scale_errors(new)]
        if not compiled.is_valid(new):
            found = [
                *schema_validation.schema_errors(new, schema, ""),
                *found,
                *schema_validation.duplicates(new, schema, ""),
            ]
        if any(cause.blocks for cause in found):
            found.append(schema_validation.UNCHECKED)
        elif compiled.rules is not None:
            found += schema_validation.broken_rules(new, old, compiled.rules, "")
        return found if old is None or not found else self._new_errors(old, found, schema)

    def _new_errors(self, old: JSON, found: list[ErrorCause], schema: JSON) -> Iterable[ErrorCause]:
        """Return the errors that the stored object does not have."""
        known = {*schema_validation.schema_errors(old, schema, ""), *schema_validation.duplicates(old, schema, "")}
        known |= {*schema_validation.broken_rules(old, None, schema, "")}
        kept = [cause for cause in found if cause not in known]
        return () if kept == [schema_validation.UNCHECKED] else kept

    def _scale_errors(self, obj: JSON) -> Iterable[ErrorCause]:
        """Yield an error if the number of replicas of the scale subresource is negative."""
        if self._definition.scale is None:
            return
        path = self._definition.scale[0]
        value: Any = obj
        for part in path.strip(".").split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value < 0:
            yield ErrorCause(path, f"Invalid value: {value}: should be a non-negative integer")


@cache
def _compiled_schema(model: type[Model], fields: frozenset[str]) -> CompiledSchema:
    """Return the compiled schema with the types of these fields only; required fields must still be present."""
    whole = _schema_of(model)
    return compile_schema(
        {**whole, "properties": {name: part for name, part in whole["properties"].items() if name in fields}}
    )


@cache
def _schema_of(model: type[Model]) -> JSON:
    return object_schema(model)


def apply_defaults_and_prune(value: Any, schema: JSON) -> Any:
    """Return the value with defaults and without undeclared fields. A value of the wrong type stays for validation."""
    if isinstance(value, str):  # checked first: most values are strings, and `isinstance(…, Mapping)` is slow
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
