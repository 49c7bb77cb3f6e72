"""Implements CreateFleet with Type=instant on moto's backend, with the parts of a launch that moto omits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidSubnetIdError
from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instances import Instance
from moto.ec2.models.launch_templates import LaunchTemplateBackend
from moto.ec2.responses.fleets import Fleets
from moto.ec2.utils import filter_iam_instance_profiles, random_fleet_id
from moto.iam.exceptions import NotFoundException

from journeyman_simulator.cloud_rules.fleet_allocation import (
    CapacityPools,
    ClientTokens,
    FleetPool,
    InstantFleetRequest,
    launch_tags,
    security_group_ids,
    tags_by_resource,
)
from journeyman_simulator.cloud_rules.service_errors import (
    ServiceError,
    insufficient_addresses,
    launch_template_not_found,
    no_such_instance_profile,
)
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.moto_account.moto_extensions import MotoExtension


class InstantFleet(Fleet):
    """An instant fleet of moto's backend, and the `FleetAccount` that launches its instances."""

    def __init__(
        self, backend: Any, request: Mapping[str, Any], capacity_pools: CapacityPools, time: ServiceTime
    ) -> None:
        # moto's constructor would launch by its own rules, so this one sets the attributes that moto reads.
        self.ec2_backend = backend
        self.id = random_fleet_id()
        self.fleet_type = "instant"
        self.state = "active"
        self.spot_options = request["SpotOptions"]
        self.on_demand_options = request["OnDemandOptions"]
        self.target_capacity_specification = request["TargetCapacitySpecification"]
        self.launch_template_configs = request["LaunchTemplateConfigs"]
        self.valid_from, self.valid_until = time.now().replace(tzinfo=None), None
        self.launch_specs, self.spot_requests, self.on_demand_instances = [], [], []
        self.fulfilled_spot_capacity = self.fulfilled_on_demand_capacity = 0.0
        tags = tags_by_resource(request["TagSpecifications"])
        self.add_tags(tags.get("fleet", {}))
        self.tags = self.get_tags()
        self._request_tags = tags
        self._zones: dict[str, str] = {}
        launched = InstantFleetRequest(self.id, request, self, capacity_pools, time.now())
        self.response = launched.response
        self.errors = launched.errors
        self.fulfilled_capacity = launched.capacity

    @property
    def instances(self) -> list[dict[str, Any]]:
        """Return the instances as in DescribeFleets' response."""
        return list(self.response["Instances"])

    def template(self, specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the data and the identity of a launch template (`FleetAccount.template`)."""
        backend = self.ec2_backend
        if "LaunchTemplateId" in specification:
            template = backend.get_launch_template(template_id=specification["LaunchTemplateId"])
        else:
            template = backend.get_launch_template_by_name(name=specification.get("LaunchTemplateName"))
        version = template.get_version(specification.get("Version", "$Default"))
        resolved = {
            "LaunchTemplateId": template.id,
            "LaunchTemplateName": template.name,
            "Version": str(version.number),
        }
        return resolved, version.data

    def zone_of(self, subnet_id: str) -> str:
        """Return the zone of a subnet (`FleetAccount.zone_of`)."""
        if subnet_id not in self._zones:
            try:
                self._zones[subnet_id] = str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
            except InvalidSubnetIdError:
                self._zones[subnet_id] = ""
        return self._zones[subnet_id]

    def launch(self, fleet_id: str, pool: FleetPool, count: int) -> list[str]:
        """Launch instances from a pool (`FleetAccount.launch`)."""
        try:
            instances = launch(self.ec2_backend, fleet_id, pool, count, self._request_tags)
        except EC2ClientError as error:
            raise ServiceError(error.code, error.message) from error
        self.on_demand_instances += [{"id": pool.capacity_type, "instance": instance} for instance in instances]
        return [instance.id for instance in instances]


def fleet_extensions(capacity_pools: CapacityPools, time: ServiceTime) -> tuple[MotoExtension, ...]:
    """Return the extension that implements CreateFleet for Type=instant; moto implements the other types."""
    tokens = ClientTokens()

    def replace(original: Callable[[Fleets], ActionResult]) -> Callable[[Fleets], ActionResult]:
        def create_fleet(response: Any) -> ActionResult:
            read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
            if read("Type") != "instant":
                return original(response)
            response.error_on_dryrun()
            key = (response.current_account, response.region, read("ClientToken") or "")
            request = dict(response.querystring)
            try:
                return ActionResult(
                    tokens.response(key, request, lambda: _create(response, capacity_pools, time).response)
                )
            except ServiceError as error:
                raise EC2ClientError(error.code, error.message) from error

        return create_fleet

    return (
        MotoExtension(
            owner=Fleets,
            name="create_fleet",
            replace=replace,
            reason="instant fleets follow the allocation strategy, ClientToken and the whole template, and report Errors",
        ),
        MotoExtension(
            owner=LaunchTemplateBackend,
            name="delete_launch_template",
            replace=_with_not_found_error,
            reason="returns the error for a launch template that does not exist; moto raises for a missing parameter",
        ),
    )


def _with_not_found_error(original: Callable[..., Any]) -> Callable[..., Any]:
    def delete_launch_template(backend: LaunchTemplateBackend, name: str, tid: str | None) -> Any:
        if name and name not in backend.launch_template_name_to_ids:
            error = launch_template_not_found(name=name)
            raise EC2ClientError(error.code, error.message)
        return original(backend, name, tid)

    return delete_launch_template


def _create(response: Any, capacity_pools: CapacityPools, time: ServiceTime) -> InstantFleet:
    read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
    request = {
        "SpotOptions": read("SpotOptions", {}),
        "OnDemandOptions": read("OnDemandOptions", {}),
        "TargetCapacitySpecification": read("TargetCapacitySpecification", {}),
        "LaunchTemplateConfigs": read("LaunchTemplateConfigs", []),
        "TagSpecifications": read("TagSpecifications", []),
    }
    fleet = InstantFleet(response.ec2_backend, request, capacity_pools, time)
    response.ec2_backend.fleets[fleet.id] = fleet
    return fleet


Tags = Mapping[str, Mapping[str, str]]  # by resource type


def launch(backend: Any, fleet_id: str, pool: FleetPool, count: int, request_tags: Tags) -> list[Instance]:
    """Launch `count` instances from a pool as EC2 does for a fleet.

    Raises:
        EC2ClientError: The image, a security group or the subnet does not exist.
        ServiceError: The instance profile does not exist, or the subnet has no free IP address.
    """
    if pool.image_id not in backend.amis:
        backend.describe_images(ami_ids=[pool.image_id])  # slow, but raises EC2's error
    profile = _instance_profile(backend, pool.data.get("IamInstanceProfile") or {})
    _require_addresses(backend, pool.subnet_id, count)
    tags = launch_tags(fleet_id, pool, request_tags)
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


def _instance_arguments(pool: FleetPool) -> dict[str, Any]:
    """Return the arguments of moto's run_instances for an instance of the pool."""
    data = pool.data
    nics = [
        {**nic, "SubnetId": pool.subnet_id or nic.get("SubnetId"), "DeviceIndex": nic.get("DeviceIndex", 0)}
        for nic in data.get("NetworkInterfaces", ())
    ]
    arguments = {
        "instance_type": pool.instance_type,
        "is_instance_type_default": False,
        "subnet_id": pool.subnet_id,
        "placement": None if pool.subnet_id else pool.zone,
        # moto adds an interface's groups to the instance's, so `security_group_ids` alone must have them
        "nics": [{key: value for key, value in nic.items() if key != "Groups"} for nic in nics],
        "security_group_ids": security_group_ids(data),
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
        raise no_such_instance_profile(key, value)
    return found


def _require_addresses(backend: Any, subnet_id: str | None, count: int) -> None:
    if subnet_id and backend.get_subnet(subnet_id).available_ip_address_count < count:
        raise insufficient_addresses(subnet_id)
