"""Implement `ports.CloudProvider` for Huawei Cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.cloud.base_provider import SUBNET_DRIFT, BaseCloudProvider, InstanceDrift
from journeyman.cloud.caching import cached_views
from journeyman.cloud.free_addresses import FreeAddresses
from journeyman.cloud.huawei.cce_launch import CceLauncher
from journeyman.cloud.huawei.cce_nodes import HuaweiInstances
from journeyman.cloud.huawei.cluster_network import ClusterNetwork
from journeyman.cloud.huawei.flavors import FlavorReader
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.instance_types import InstanceTypeProvider
from journeyman.cloud.huawei.nodeclass_status import NodeClassReconciler
from journeyman.cloud.huawei.pricing import price_provider
from journeyman.cloud.huawei.rest_api import RestApi
from journeyman.core.api.ccenodeclass import cce_node_class
from journeyman.core.api.objects import CCENODECLASS, NodeClaim, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.state import RepairPolicy
from journeyman.ports import JSON, Clock, Instance

REPAIR_POLICIES: Final = tuple(
    RepairPolicy(condition="Ready", status=status, tolerated_for=timedelta(minutes=30))
    for status in ("False", "Unknown")
)
"""The published provider's: node conditions after which a node is replaced."""


class HuaweiCloudProvider(BaseCloudProvider):
    """One Huawei Cloud account, project and region, for one CCE cluster. Its only state is caches, which a cold start loses.

    Args:
        api: Sends requests to the account, project and region.
        settings: The cluster's.
        clock: Decides when caches expire.
    """

    name = "huaweicloud"
    node_class: Resource[dict[str, Any]] = CCENODECLASS
    repair_policies: tuple[RepairPolicy, ...] = REPAIR_POLICIES

    def __init__(self, api: RestApi, settings: HuaweiSettings, clock: Clock) -> None:
        self._view = cached_views(cce_node_class)
        network = ClusterNetwork(api, settings, clock)
        instances = HuaweiInstances(api, settings)
        flavors = FlavorReader(api, settings, clock)
        prices = price_provider(api, settings, flavors.read, clock)
        addresses = FreeAddresses(network.free_addresses, clock)
        launcher = CceLauncher(api, settings, clock, instances=instances, addresses=addresses, view=self._view)
        super().__init__(launcher, instances, prices, clock)
        self._resolver = NodeClassReconciler(network)
        self._types = InstanceTypeProvider(flavors, settings, prices, network=network.mode)

    def resolve(self, node_class: JSON, now: datetime) -> Mapping[str, Any]:
        """Return the `status` that a CCENodeClass should have at `now`; mistakes become conditions.

        Raises:
            CloudProviderError: Huawei Cloud did not respond; the status stays as it is.
        """
        return self._resolver.resolve(node_class, now)

    def annotations(self, node_class: JSON) -> Mapping[str, str]:
        """Return the static hash and its version. Raises InvalidObjectError if the CCENodeClass does not validate."""
        return self._view(node_class).hash_annotations

    def release(self, node_class: JSON) -> None:
        """Do nothing: nothing is created in the cloud for a CCENodeClass."""

    def delete_unused(self, node_classes: Sequence[JSON], claims: Sequence[NodeClaim]) -> Mapping[str, Sequence[str]]:
        """Return nothing: CreateNode leaves no object behind but the node, which garbage collection finds."""
        return {}

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Return the instance types of this CCENodeClass by name; the identical tuple while nothing changed.

        Raises:
            NodeClassNotReadyError: Its status names no subnet.
            InvalidObjectError: It does not validate.
            CloudProviderError: Huawei Cloud did not respond.
        """
        return self._types.for_node_class(self._view(node_class))

    def _drift_from(self, node_class: JSON) -> InstanceDrift | None:
        """Return the function that compares the subnet; None while the status names none. All else is in the hash.

        Restates: huaweicloud-samples/karpenter-provider-huawei pkg/cloudprovider/drift.go `isSubnetDrifted`.
        """
        subnets = frozenset(self._view(node_class).subnet_ids)

        def drift_of(instance: Instance) -> str | None:
            return "" if instance.subnet_id in subnets else SUBNET_DRIFT

        return drift_of if subnets else None
