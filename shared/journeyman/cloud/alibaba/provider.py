"""Implement `ports.CloudProvider` for Alibaba Cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from journeyman.cloud.alibaba.alibaba_errors import error_code, translated
from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.cluster_details import ClusterDetails
from journeyman.cloud.alibaba.discovery import Discovery
from journeyman.cloud.alibaba.ecs_instances import EcsInstances
from journeyman.cloud.alibaba.ecs_launch import EcsLauncher
from journeyman.cloud.alibaba.instance_types import InstanceTypeProvider, RegionTypes
from journeyman.cloud.alibaba.launch_requests import image_for
from journeyman.cloud.alibaba.nodeclass_status import NodeClassReconciler
from journeyman.cloud.alibaba.open_api import RAM, ApiCall, OpenApi
from journeyman.cloud.alibaba.pricing import price_provider
from journeyman.cloud.base_provider import SECURITY_GROUP_DRIFT, BaseCloudProvider, InstanceDrift
from journeyman.cloud.caching import cached_views
from journeyman.cloud.free_addresses import FreeAddresses
from journeyman.core.api.ecs_settings import ECS_API, ECSNodeClassAPI, ecs_node_class
from journeyman.core.api.objects import NodeClaim, Resource
from journeyman.core.catalogue import InstanceType
from journeyman.core.state import RepairPolicy
from journeyman.errors import CloudProviderError
from journeyman.ports import JSON, Clock, Instance

_HALF_AN_HOUR: Final = timedelta(minutes=30)
_TOLERATED: Final = (
    ("Ready", "False", _HALF_AN_HOUR),
    ("Ready", "Unknown", _HALF_AN_HOUR),
    ("KernelDeadlock", "True", _HALF_AN_HOUR),
    ("ReadonlyFilesystem", "True", _HALF_AN_HOUR),
    ("RuntimeOffline", "True", _HALF_AN_HOUR),
)

REPAIR_POLICIES: Final = tuple(
    RepairPolicy(condition=condition, status=status, tolerated_for=duration)
    for condition, status, duration in _TOLERATED
)
"""Node conditions after which a node must be replaced: the kubelet's own, and those of ACK's node problem detector."""

VSWITCH_DRIFT: Final = "VSwitchDrift"
IMAGE_DRIFT: Final = "ImageDrift"

_NO_SUCH_ROLE: Final = "EntityNotExist.Role"
_ECS_PRINCIPAL: Final = "ecs.aliyuncs.com"


class AlibabaCloudProvider(BaseCloudProvider):
    """One Alibaba Cloud account and region, for one ACK cluster.

    Its only state is caches, which a cold start loses. It handles the ECSNodeClasses of one API group.

    Args:
        call: Sends requests to the account and region.
        settings: The cluster's.
        clock: Decides when caches expire.
        api: The API group of the cluster's ECSNodeClasses.
    """

    name = "alibabacloud"
    repair_policies: tuple[RepairPolicy, ...] = REPAIR_POLICIES

    def __init__(self, call: OpenApi, settings: AlibabaSettings, clock: Clock, api: ECSNodeClassAPI = ECS_API) -> None:
        self.node_class: Resource[dict[str, Any]] = api.resource
        self._call = call
        self._view = cached_views(ecs_node_class)
        cluster = ClusterDetails(call, settings, clock)
        discovery = Discovery(call, settings.region, cluster, clock)
        instances = EcsInstances(call, settings.region, settings.cluster_id)
        types = RegionTypes(call, clock)
        prices = price_provider(call, settings, types.read, clock)
        launcher = EcsLauncher(
            call,
            settings,
            clock,
            instances=instances,
            addresses=FreeAddresses(discovery.free_addresses, clock),
            cluster=cluster,
            view=self._view,
        )
        super().__init__(launcher, instances, prices, clock)
        self._resolver = NodeClassReconciler(discovery, self._role_exists)
        self._types = InstanceTypeProvider(call, settings, types, prices, clock=clock, network=lambda: cluster.network)

    def resolve(self, node_class: JSON, now: datetime) -> Mapping[str, Any]:
        """Return the `status` that an ECSNodeClass should have at `now`; mistakes become conditions.

        Raises:
            CloudProviderError: Alibaba Cloud did not respond; the status stays as it is.
        """
        return self._resolver.resolve(node_class, now)

    def annotations(self, node_class: JSON) -> Mapping[str, str]:
        """Return the static hash and its version. Raises InvalidObjectError if the ECSNodeClass does not validate."""
        return self._view(node_class).hash_annotations

    def release(self, node_class: JSON) -> None:
        """Do nothing: nothing is created in the cloud for an ECSNodeClass."""

    def delete_unused(self, node_classes: Sequence[JSON], claims: Sequence[NodeClaim]) -> Mapping[str, Sequence[str]]:
        """Return nothing: an auto-provisioning group of type `instant` leaves no object behind."""
        return {}

    def get_instance_types(self, node_class: JSON) -> tuple[InstanceType, ...]:
        """Return the instance types of this ECSNodeClass by name; the identical tuple while nothing changed.

        Raises:
            NodeClassNotReadyError: Its status names no vSwitch.
            InvalidObjectError: It does not validate.
            CloudProviderError: Alibaba Cloud did not respond.
        """
        return self._types.for_node_class(self._view(node_class))

    def _drift_from(self, node_class: JSON) -> InstanceDrift | None:
        """Return the function that compares security groups, vSwitch and image; None while the status names none.

        Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/cloudprovider/drift.go `isNodeClassDrifted`.
        Differs: a newer image is drift, too, as with the vendor's API; the reason is that API's.
        """
        view = self._view(node_class)
        groups = frozenset(group.id for group in view.resolved.security_groups)
        vswitches = frozenset(vswitch.id for vswitch in view.resolved.vswitches)
        if not (groups and vswitches and view.resolved.images):
            return None
        types = {t.name: t for t in self._types.for_node_class(view)}

        def drift_of(instance: Instance) -> str | None:
            if frozenset(instance.security_group_ids) != groups:
                return SECURITY_GROUP_DRIFT
            if instance.subnet_id not in vswitches:
                return VSWITCH_DRIFT
            instance_type = types.get(instance.instance_type)
            if instance_type is None or not (image := image_for(instance_type, view)):
                return None
            return IMAGE_DRIFT if instance.image_id != image else ""

        return drift_of

    def _role_exists(self, name: str) -> bool:
        """Whether a RAM role exists and trusts ECS. Raises CloudProviderError."""
        try:
            with translated("ram:GetRole"):
                answer = self._call(ApiCall(service=RAM, action="GetRole", parameters={"RoleName": name}))
        except CloudProviderError as error:
            if error_code(error) == _NO_SUCH_ROLE:
                return False
            raise
        return _ECS_PRINCIPAL in str((answer.get("Role") or {}).get("AssumeRolePolicyDocument") or "")
