"""Custom resources as their definitions make the API server treat them: validation and fields that may not change.

Restates: k8s.io/apiextensions-apiserver `pkg/registry/customresource/strategy.go`, with the models of `core.api` in the
place of the OpenAPI schema and CEL rules that are generated from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from journeyman.core.api.ec2nodeclass import EC2NodeClass
from journeyman.core.api.model import Model
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodeclaim import NodeClaim
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.offering_state import OfferingState
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a CustomResourceDefinition says about one kind: the model, and what may not change once it is stored."""

    model: type[Model]
    frozen: Callable[[JSON, JSON], Iterable[Cause]] = _nothing_frozen

    def validate(self, new: JSON, old: JSON | None) -> Iterable[Cause]:
        """What is wrong with an object. Faults that the stored one has already do not count again (CRD ratcheting)."""
        faults = _faults(self.model, new)
        if faults and old is not None:
            known = set(_faults(self.model, old))
            faults = [fault for fault in faults if fault not in known]
        yield from faults
        if not faults and old is not None:
            yield from self.frozen(new, old)


DEFINITIONS: Final[Mapping[str, Definition]] = {
    "NodePool": Definition(model=NodePool, frozen=_frozen_pool),
    "NodeClaim": Definition(model=NodeClaim, frozen=_frozen_claim),
    "EC2NodeClass": Definition(model=EC2NodeClass),
    "NodeDisruption": Definition(model=NodeDisruption),
    "OfferingState": Definition(model=OfferingState),
}
"""By kind."""


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
