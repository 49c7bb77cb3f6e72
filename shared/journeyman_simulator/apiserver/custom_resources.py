"""Custom resources as their definitions make the API server treat them: defaults, pruning, schema and rules.

Restates: k8s.io/apiextensions-apiserver `pkg/registry/customresource/strategy.go` `Validate`, `ValidateUpdate`;
`validator.go` `validateScaleSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from journeyman.core.api.crds import Definition, object_schema
from journeyman.core.api.model import Model
from journeyman_simulator.apiserver import schema, structural
from journeyman_simulator.apiserver.fieldsets import METADATA_SHAPE
from journeyman_simulator.apiserver.refusals import Cause
from journeyman_simulator.apiserver.soundness import Ready, ready

JSON = Mapping[str, Any]


class CustomResource:
    """What a CustomResourceDefinition makes the server do for one kind."""

    def __init__(self, definition: Definition) -> None:
        """Follow `definition`; its schema is built when the first object comes, once for all servers of this process."""
        self.resource = definition.resource
        self._definition = definition

    @property
    def _schema(self) -> JSON:
        return _schema_of(self._definition.model)

    def shape(self) -> JSON:
        """The schema, with what the server knows of every object's metadata."""
        return {**self._schema, "properties": {**self._schema["properties"], "metadata": METADATA_SHAPE}}

    def default(self, obj: JSON) -> JSON:
        """The object with defaults filled in and unknown fields dropped."""
        whole: JSON = structural.completed(obj, self._schema)
        return whole

    def validate(self, new: JSON, old: JSON | None) -> Iterable[Cause]:
        """What is wrong with an object.

        Faults that the stored one has already do not count again (CRD ratcheting). So a part that stays as it is need
        not be looked at, which is what makes writes of a status cheap.
        """
        changed = new if old is None else (field for field in new if new[field] != old.get(field))
        made = _ready(self._definition.model, frozenset(changed))
        looked_at = made.schema
        found = [*self._bad_scale(new)]
        if not made.is_sound(new):
            found = [*schema.faults(new, looked_at, ""), *found, *schema.duplicates(new, looked_at, "")]
        if any(cause.blocks for cause in found):
            found.append(schema.UNCHECKED)
        elif made.rules is not None:
            found += schema.broken_rules(new, old, made.rules, "")
        return found if old is None or not found else self._beyond(old, found, looked_at)

    def _beyond(self, old: JSON, found: list[Cause], looked_at: JSON) -> Iterable[Cause]:
        """The faults that the stored object does not have itself."""
        known = {*schema.faults(old, looked_at, ""), *schema.duplicates(old, looked_at, "")}
        known |= {*schema.broken_rules(old, None, looked_at, "")}
        kept = [cause for cause in found if cause not in known]
        return () if kept == [schema.UNCHECKED] else kept

    def _bad_scale(self, obj: JSON) -> Iterable[Cause]:
        """The number of replicas that the scale subresource shows cannot be negative."""
        if self._definition.scale is None:
            return
        path = self._definition.scale[0]
        value: Any = obj
        for part in path.strip(".").split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value < 0:
            yield Cause(path, f"Invalid value: {value}: should be a non-negative integer")


@cache
def _ready(model: type[Model], fields: frozenset[str]) -> Ready:
    """A model's schema, as far as it is about these fields; the others must be there all the same."""
    whole = _schema_of(model)
    return ready({**whole, "properties": {name: part for name, part in whole["properties"].items() if name in fields}})


@cache
def _schema_of(model: type[Model]) -> JSON:
    return object_schema(model)
