"""CreateFleet with Type=instant on moto's backend, and the parts of a launch that moto's fleets leave out."""

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
    """An instant fleet, as moto's DescribeFleets shows it; the `FleetAccount` of its own request."""

    def __init__(
        self, backend: Any, request: Mapping[str, Any], capacity_pools: CapacityPools, time: ServiceTime
    ) -> None:
        # Moto's own constructor launches by its own rules; these are the attributes it and DescribeFleets rely on.
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
        self.answer = launched.answer
        self.errors = launched.errors
        self.fulfilled_capacity = launched.capacity

    @property
    def instances(self) -> list[dict[str, Any]]:
        """Return the instances as DescribeFleets answers them."""
        return list(self.answer["Instances"])

    def template(self, specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """`FleetAccount.template`."""
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
        """`FleetAccount.zone_of`."""
        if subnet_id not in self._zones:
            try:
                self._zones[subnet_id] = str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
            except InvalidSubnetIdError:
                self._zones[subnet_id] = ""
        return self._zones[subnet_id]

    def launch(self, fleet_id: str, pool: FleetPool, count: int) -> list[str]:
        """`FleetAccount.launch`."""
        try:
            instances = launch(self.ec2_backend, fleet_id, pool, count, self._request_tags)
        except EC2ClientError as error:
            raise ServiceError(error.code, error.message) from error
        self.on_demand_instances += [{"id": pool.capacity_type, "instance": instance} for instance in instances]
        return [instance.id for instance in instances]


def fleet_extensions(capacity_pools: CapacityPools, time: ServiceTime) -> tuple[MotoExtension, ...]:
    """Return CreateFleet for Type=instant; the other types stay moto's."""
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
                return ActionResult(tokens.answer(key, request, lambda: _create(response, capacity_pools, time).answer))
            except ServiceError as error:
                raise EC2ClientError(error.code, error.message) from error

        return create_fleet

    return (
        MotoExtension(
            owner=Fleets,
            name="create_fleet",
            replace=replace,
            reason="instant fleets choose by strategy, report Errors, honour ClientToken and apply the whole template",
        ),
        MotoExtension(
            owner=LaunchTemplateBackend,
            name="delete_launch_template",
            replace=_refusing_unknown_names,
            reason="deleting a launch template of an unknown name says so; moto misses a parameter",
        ),
    )


def _refusing_unknown_names(original: Callable[..., Any]) -> Callable[..., Any]:
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
        EC2ClientError: Moto refuses: unknown image, security group or subnet.
        ServiceError: There is no such instance profile, or no free address.
    """
    if pool.image_id not in backend.amis:
        backend.describe_images(ami_ids=[pool.image_id])  # slow, but refuses in EC2's words
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
    """Return moto's run_instances arguments for an instance of this pool."""
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
        # An interface's own groups reach the instance through `security_group_ids`; given twice they would double.
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
