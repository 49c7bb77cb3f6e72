"""Build the requests that launch an instance, and parse their answers.

An auto-provisioning group of type `instant` chooses among up to 20 pairs of instance type and vSwitch. It cannot set the
options of the metadata service, a launch template's or a capacity reservation's; a NodeClass with one of these launches by
RunInstances, one pair at a time.

Source: ECS API reference, CreateAutoProvisioningGroup, RunInstances.
Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/instance/instance.go `Create`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.alibaba import tags
from journeyman.cloud.alibaba.instance_types import image_of
from journeyman.cloud.free_addresses import ChosenSubnet
from journeyman.core.api import labels
from journeyman.core.api.ecs_settings import Disk, ECSNodeClassView
from journeyman.core.catalogue import InstanceType

MAX_PAIRS: Final = 20  # LaunchTemplateConfig.N
_ESSD: Final = "cloud_essd"
_DEFAULT_LEVEL: Final = "PL0"


class LaunchPair(Struct, frozen=True, kw_only=True):
    """An instance type in a vSwitch, with the offering's price and the image for its architecture."""

    instance_type: str
    zone: str
    vswitch: str
    price: float
    image_id: str


class LaunchError(Struct, frozen=True, kw_only=True):
    """An error of one pair; `instance_type` and `zone` are empty if it is about the whole request."""

    code: str
    message: str
    instance_type: str = ""
    zone: str = ""

    def __str__(self) -> str:
        where = f" ({self.instance_type} in {self.zone})" if self.instance_type else ""
        return f"{self.code}: {self.message}{where}"


class LaunchAnswer(Struct, frozen=True, kw_only=True):
    """The instance that ECS launched, if any, and the errors of the pairs that it tried."""

    errors: tuple[LaunchError, ...]
    instance_id: str = ""
    instance_type: str = ""
    zone: str = ""


def launch_pairs(
    types: Iterable[InstanceType], chosen: Mapping[str, ChosenSubnet], node_class: ECSNodeClassView, uid: str
) -> tuple[LaunchPair, ...]:
    """Return the pairs to request, cheapest first, at most 20.

    Each type has its cheapest pair among them, since the types together may be what minValues require. NodeClaims with different
    UIDs spread over zones of equal price.
    """
    offered = [
        LaunchPair(
            instance_type=instance_type.name,
            zone=offering.zone,
            vswitch=chosen[offering.zone].id,
            price=offering.price,
            image_id=image_id,
        )
        for instance_type in types
        if (image_id := image_for(instance_type, node_class))
        for offering in instance_type.offerings
        if offering.zone in chosen
    ]
    by_price = sorted(
        offered,
        key=lambda pair: (pair.price, pair.instance_type, zlib.crc32(f"{uid}/{pair.zone}".encode()), pair.zone),
    )
    first: dict[str, LaunchPair] = {}
    for pair in by_price:
        first.setdefault(pair.instance_type, pair)
    others = [pair for pair in by_price if first[pair.instance_type] is not pair]
    chosen_pairs = [*first.values(), *others][:MAX_PAIRS]
    return tuple(sorted(chosen_pairs, key=by_price.index))


def image_for(instance_type: InstanceType, node_class: ECSNodeClassView) -> str:
    """Return the id of the image for the type's architecture; empty without one."""
    arch = next((r.values for r in instance_type.requirements if r.key == labels.ARCH), ("",))
    return image_of(arch[0], node_class.resolved.images)


def needs_run_instances(node_class: ECSNodeClassView) -> bool:
    """Whether a setting of the NodeClass is one that an auto-provisioning group cannot have."""
    settings = node_class.settings
    return bool(
        settings.metadata_options
        or settings.launch_template_id
        or (settings.capacity_reservation_preference in ("open", "target") and settings.capacity_reservation_terms)
    )


def group_request(
    node_class: ECSNodeClassView,
    pairs: Sequence[LaunchPair],
    capacity_type: str,
    instance_tags: Mapping[str, str],
    encoded: str,
) -> dict[str, Any]:
    """Return the parameters of CreateAutoProvisioningGroup, without region and token, for one instance.

    On-demand pairs are tried in the order of our prices; ECS takes preemptible pairs by its own.
    """
    settings = node_class.settings
    spot = capacity_type == labels.SPOT
    limit = {"MaxPrice": price_limit} if spot and (price_limit := _spot_price_limit(node_class)) else {}
    spread = "diversified" if settings.vswitch_selection_policy == "balanced" else "lowest-price"
    return {
        "AutoProvisioningGroupType": "instant",
        "TotalTargetCapacity": "1",
        "SpotTargetCapacity": "1" if spot else "0",
        "PayAsYouGoTargetCapacity": "0" if spot else "1",
        "DefaultTargetCapacityType": "Spot" if spot else "PayAsYouGo",
        "SpotAllocationStrategy": spread,
        "PayAsYouGoAllocationStrategy": "prioritized",
        "SpotInstanceInterruptionBehavior": "terminate",
        "ExcessCapacityTerminationPolicy": "termination",
        **({"ResourceGroupId": settings.resource_group_id} if settings.resource_group_id else {}),
        "LaunchTemplateConfig": [
            {
                "InstanceType": pair.instance_type,
                "VSwitchId": pair.vswitch,
                "ImageId": pair.image_id,
                "WeightedCapacity": 1,
                "Priority": rank,
                **limit,
            }
            for rank, pair in enumerate(pairs)
        ],
        "LaunchConfiguration": _launch_configuration(node_class, pairs[0].image_id, instance_tags, encoded),
        "SystemDiskConfig": [{"DiskCategory": category} for category in settings.system_disk.categories],
        **_data_disk_config(settings.data_disks),
    }


def _launch_configuration(
    node_class: ECSNodeClassView, image_id: str, instance_tags: Mapping[str, str], encoded: str
) -> dict[str, Any]:
    settings, disk = node_class.settings, node_class.settings.system_disk
    level = {"SystemDiskPerformanceLevel": disk.performance_level} if _has_level(disk) else {}
    encryption = {"SystemDisk": {"Encrypted": "true", **_key(disk, "KMSKeyId")}} if disk.encrypted else {}
    return {
        "ImageId": image_id,
        "SecurityGroupIds": [group.id for group in node_class.resolved.security_groups],
        "UserData": encoded,
        "Tag": tags.to_request(instance_tags),
        "SystemDiskSize": disk.size_gib,
        **level,
        **encryption,
        **_login(node_class),
        **({"DataDisk": [_group_data_disk(each) for each in settings.data_disks]} if settings.data_disks else {}),
    }


def _login(node_class: ECSNodeClassView) -> dict[str, Any]:
    """Return the settings of user root, resource group and RAM role."""
    settings = node_class.settings
    given = {
        "Password": settings.password,
        "PasswordInherit": settings.password_inherit,
        "KeyPairName": settings.key_pair_name,
        "RamRoleName": settings.role,
        "ResourceGroupId": settings.resource_group_id,
    }
    return {name: value for name, value in given.items() if value}


def _group_data_disk(disk: Disk) -> dict[str, Any]:
    return {
        "Size": disk.size_gib,
        "DeleteWithInstance": disk.delete_with_instance,
        **({"Category": disk.categories[0]} if len(disk.categories) == 1 else {}),
        **_disk_details(disk, key="KmsKeyId"),
    }


def _data_disk_config(disks: Sequence[Disk]) -> dict[str, Any]:
    """Return the categories of data disks, which ECS tries in this order, if there is more than one."""
    categories = next((disk.categories for disk in disks if len(disk.categories) > 1), ())
    return {"DataDiskConfig": [{"DiskCategory": category} for category in categories]} if categories else {}


def _disk_details(disk: Disk, *, key: str) -> dict[str, Any]:
    given = {
        "Device": disk.device,
        "PerformanceLevel": disk.performance_level if _has_level(disk) else "",
        "SnapshotId": disk.snapshot_id,
    }
    encryption = {"Encrypted": "true", **_key(disk, key)} if disk.encrypted else {}
    return {**{name: value for name, value in given.items() if value}, **encryption}


def _key(disk: Disk, name: str) -> dict[str, str]:
    return {name: disk.kms_key_id} if disk.kms_key_id else {}


def _has_level(disk: Disk) -> bool:
    """Whether the performance level is to be sent: ECS accepts one for an ESSD only, and PL0 is not the default of each."""
    return disk.performance_level not in ("", _DEFAULT_LEVEL) and _ESSD in disk.categories


def run_instances_request(
    node_class: ECSNodeClassView,
    pair: LaunchPair,
    capacity_type: str,
    instance_tags: Mapping[str, str],
    encoded: str,
) -> dict[str, Any]:
    """Return the parameters of RunInstances, without region and token, for one pair."""
    settings, disk = node_class.settings, node_class.settings.system_disk
    system_disk = {
        "Category": disk.categories[0],
        "Size": str(disk.size_gib),
        **({"PerformanceLevel": disk.performance_level} if _has_level(disk) else {}),
        **({"Encrypted": "true", **_key(disk, "KMSKeyId")} if disk.encrypted else {}),
    }
    metadata = settings.metadata_options
    disks = [
        {
            "Category": each.categories[0],
            "Size": each.size_gib,
            "DeleteWithInstance": each.delete_with_instance,
            **_disk_details(each, key="KMSKeyId"),
        }
        for each in settings.data_disks
    ]
    return {
        "Amount": 1,
        "InstanceType": pair.instance_type,
        "VSwitchId": pair.vswitch,
        "ImageId": pair.image_id,
        "InstanceChargeType": "PostPaid",
        "SecurityGroupIds": [group.id for group in node_class.resolved.security_groups],
        "UserData": encoded,
        "Tag": tags.to_request(instance_tags),
        "SystemDisk": system_disk,
        **({"DataDisk": disks} if disks else {}),
        **_login(node_class),
        **_spot_options(node_class, capacity_type),
        **({"HttpTokens": metadata.http_tokens, "HttpEndpoint": metadata.http_endpoint} if metadata else {}),
        **_template(node_class),
        **_private_pool(node_class, capacity_type),
    }


def _spot_options(node_class: ECSNodeClassView, capacity_type: str) -> dict[str, Any]:
    if capacity_type != labels.SPOT:
        return {"SpotStrategy": "NoSpot"}
    settings, limit = node_class.settings, _spot_price_limit(node_class)
    return {
        "SpotStrategy": settings.spot_strategy or "SpotAsPriceGo",
        "SpotInterruptionBehavior": "Terminate",
        **({"SpotPriceLimit": limit} if limit else {}),
    }


def _spot_price_limit(node_class: ECSNodeClassView) -> float | None:
    """Return the highest price for a preemptible instance; None if the strategy is to pay the market price."""
    settings = node_class.settings
    return settings.spot_price_limit if settings.spot_strategy == "SpotWithPriceLimit" else None


def _template(node_class: ECSNodeClassView) -> dict[str, Any]:
    settings = node_class.settings
    if not settings.launch_template_id:
        return {}
    version = {"LaunchTemplateVersion": settings.launch_template_version} if settings.launch_template_version else {}
    return {"LaunchTemplateId": settings.launch_template_id, **version}


def _private_pool(node_class: ECSNodeClassView, capacity_type: str) -> dict[str, Any]:
    """Return the capacity reservation to use; preemptible instances cannot use one."""
    settings = node_class.settings
    preference = settings.capacity_reservation_preference
    if capacity_type == labels.SPOT or preference not in ("open", "target"):
        return {}
    named = next((term.id for term in settings.capacity_reservation_terms if term.id), "")
    if preference == "target" and named:
        return {"PrivatePoolOptions": {"MatchCriteria": "Target", "Id": named}}
    return {"PrivatePoolOptions": {"MatchCriteria": "Open"}}


def parse_group_answer(answer: Mapping[str, Any]) -> LaunchAnswer:
    """Return the launched instance and the errors; a success may follow failures in the answer."""
    results = (answer.get("LaunchResults") or {}).get("LaunchResult") or ()
    errors = tuple(
        LaunchError(
            code=result["ErrorCode"],
            message=result.get("ErrorMsg") or "",
            instance_type=result.get("InstanceType") or "",
            zone=result.get("ZoneId") or "",
        )
        for result in results
        if result.get("ErrorCode")
    )
    for result in results:
        ids = (result.get("InstanceIds") or {}).get("InstanceId") or ()
        if ids:
            return LaunchAnswer(
                errors=errors,
                instance_id=ids[0],
                instance_type=result.get("InstanceType") or "",
                zone=result.get("ZoneId") or "",
            )
    return LaunchAnswer(errors=errors)
