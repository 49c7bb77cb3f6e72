"""CustomResourceDefinitions, generated from the models: what the API server checks is what we check.

A structural OpenAPI v3 schema is less than JSON schema: no `$ref`, no `anyOf` with null, no `const`. `structural` turns
one into the other; facts that only a CRD knows (CEL rules, list types) ride along under `x-crd` (see `model.crd`).
Pure: the files are written by `infra/crds/generate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from journeyman.core.api import objects
from journeyman.core.api.ec2nodeclass import EC2NodeClass
from journeyman.core.api.model import Model
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodeclaim import NodeClaim
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import Resource
from journeyman.core.api.offering_state import OfferingState

_KARPENTER: Final = ("karpenter",)
_OURS: Final = ("journeyman",)
_NULL: Final = {"type": "null"}
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


class Column(Struct, frozen=True):
    """A column of `kubectl get`; a wide one shows with `-o wide` only.

    Of several values that a path finds the API server shows the first; so a path into a list says which.
    """

    name: str
    path: str
    type: str = "string"
    wide: bool = False


class Definition(Struct, frozen=True, kw_only=True):
    """What a CRD says beside its schema."""

    resource: Resource[Any]
    model: type[Model]
    columns: tuple[Column, ...]
    categories: tuple[str, ...] = _KARPENTER
    short_names: tuple[str, ...] = ()
    scale: tuple[str, str] | None = None  # paths of the wanted and the present number

    @property
    def name(self) -> str:
        """`metadata.name` of the CRD."""
        return f"{self.resource.plural}.{self.resource.group}"

    @property
    def file_name(self) -> str:
        """Where it is kept, named as controller-gen does."""
        return f"{self.resource.group}_{self.resource.plural}.yaml"


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


def _label(key: str) -> str:
    return ".metadata.labels." + key.replace(".", r"\.")


_READY: Final = Column("Ready", _condition("Ready"))
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS: Final = (
    Definition(
        resource=objects.NODEPOOL,
        model=NodePool,
        columns=(
            Column("NodeClass", ".spec.template.spec.nodeClassRef.name"),
            Column("Nodes", ".status.nodes"),
            _READY,
            _AGE,
            Column("Weight", ".spec.weight", "integer", wide=True),
            Column("CPU", ".status.resources.cpu", wide=True),
            Column("Memory", ".status.resources.memory", wide=True),
        ),
        scale=(".spec.replicas", ".status.nodes"),
    ),
    Definition(
        resource=objects.NODECLAIM,
        model=NodeClaim,
        columns=(
            Column("Type", _label("node.kubernetes.io/instance-type")),
            Column("Capacity", _label("karpenter.sh/capacity-type")),
            Column("Zone", _label("topology.kubernetes.io/zone")),
            Column("Node", ".status.nodeName"),
            _READY,
            _AGE,
            Column("ImageID", ".status.imageID", wide=True),
            Column("ID", ".status.providerID", wide=True),
            Column("NodePool", _label("karpenter.sh/nodepool"), wide=True),
            Column("NodeClass", ".spec.nodeClassRef.name", wide=True),
            Column("Drifted", _condition("Drifted"), wide=True),
        ),
    ),
    Definition(
        resource=objects.NODE_OVERLAY,
        model=NodeOverlay,
        columns=(_READY, _AGE, Column("Weight", ".spec.weight", "integer", wide=True)),
        short_names=("overlays",),
    ),
    Definition(
        resource=objects.EC2NODECLASS,
        model=EC2NodeClass,
        columns=(_READY, _AGE, Column("Role", ".spec.role", wide=True)),
        short_names=("ec2nc", "ec2ncs"),
    ),
    Definition(
        resource=objects.NODE_DISRUPTION,
        model=NodeDisruption,
        columns=(
            Column("Reason", ".spec.reason"),
            Column("Decision", ".spec.decision"),
            Column("NodePool", ".spec.candidates[0].nodePool"),
            Column("Type", ".spec.candidates[0].instanceType"),
            Column("Replacement", ".spec.replacements[0].instanceType"),
            Column("Saving/h", ".spec.savingPerHour"),
            Column("Phase", ".status.phase"),
            _AGE,
            Column("Method", ".spec.method", wide=True),
            Column("NodeClaim", ".spec.candidates[0].nodeClaim", wide=True),
            Column("Explanation", ".spec.explanation", wide=True),
        ),
        categories=_OURS,
        short_names=("disruptions",),
    ),
    Definition(
        resource=objects.OFFERING_STATE,
        model=OfferingState,
        columns=(
            Column("NodeClass", ".spec.nodeClassRef.name"),
            Column("Unavailable", ".status.unavailable[0].instanceType"),
            Column("Capacity", ".status.unavailable[0].capacityType"),
            Column("Zone", ".status.unavailable[0].zone"),
            Column("Until", ".status.unavailable[0].until"),
            Column("Prices", ".status.prices.spotRefreshedAt", "date"),
            _AGE,
            Column("Why", ".status.unavailable[0].reason", wide=True),
            Column("Failures", ".status.unavailable[0].failures", "integer", wide=True),
            Column("PriceSource", ".status.prices.source", wide=True),
            Column("PriceError", ".status.prices.message", wide=True),
            Column("Kind", ".spec.nodeClassRef.kind", wide=True),
        ),
        categories=_OURS,
        short_names=("offerings",),
    ),
)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every CRD as (file name, object)."""
    for definition in DEFINITIONS:
        yield definition.file_name, custom_resource_definition(definition)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition object."""
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


def _printer_column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**shown, "priority": 1} if column.wide else shown


def _subresources(definition: Definition) -> dict[str, Any]:
    if definition.scale is None:
        return {"status": {}}
    wanted, present = definition.scale
    return {"status": {}, "scale": {"specReplicasPath": wanted, "statusReplicasPath": present}}


def object_schema(model: type[Model]) -> dict[str, Any]:
    """The structural schema of a whole object."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    whole = structural(schema, schema.get("$defs", {}))
    whole["properties"] |= {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
    }
    return whole


def structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema, as pydantic writes it, as a structural schema.

    Args:
        node: The schema or a part of it.
        definitions: What its `$ref`s name.
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
    """The node with its reference, or the one alternative that is not null, laid under its own keywords."""
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
    """The schema's own keywords, and the facts of the CRD. Titles and defaults that say nothing are dropped."""
    dropped = {"title", "$defs", "x-crd"}
    own = {key: value for key, value in node.items() if key not in dropped}
    default = own.get("default")
    if default in _EMPTY or (default in (0, False) and not isinstance(default, str)):
        own.pop("default", None)
    return own, node.get("x-crd", {})


def _overlaid(own: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """CRD facts laid over the schema; None removes a keyword."""
    return {key: value for key, value in {**own, **facts}.items() if value is not None}
