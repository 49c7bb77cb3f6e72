"""Drift of EC2 instances: how an instance differs from the status of its EC2NodeClass.

Restates: karpenter-provider-aws pkg/cloudprovider/drift.go `isNodeClassDrifted` after its static fields, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from journeyman.cloud.aws.launch_templates import image_for
from journeyman.cloud.aws.network_discovery import PlacementGroup
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.base_provider import SECURITY_GROUP_DRIFT, SUBNET_DRIFT, InstanceDrift
from journeyman.core.api.ec2nodeclass_status import CapacityReservation, Subnet
from journeyman.core.api.nodeclass_rules import SecurityGroup
from journeyman.core.catalogue import InstanceType
from journeyman.ports import Instance

AMI_DRIFT: Final = "AMIDrift"
CAPACITY_RESERVATION_DRIFT: Final = "CapacityReservationDrift"
PLACEMENT_GROUP_DRIFT: Final = "PlacementGroupDrift"


def drift_from(
    node_class: NodeClassView, types: Iterable[InstanceType], group: PlacementGroup | None
) -> InstanceDrift | None:
    """Return the function that compares instances with the NodeClass.

    Args:
        node_class: Its status names subnets, security groups, AMIs and capacity reservations.
        types: Its instance types.
        group: The placement group that it selects, if that exists.

    Returns:
        None while the status names no AMI, subnet or security group. The function returns None for an instance whose type
        is unknown, or for which no AMI fits.
    """
    subnets, groups = _ids(node_class.status.subnets), _ids(node_class.status.security_groups)
    reservations = _ids(node_class.status.capacity_reservations)
    if not (node_class.status.amis and subnets and groups):
        return None
    by_name = {t.name: t for t in types}

    @cache
    def image_of(name: str) -> str:
        """Return the id of the AMI for a type; empty if the type is unknown, or no AMI fits."""
        ami = image_for(by_name[name], node_class) if name in by_name else None
        return ami.id if ami is not None else ""

    is_group_missing = bool(node_class.placement_group) and group is None  # a condition of the NodeClass says so
    group_id = group.id if group is not None else ""

    def drift_of(instance: Instance) -> str | None:
        image = image_of(instance.instance_type)
        if not image:
            return None
        if instance.image_id != image:
            return AMI_DRIFT
        if frozenset(instance.security_group_ids) != groups:
            return SECURITY_GROUP_DRIFT
        if instance.subnet_id not in subnets:
            return SUBNET_DRIFT
        if instance.reservation_id and instance.reservation_id not in reservations:
            return CAPACITY_RESERVATION_DRIFT
        if instance.placement_group_id != group_id and not is_group_missing:
            return PLACEMENT_GROUP_DRIFT
        return ""

    return drift_of


def _ids(entries: Iterable[Subnet | SecurityGroup | CapacityReservation]) -> frozenset[str]:
    return frozenset(entry.id for entry in entries)
