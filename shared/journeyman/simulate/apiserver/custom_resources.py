"""Custom resources as their definitions make the API server treat them: defaults, validation, immutable fields.

Restates: k8s.io/apiextensions-apiserver `pkg/registry/customresource/strategy.go`. Defaults come from the generated
schema; validation is by the models that the schema and its CEL rules are generated from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from journeyman.core.api.crds import Definition, object_schema
from journeyman.core.api.model import Model
from journeyman.simulate.apiserver import structural
from journeyman.simulate.apiserver.refusals import Cause

JSON = Mapping[str, Any]


def _nothing_frozen(_new: JSON, _old: JSON) -> Iterable[Cause]:
    return ()


def _frozen_claim(new: JSON, old: JSON) -> Iterable[Cause]:
    if new.get("spec") != old.get("spec"):
        yield Cause("spec", "Invalid value: spec is immutable")


def _frozen_pool(new: JSON, old: JSON) -> Iterable[Cause]:
    if ("replicas" in new["spec"]) != ("replicas" in old["spec"]):
        why = "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes"
        yield Cause("spec", f"Invalid value: {why}")
    ref = "spec.template.spec.nodeClassRef"
    for field in ("group", "kind"):
        if _class_ref(new).get(field) != _class_ref(old).get(field):
            yield Cause(ref, f"Invalid value: nodeClassRef.{field} is immutable")


def _class_ref(pool: JSON) -> JSON:
    spec: JSON = pool["spec"].get("template", {}).get("spec", {})
    ref: JSON = spec.get("nodeClassRef", {})
    return ref


class CustomResource:
    """What a CustomResourceDefinition makes the server do for one kind."""

    def __init__(self, definition: Definition) -> None:
        """Follow `definition`; its schema is built when the first object comes."""
        self.resource = definition.resource
        self._model = definition.model
        self._frozen = _FROZEN.get(definition.resource.kind, _nothing_frozen)
        self._schema: JSON = {}

    def default(self, obj: JSON) -> JSON:
        """The object with defaults filled in and unknown fields dropped."""
        if not self._schema:
            self._schema = object_schema(self._model)
        whole: JSON = structural.completed(obj, self._schema)
        return whole

    def validate(self, new: JSON, old: JSON | None) -> Iterable[Cause]:
        """What is wrong with an object. Faults that the stored one has already do not count again (CRD ratcheting)."""
        faults = _faults(self._model, new)
        if faults and old is not None:
            known = set(_faults(self._model, old))
            faults = [fault for fault in faults if fault not in known]
        yield from faults
        if not faults and old is not None:
            yield from self._frozen(new, old)


_FROZEN: Final[Mapping[str, Callable[[JSON, JSON], Iterable[Cause]]]] = {
    "NodeClaim": _frozen_claim,
    "NodePool": _frozen_pool,
}
"""What may not change once it is stored, by kind."""


def _faults(model: type[Model], obj: JSON) -> list[Cause]:
    try:
        model.model_validate(obj)
    except ValidationError as error:
        return [_cause(detail) for detail in error.errors(include_url=False)]
    return []


def _cause(detail: ErrorDetails) -> Cause:
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return Cause(path, "Required value" if detail["type"] == "missing" else f"Invalid value: {detail['msg']}")
