"""Generates CustomResourceDefinitions from the models, so that the API server validates as the models do.

A structural OpenAPI v3 schema has fewer keywords than JSON schema: no `$ref`, no `anyOf` with null, no `const`.
`structural` converts pydantic's schema; keywords for the CRD only (CEL rules, list types) are in `x-crd` (`model.crd`).
`infra/crds/generate.py` writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import objects
from journeyman.core.api.acs_ecsnodeclass import ACSECSNodeClass
from journeyman.core.api.ccenodeclass import CCENodeClass
from journeyman.core.api.churn_ledger import ChurnLedger
from journeyman.core.api.ec2nodeclass import EC2NodeClass
from journeyman.core.api.ecsnodeclass import ECSNodeClass
from journeyman.core.api.fleet_guard import FleetGuard
from journeyman.core.api.fleet_plan import FleetPlan
from journeyman.core.api.model import Model
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodeclaim_schema import NodeClaimSchema
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Resource
from journeyman.core.api.offering_state import OfferingState

_KARPENTER: Final = ("karpenter",)
_OURS: Final = ("journeyman",)
_NULL: Final = {"type": "null"}
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


class PrinterColumn(Struct, frozen=True):
    """A column of `kubectl get`; wide ones are shown with `-o wide` only.

    The API server shows the first value that the path finds.
    """

    name: str
    path: str
    type: str = "string"
    wide: bool = False


class CRDDefinition(Struct, frozen=True, kw_only=True):
    """A CRD: its kind, model, printer columns and names."""

    resource: Resource[Any]
    model: type[Model]
    columns: tuple[PrinterColumn, ...]
    categories: tuple[str, ...] = _KARPENTER
    short_names: tuple[str, ...] = ()
    scale: tuple[str, str] | None = None  # paths of desired and current replicas

    @property
    def name(self) -> str:
        """`metadata.name` of the CRD."""
        return f"{self.resource.plural}.{self.resource.group}"

    @property
    def file_name(self) -> str:
        """The file name that controller-gen would use."""
        return f"{self.resource.group}_{self.resource.plural}.yaml"


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


def _label(key: str) -> str:
    return ".metadata.labels." + key.replace(".", r"\.")


_READY: Final = PrinterColumn("Ready", _condition("Ready"))
_AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS: Final = (
    CRDDefinition(
        resource=objects.NODEPOOL,
        model=NodePool,
        columns=(
            PrinterColumn("NodeClass", ".spec.template.spec.nodeClassRef.name"),
            PrinterColumn("Nodes", ".status.nodes"),
            _READY,
            _AGE,
            PrinterColumn("Weight", ".spec.weight", "integer", wide=True),
            PrinterColumn("CPU", ".status.resources.cpu", wide=True),
            PrinterColumn("Memory", ".status.resources.memory", wide=True),
        ),
        scale=(".spec.replicas", ".status.nodes"),
    ),
    CRDDefinition(
        resource=objects.NODECLAIM,
        model=NodeClaimSchema,
        columns=(
            PrinterColumn("Type", _label("node.kubernetes.io/instance-type")),
            PrinterColumn("Capacity", _label("karpenter.sh/capacity-type")),
            PrinterColumn("Zone", _label("topology.kubernetes.io/zone")),
            PrinterColumn("Node", ".status.nodeName"),
            _READY,
            _AGE,
            PrinterColumn("ImageID", ".status.imageID", wide=True),
            PrinterColumn("ID", ".status.providerID", wide=True),
            PrinterColumn("NodePool", _label("karpenter.sh/nodepool"), wide=True),
            PrinterColumn("NodeClass", ".spec.nodeClassRef.name", wide=True),
            PrinterColumn("Drifted", _condition("Drifted"), wide=True),
        ),
    ),
    CRDDefinition(
        resource=objects.NODE_OVERLAY,
        model=NodeOverlay,
        columns=(_READY, _AGE, PrinterColumn("Weight", ".spec.weight", "integer", wide=True)),
        short_names=("overlays",),
    ),
    CRDDefinition(
        resource=objects.EC2NODECLASS,
        model=EC2NodeClass,
        columns=(_READY, _AGE, PrinterColumn("Role", ".spec.role", wide=True)),
        short_names=("ec2nc", "ec2ncs"),
    ),
    CRDDefinition(
        resource=objects.ECSNODECLASS,
        model=ECSNodeClass,
        columns=(
            _READY,
            _AGE,
            PrinterColumn("Image", ".spec.imageSelectorTerms[0].alias", wide=True),
            PrinterColumn("SystemDisk", ".spec.systemDisk.volumeSize", wide=True),
        ),
        short_names=("ecsnc", "ecsncs"),
    ),
    CRDDefinition(
        resource=objects.ACS_ECSNODECLASS,
        model=ACSECSNodeClass,
        columns=(_READY, _AGE, PrinterColumn("Role", ".spec.role", wide=True)),
    ),
    CRDDefinition(
        resource=objects.CCENODECLASS,
        model=CCENodeClass,
        columns=(_READY, _AGE, PrinterColumn("OS", ".spec.imsSelector.imsFamily", wide=True)),
    ),
    CRDDefinition(
        resource=objects.NODE_DISRUPTION,
        model=NodeDisruption,
        columns=(
            PrinterColumn("Reason", ".spec.reason"),
            PrinterColumn("Decision", ".spec.decision"),
            PrinterColumn("NodePool", ".spec.candidates[0].nodePool"),
            PrinterColumn("Type", ".spec.candidates[0].instanceType"),
            PrinterColumn("Replacement", ".spec.replacements[0].instanceType"),
            PrinterColumn("Saving/h", ".spec.savingPerHour"),
            PrinterColumn("Phase", ".status.phase"),
            _AGE,
            PrinterColumn("Method", ".spec.method", wide=True),
            PrinterColumn("NodeClaim", ".spec.candidates[0].nodeClaim", wide=True),
            PrinterColumn("Explanation", ".spec.explanation", wide=True),
        ),
        categories=_OURS,
        short_names=("disruptions",),
    ),
    CRDDefinition(
        resource=objects.FLEET_PLAN,
        model=FleetPlan,
        columns=(
            PrinterColumn("Before/h", ".spec.priceBefore"),
            PrinterColumn("After/h", ".spec.priceAfter"),
            PrinterColumn("Bound/h", ".spec.lowerBound"),
            PrinterColumn("Evictions", ".spec.evictions", "integer"),
            PrinterColumn("Done", ".status.done", "integer"),
            PrinterColumn("Phase", ".status.phase"),
            _AGE,
            PrinterColumn("Message", ".status.message", wide=True),
            PrinterColumn("Explanation", ".spec.explanation", wide=True),
        ),
        categories=_OURS,
        short_names=("fleets",),
    ),
    CRDDefinition(
        resource=objects.FLEET_GUARD,
        model=FleetGuard,
        columns=(
            PrinterColumn("Held-Since", ".status.heldSince", "date"),
            _AGE,
            PrinterColumn("Message", ".status.message", wide=True),
        ),
        categories=_OURS,
    ),
    CRDDefinition(
        resource=objects.OFFERING_STATE,
        model=OfferingState,
        columns=(
            PrinterColumn("NodeClass", ".spec.nodeClassRef.name"),
            PrinterColumn("Unavailable", ".status.unavailable[0].instanceType"),
            PrinterColumn("Capacity", ".status.unavailable[0].capacityType"),
            PrinterColumn("Zone", ".status.unavailable[0].zone"),
            PrinterColumn("Until", ".status.unavailable[0].until"),
            PrinterColumn("Prices", ".status.prices.spotRefreshedAt", "date"),
            _AGE,
            PrinterColumn("Reason", ".status.unavailable[0].reason", wide=True),
            PrinterColumn("Failures", ".status.unavailable[0].failures", "integer", wide=True),
            PrinterColumn("PriceSource", ".status.prices.source", wide=True),
            PrinterColumn("PriceError", ".status.prices.message", wide=True),
            PrinterColumn("Estimated", ".status.prices.estimated", "boolean", wide=True),
            PrinterColumn("Kind", ".spec.nodeClassRef.kind", wide=True),
        ),
        categories=_OURS,
        short_names=("offerings",),
    ),
    CRDDefinition(
        resource=objects.CHURN_LEDGER,
        model=ChurnLedger,
        columns=(
            PrinterColumn("Hour", ".status.hour", "date"),
            PrinterColumn("Workload", ".status.workloads[0].name"),
            PrinterColumn("Evictions", ".status.workloads[0].evictions"),
            _AGE,
        ),
        categories=_OURS,
        short_names=("churn",),
    ),
)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every CRD as (file name, object)."""
    for definition in DEFINITIONS:
        yield definition.file_name, custom_resource_definition(definition)


def custom_resource_definition(definition: CRDDefinition) -> dict[str, Any]:
    """Return the CustomResourceDefinition object."""
    resource = definition.resource
    names: dict[str, Any] = {
        "categories": list(definition.categories),
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    if definition.short_names:
        names["shortNames"] = list(definition.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_printer_column(column) for column in definition.columns],
                    "schema": {"openAPIV3Schema": object_schema(definition.model)},
                    "subresources": _subresources(definition),
                }
            ],
        },
    }


def _printer_column(column: PrinterColumn) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**shown, "priority": 1} if column.wide else shown


def _subresources(definition: CRDDefinition) -> dict[str, Any]:
    if definition.scale is None:
        return {"status": {}}
    desired, current = definition.scale
    return {"status": {}, "scale": {"specReplicasPath": desired, "statusReplicasPath": current}}


def object_schema(model: type[Model]) -> dict[str, Any]:
    """Return the structural schema of an object."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    whole = structural(schema, schema.get("$defs", {}))
    whole["properties"] |= {
        "apiVersion": {"type": "string", "description": "API version of the object."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
    }
    return whole


def structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return pydantic's JSON schema as a structural schema.

    Args:
        node: The schema or a part of it.
        definitions: The targets of its `$ref`s.
    """
    own, facts = _split(_resolved(node, definitions))
    if own.get("x-kubernetes-int-or-string"):
        return own
    if "properties" in own:
        own["properties"] = {name: structural(part, definitions) for name, part in own["properties"].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(own.get(keyword), Mapping):
            own[keyword] = structural(own[keyword], definitions)
    if own.get("additionalProperties") in (True, False):
        del own["additionalProperties"]
    if "const" in own:
        own["enum"] = [own.pop("const")]
    return _overlaid(own, facts)


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node, with the keywords of its reference, or of its only alternative that is not null, as defaults."""
    if "$ref" in node:
        base = _resolved(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return _merged(base, node, "$ref")
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        (alternative,) = (option for option in node["anyOf"] if option != _NULL)
        return _merged(_resolved(alternative, definitions), node, "anyOf")
    return dict(node)


def _merged(base: Mapping[str, Any], node: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    over = {key: value for key, value in node.items() if key != keyword}
    merged = {**base, **over}
    if "x-crd" in base and "x-crd" in over:
        merged["x-crd"] = {**base["x-crd"], **over["x-crd"]}
    return merged


def _split(node: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema's own keywords, and those for the CRD only. Titles and empty defaults are dropped."""
    dropped = {"title", "$defs", "x-crd"}
    own = {key: value for key, value in node.items() if key not in dropped}
    default = own.get("default")
    if default in _EMPTY or (default in (0, False) and not isinstance(default, str)):
        own.pop("default", None)
    return own, node.get("x-crd", {})


def _overlaid(own: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the CRD's keywords; None removes a keyword."""
    return {key: value for key, value in {**own, **facts}.items() if value is not None}
