"""Launching what a launch template and an override ask for: the parts that moto's fleets leave out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance
from moto.ec2.utils import convert_tag_spec, filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from journeyman_simulator.aws.allocation import Pool

Tags = Mapping[str, Mapping[str, str]]  # by resource type


def launch(backend: Any, fleet_id: str, pool: Pool, count: int, request_tags: Tags) -> list[Instance]:
    """Launch `count` instances from a pool as EC2 does for a fleet.

    Raises:
        EC2ClientError: EC2 would refuse: unknown image, security group, subnet or instance profile, no free address.
    """
    if pool.image_id not in backend.amis:
        backend.describe_images(ami_ids=[pool.image_id])  # slow, but refuses in EC2's words
    profile = _instance_profile(backend, pool.data.get("IamInstanceProfile") or {})
    _require_addresses(backend, pool.subnet_id, count)
    tags = _merged_tags(fleet_id, pool, request_tags)
    reservation = backend.run_instances(
        image_id=pool.image_id,
        count=count,
        user_data=pool.data.get("UserData"),
        security_group_names=[],
        **_instance_arguments(pool),
        tags={"instance": tags.get("instance", {}), "volume": tags.get("volume", {})},
        fleet_id=fleet_id,
    )
    for instance in reservation.instances:
        if profile:
            backend.associate_iam_instance_profile(instance.id, iam_instance_profile_arn=profile.arn)
            instance.iam_instance_profile = {"Arn": profile.arn, "Id": profile.id}
        if pool.capacity_type == "spot":
            instance.spot_instance_request_id = f"sir-{uuid.uuid4().hex[:8]}"
        for nic in instance.nics.values():
            nic.add_tags(tags.get("network-interface", {}))
    return list(reservation.instances)


def _instance_arguments(pool: Pool) -> dict[str, Any]:
    """Moto's run_instances arguments for what the template says about the instance itself."""
    data = pool.data
    nics = [
        {**nic, "SubnetId": pool.subnet_id or nic.get("SubnetId"), "DeviceIndex": nic.get("DeviceIndex", 0)}
        for nic in data.get("NetworkInterfaces", ())
    ]
    groups: list[str] = data.get("SecurityGroupIds") or next((nic["Groups"] for nic in nics if nic.get("Groups")), [])
    arguments = {
        "instance_type": pool.instance_type,
        "is_instance_type_default": False,
        "subnet_id": pool.subnet_id,
        "placement": None if pool.subnet_id else pool.zone,
        # An interface's own groups reach the instance through `security_group_ids`; given twice they would double.
        "nics": [{key: value for key, value in nic.items() if key != "Groups"} for nic in nics],
        "security_group_ids": list(groups),
        "key_name": data.get("KeyName"),
        "ebs_optimized": data.get("EbsOptimized", False),
        "monitoring_state": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled",
        "metadata_options": data.get("MetadataOptions") or {},
        "lifecycle": "spot" if pool.capacity_type == "spot" else None,
        "associate_public_ip": None,
    }
    if volumes := [mapping for mapping in data.get("BlockDeviceMappings", ()) if "Ebs" in mapping]:
        arguments["block_device_mappings"] = volumes
    return arguments


def _merged_tags(fleet_id: str, pool: Pool, request_tags: Tags) -> dict[str, dict[str, str]]:
    """The template's tags under the request's, and the ones AWS adds itself."""
    merged: dict[str, dict[str, str]] = {
        "instance": {
            "aws:ec2:fleet-id": fleet_id,
            "aws:ec2launchtemplate:id": pool.template["LaunchTemplateId"],
            "aws:ec2launchtemplate:version": pool.template["Version"],
        }
    }
    for source in (convert_tag_spec(pool.data.get("TagSpecifications", [])), request_tags):
        for kind, tags in source.items():
            merged.setdefault(kind, {}).update(tags)
    return merged


def _instance_profile(backend: Any, wanted: Mapping[str, str]) -> Any:
    if not wanted:
        return None
    name, arn = wanted.get("Name"), wanted.get("Arn")
    try:
        found = filter_iam_instance_profiles(backend.account_id, backend.partition, arn, name)
    except NotFoundException:
        found = None
    if found is None:
        key, value = ("name", name) if name else ("arn", arn)
        raise EC2ClientError(
            "InvalidParameterValue",
            f"Value ({value}) for parameter iamInstanceProfile.{key} is invalid. Invalid IAM Instance Profile {key}",
        )
    return found


def _require_addresses(backend: Any, subnet_id: str | None, count: int) -> None:
    if subnet_id and backend.get_subnet(subnet_id).available_ip_address_count < count:
        raise EC2ClientError(
            "InsufficientFreeAddressesInSubnet",
            f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances.",
        )
