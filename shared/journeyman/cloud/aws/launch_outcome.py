"""What a NodeClaim learns of the instance that was launched for it.

Restates: karpenter-provider-aws pkg/cloudprovider/cloudprovider.go `Create`, `instanceToNodeClaim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journeyman.cloud.aws.capacity import EFA
from journeyman.cloud.aws.fleets import OfferingKey
from journeyman.cloud.aws.lowering import RESERVATION_LABELS, TENANCY, ZONE_ID
from journeyman.cloud.aws.view import NodeClassView
from journeyman.core.api import labels
from journeyman.core.api.hashes import EC2NODECLASS_KEYS
from journeyman.core.api.resources import format_resources
from journeyman.core.catalogue import InstanceType, price_of
from journeyman.ports import Instance, Launched, LaunchRequest

INSTANCE_PROFILE: Final = f"{labels.AWS_GROUP}/instance-profile-name"


def launched(
    request: LaunchRequest,
    instance: Instance,
    *,
    tenancy: str,
    unavailable: tuple[OfferingKey, ...] = (),
) -> Launched:
    """What the claim learns of its instance."""
    node_class = NodeClassView(request.node_class.raw)
    instance_type = next((t for t in request.instance_types if t.name == instance.instance_type), None)
    return Launched(
        claim=request.claim.metadata.name,
        instance=instance,
        labels=_labels(instance, instance_type, node_class, tenancy),
        annotations=_annotations(request, node_class),
        capacity=_shown(request, instance_type.capacity) if instance_type else {},
        allocatable=_shown(request, instance_type.allocatable) if instance_type else {},
        price=price_of(request.instance_types, instance.instance_type, instance.zone, instance.capacity_type),
        unavailable=unavailable,
    )


def _labels(
    instance: Instance, instance_type: InstanceType | None, node_class: NodeClassView, tenancy: str
) -> dict[str, str]:
    """Every label on which the type leaves no choice, and what this launch decided."""
    values = {
        r.key: r.values[0]
        for r in (instance_type.requirements if instance_type else ())
        if r.operator == "In" and len(r.values) == 1 and r.key not in RESERVATION_LABELS
    }
    zone_id = node_class.zone_ids.get(instance.zone, "")
    return {
        **values,
        labels.INSTANCE_TYPE: instance.instance_type,
        labels.ZONE: instance.zone,
        labels.CAPACITY_TYPE: instance.capacity_type,
        TENANCY: tenancy,
        **({ZONE_ID: zone_id} if zone_id else {}),
    }


def _annotations(request: LaunchRequest, node_class: NodeClassView) -> dict[str, str]:
    state = request.node_class
    values = {
        EC2NODECLASS_KEYS.hash: state.hash,
        EC2NODECLASS_KEYS.version: state.hash_version,
        INSTANCE_PROFILE: str(node_class.status.get("instanceProfile") or ""),
    }
    return {key: value for key, value in values.items() if value}


def _shown(request: LaunchRequest, amounts: Mapping[str, int]) -> dict[str, str]:
    """What of a type's resources the node will really have, as quantities: EFA only where it was asked for."""
    laid_out = bool(NodeClassView(request.node_class.raw).network_interfaces)
    has_efa = laid_out or EFA in request.claim.spec.resources.requests
    return format_resources({name: n for name, n in amounts.items() if n and (name != EFA or has_efa)})
