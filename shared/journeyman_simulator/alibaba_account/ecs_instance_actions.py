"""Implements ECS's actions on existing instances: describe, delete, and tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from journeyman_simulator.alibaba_account.ecs_instance_states import EcsInstance, SimulatedEcsInstances
from journeyman_simulator.alibaba_account.ecs_types import EcsCatalogue
from journeyman_simulator.alibaba_account.openapi_errors import (
    dry_run_succeeded,
    instance_does_not_exist,
    not_authorized,
)
from journeyman_simulator.alibaba_account.openapi_requests import (
    ActionHandlers,
    ActionRequest,
    has_tags,
    numbered_page,
    page_token,
    position,
    tag_entries,
    to_minute,
    token_page,
)
from journeyman_simulator.alibaba_account.vpc_network import VpcNetwork
from journeyman_simulator.cloud_rules.fleet_allocation import ClientTokens
from journeyman_simulator.cloud_rules.service_errors import ServiceError

JSON = Mapping[str, Any]
_TAGS_PAGE: Final = 50
_MOST_TAGS: Final = 20  # on one instance


class EcsInstanceActions:
    """Handles the actions on existing instances.

    Args:
        instances: The account's instances.
        catalogue: The instance types.
        network: The vSwitches.
        tokens: The client tokens of all actions.
        is_denied: Whether RAM denies a caller an action ("ecs:DescribeInstances").
    """

    def __init__(
        self,
        instances: SimulatedEcsInstances,
        catalogue: EcsCatalogue,
        network: VpcNetwork,
        tokens: ClientTokens,
        is_denied: Callable[[str, str], bool],
    ) -> None:
        self._instances = instances
        self._catalogue = catalogue
        self._network = network
        self._tokens = tokens
        self._is_denied = is_denied
        self._constant_entries: dict[str, dict[str, Any]] = {}  # by instance

    def handlers(self) -> ActionHandlers:
        """Return the handlers of ECS's actions."""
        return {
            "DescribeInstances": self._describe,
            "DeleteInstance": self._delete_one,
            "DeleteInstances": self._delete,
            "TagResources": self._tag,
            "UntagResources": self._untag,
            "ListTagResources": self._list_tags,
        }

    def _describe(self, request: ActionRequest) -> dict[str, Any]:
        """Return a page of instances. Without the permission it is empty, and only a dry run reveals that."""
        is_denied = self._is_denied(request.caller, "ecs:DescribeInstances")
        if request.get("DryRun"):
            raise not_authorized("ecs:DescribeInstances") if is_denied else dry_run_succeeded()
        found = [] if is_denied else self._selected(request)
        if "PageNumber" in request.parameters:
            page, numbers = numbered_page(request, found)
            answer = {**numbers, "NextToken": ""}
        else:
            page, answer = token_page(request, found, default=10, least=10)
            answer["TotalCount"] = len(page)  # without meaning for requests with tokens
        return {"Instances": {"Instance": [self._entry(instance, state) for instance, state in page]}, **answer}

    def _selected(self, request: ActionRequest) -> list[tuple[EcsInstance, str]]:
        ids, tags = request.get("InstanceIds"), request.tags()
        wanted = None if ids is None else set(ids)
        return [
            (instance, state)
            for instance, state in self._instances.visible(request.as_of)
            if (wanted is None or instance.id in wanted)
            and (not tags or has_tags(instance.tags, tags))
            and request.get("Status", state) == state
            and self._has_properties(instance, request)
        ]

    def _has_properties(self, instance: EcsInstance, request: ActionRequest) -> bool:
        return (
            request.get("ZoneId", instance.zone) == instance.zone
            and request.get("VSwitchId", instance.vswitch_id) == instance.vswitch_id
            and request.get("VpcId", self._network.vpc_id) == self._network.vpc_id
            and request.get("InstanceType", instance.instance_type) == instance.instance_type
            and request.get("ImageId", instance.image_id) == instance.image_id
            and request.get("InstanceChargeType", "PostPaid") == "PostPaid"
            and ("SecurityGroupId" not in request.parameters or request["SecurityGroupId"] in instance.security_groups)
            and ("InstanceName" not in request.parameters or request["InstanceName"] == _name(instance))
        )

    def _entry(self, instance: EcsInstance, state: str) -> dict[str, Any]:
        constant = self._constant_entries.get(instance.id)
        if constant is None:
            constant = self._constant_entries[instance.id] = self._constant_entry(instance)
        return {
            **constant,
            "Status": state,
            "DeletionProtection": instance.deletion_protection,
            "OperationLocks": {"LockReason": [{"LockReason": reason} for reason in instance.locks]},
            "Tags": tag_entries(instance.tags),
        }

    def _constant_entry(self, instance: EcsInstance) -> dict[str, Any]:
        """Return the part of an entry that never changes."""
        facts = self._catalogue.types[instance.instance_type]
        settings = instance.settings
        is_spot = instance.capacity_type == "spot"
        return {
            "InstanceId": instance.id,
            "InstanceName": _name(instance),
            "HostName": settings.get("HostName") or instance.id.replace("-", "")[:30],
            "InstanceType": instance.instance_type,
            "InstanceTypeFamily": facts["InstanceTypeFamily"],
            "Cpu": facts["CpuCoreCount"],
            "Memory": round(facts["MemorySize"] * 1024),
            "GPUAmount": facts["GPUAmount"],
            "GPUSpec": facts["GPUSpec"],
            "ImageId": instance.image_id,
            "OSType": "linux",
            "RegionId": self._catalogue.region,
            "ZoneId": instance.zone,
            "CreationTime": to_minute(instance.created_at),
            "StartTime": to_minute(instance.created_at),
            "InstanceChargeType": "PostPaid",
            "SpotStrategy": instance.spot_strategy,
            "SpotDuration": settings.get("SpotDuration", 1) if is_spot else 0,
            "SpotPriceLimit": settings.get("SpotPriceLimit", 0.0),
            "SpotInterruptionBehavior": settings.get("SpotInterruptionBehavior", "Terminate") if is_spot else "",
            "InstanceNetworkType": "vpc",
            "IoOptimized": True,
            "KeyPairName": settings.get("KeyPairName", ""),
            "ResourceGroupId": settings.get("ResourceGroupId", ""),
            "StoppedMode": "Not-applicable",
            "SecurityGroupIds": {"SecurityGroupId": list(instance.security_groups)},
            "VpcAttributes": {
                "VpcId": self._network.vpc_id,
                "VSwitchId": instance.vswitch_id,
                "PrivateIpAddress": {"IpAddress": [instance.address]},
                "NatIpAddress": "",
            },
            "MetadataOptions": {
                "HttpEndpoint": settings.get("HttpEndpoint", "enabled"),
                "HttpTokens": settings.get("HttpTokens", "optional"),
            },
        }

    def _delete_one(self, request: ActionRequest) -> dict[str, Any]:
        return self._delete_all(request, [request["InstanceId"]])

    def _delete(self, request: ActionRequest) -> dict[str, Any]:
        key = ("DeleteInstances", request.get("ClientToken", ""))
        return dict(
            self._tokens.response(key, request.parameters, lambda: self._delete_all(request, request["InstanceId"]))
        )

    def _delete_all(self, request: ActionRequest, ids: list[str]) -> dict[str, Any]:
        """Release all instances of the request, or none if one cannot be released."""
        force = request.get("Force", False)
        instances = [self._instances.require(id_) for id_ in dict.fromkeys(ids)]
        for instance in instances:
            self._instances.require_deletable(instance, force=force)
        if request.get("DryRun"):
            raise ServiceError("DRYRUN.SUCCESS", "The DryRun flag is set, and the request would succeed.")
        for instance in instances:
            self._instances.delete(instance, force=force, force_stop=request.get("ForceStop", True))
        return {}

    def _tag(self, request: ActionRequest) -> dict[str, Any]:
        tags = {key: value or "" for key, value in request.tags().items()}
        instances = [self._tagged(id_) for id_ in request["ResourceId"]]
        for instance in instances:
            if len(instance.tags.keys() | tags.keys()) > _MOST_TAGS:
                raise ServiceError("QuotaExceed.Tags", f"The instance {instance.id} would have more than 20 tags.")
        for instance in instances:
            instance.tags.update(tags)
        return {}

    def _untag(self, request: ActionRequest) -> dict[str, Any]:
        instances = [self._tagged(id_) for id_ in request["ResourceId"]]
        for instance in instances:
            for key in list(instance.tags) if request.get("All") else request.get("TagKey") or ():
                instance.tags.pop(key, None)
        return {}

    def _tagged(self, instance_id: str) -> EcsInstance:
        try:
            return self._instances.require(instance_id)
        except ServiceError:
            error = instance_does_not_exist(instance_id)
            raise ServiceError("InvalidResourceId.NotFound", error.message) from None

    def _list_tags(self, request: ActionRequest) -> dict[str, Any]:
        wanted, tags = request.get("ResourceId"), request.tags()
        if not wanted and not tags:
            raise ServiceError("MissingParameter.TagOrResourceId", "Either ResourceId or Tag is required.")
        rows = [
            {"ResourceId": instance.id, "ResourceType": "instance", "TagKey": key, "TagValue": value}
            for instance, _ in self._instances.visible(request.as_of)
            if (not wanted or instance.id in wanted) and has_tags(instance.tags, tags)
            for key, value in instance.tags.items()
        ]
        start = position(request.get("NextToken") or "")
        following = start + _TAGS_PAGE
        token = page_token(following) if following < len(rows) else ""
        return {"TagResources": {"TagResource": rows[start:following]}, "NextToken": token}


def _name(instance: EcsInstance) -> str:
    return str(instance.settings.get("InstanceName") or instance.id)
