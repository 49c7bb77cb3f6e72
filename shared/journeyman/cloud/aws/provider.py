"""Implement `ports.CloudProvider` for AWS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.capacity_reservations import CapacityReservationProvider
from journeyman.cloud.aws.fleet_launch import FleetLauncher
from journeyman.cloud.aws.instance_drift import drift_from
from journeyman.cloud.aws.instance_provider import InstanceProvider
from journeyman.cloud.aws.instance_types import InstanceTypeProvider
from journeyman.cloud.aws.launch_templates import LaunchTemplateProvider
from journeyman.cloud.aws.network_discovery import PlacementGroupProvider, free_addresses
from journeyman.cloud.aws.nodeclass_status import NodeClassReconciler
from journeyman.cloud.aws.nodeclass_view import ec2_node_class, metadata_of
from journeyman.cloud.aws.pricing import price_provider
from journeyman.cloud.base_provider import BaseCloudProvider, InstanceDrift
from journeyman.cloud.caching import cached_views
from journeyman.cloud.free_addresses import FreeAddresses
from journeyman.core.api.hashes import ec2_node_class_hash_annotations
from journeyman.core.api.objects import EC2NODECLASS, NodeClaim, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.state import RepairPolicy
from journeyman.ports import JSON, Clock

_HALF_AN_HOUR: Final = timedelta(minutes=30)
_TOLERATED: Final = (
    ("Ready", "False", _HALF_AN_HOUR),
    ("Ready", "Unknown", _HALF_AN_HOUR),
    ("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
    ("StorageReady", "False", _HALF_AN_HOUR),
    ("NetworkingReady", "False", _HALF_AN_HOUR),
    ("KernelReady", "False", _HALF_AN_HOUR),
    ("ContainerRuntimeReady", "False", _HALF_AN_HOUR),
)

REPAIR_POLICIES: Final = tuple(
    RepairPolicy(condition=condition, status=status, tolerated_for=duration)
    for condition, status, duration in _TOLERATED
)
"""Node conditions after which a node must be replaced: the kubelet's own, and those of the EKS node monitoring agent.

Restates: karpenter-provider-aws pkg/cloudprovider/cloudprovider.go `RepairPolicies`.
"""


class AwsCloudProvider(BaseCloudProvider):
    """One AWS account and region, for one EKS cluster."""

    name = "aws"
    node_class: Resource[dict[str, Any]] = EC2NODECLASS
    repair_policies: tuple[RepairPolicy, ...] = REPAIR_POLICIES

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clock = clock
        self._view = cached_views(ec2_node_class)
        self._cluster_name = settings.cluster_name
        self._cluster_ca = settings.cluster_ca
        reservations = CapacityReservationProvider(clients, clock)
        groups = PlacementGroupProvider(clients, clock)
        instances = InstanceProvider(clients, settings.cluster_name)
        self._ec2_instances = instances
        prices = price_provider(clients, settings, clock)
        self._templates = LaunchTemplateProvider(clients, clock)
        launcher = FleetLauncher(
            clients,
            settings,
            clock,
            instances=instances,
            addresses=FreeAddresses(partial(free_addresses, clients), clock),
            templates=self._templates,
            reservations=reservations,
            groups=groups,
            view=self._view,
        )
        super().__init__(launcher, instances, prices, clock)
        self._groups = groups
        self._types = InstanceTypeProvider(clients, settings, prices, clock, reservations=reservations, groups=groups)
        self._resolver = NodeClassReconciler(clients, settings, clock, reservations, groups)

    def resolve(self, node_class: JSON, now: datetime) -> Mapping[str, Any]:
        """Return the `status` that an EC2NodeClass should have at `now`; mistakes become conditions.

        Raises:
            CloudProviderError: AWS did not respond; the status stays as it is.
        """
        return self._resolver.resolve(node_class, now)

    def annotations(self, node_class: JSON) -> Mapping[str, str]:
        """Return the static hash and its version. Raises InvalidObjectError if the EC2NodeClass does not validate."""
        return ec2_node_class_hash_annotations(self._view(node_class).node_class, ca_bundle=self._cluster_ca)

    def release(self, node_class: JSON) -> None:
        """Delete instance profiles and launch templates of an EC2NodeClass; safe to repeat.

        Raises:
            CloudProviderError: AWS did not respond, or rejected a call; some objects may be deleted already.
        """
        metadata = metadata_of(node_class)
        self._resolver.release(metadata.uid)
        self._templates.release(cluster=self._cluster_name, node_class=metadata.name)

    def name_instance(self, provider_id: str, name: str) -> None:
        """Set an instance's tag `Name`. Raises NodeClaimNotFoundError once EC2 does not list it, and CloudProviderError."""
        self._ec2_instances.name(provider_id, name)

    def delete_unused(self, node_classes: Sequence[JSON], claims: Sequence[NodeClaim]) -> Mapping[str, Sequence[str]]:
        """Delete launch templates and instance profiles that nothing uses; return their names by kind. Safe to repeat.

        Raises:
            CloudProviderError: AWS did not respond, or rejected a call; some objects may be deleted already.
        """
        now = self._clock.now()
        return {
            "launch template": self._templates.delete_old(cluster=self._cluster_name, now=now),
            "instance profile": self._resolver.delete_unused_profiles(node_classes, claims, now),
        }

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Return the instance types of this EC2NodeClass by name; the identical tuple while nothing changed.

        Raises:
            NodeClassNotReadyError: Its status names no subnet.
            InvalidObjectError: It does not validate.
            CloudProviderError: AWS did not respond.
        """
        return self._types.for_node_class(self._view(node_class))

    def _drift_from(self, node_class: JSON) -> InstanceDrift | None:
        view = self._view(node_class)
        return drift_from(view, self._types.for_node_class(view), self._groups.find(view))
