"""Implements launch templates, CreateFleet with Type=instant, and RunInstances of the in-process account."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.cloud_rules.fleet_allocation import (
    CapacityPools,
    ClientTokens,
    FleetPool,
    InstantFleetRequest,
    launch_tags,
    security_group_ids,
)
from journeyman_simulator.cloud_rules.instance_states import StateChange
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError, launch_template_not_found
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.ec2_catalogue import SimulatedInstanceTypes
from journeyman_simulator.in_process_account.ec2_images import SimulatedImages
from journeyman_simulator.in_process_account.ec2_network import SimulatedNetwork
from journeyman_simulator.in_process_account.iam_profiles import SimulatedIam
from journeyman_simulator.in_process_account.reserved_capacity import ReservedCapacity
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)
from journeyman_simulator.in_process_account.simulated_instances import SimulatedInstance, SimulatedInstances

JSON = Mapping[str, Any]


class SimulatedFleets:
    """Implements CreateFleet, DescribeFleets and RunInstances."""

    def __init__(
        self,
        time: ServiceTime,
        *,
        capacity_pools: CapacityPools,
        types: SimulatedInstanceTypes,
        network: SimulatedNetwork,
        images: SimulatedImages,
        identity: SimulatedIam,
        templates: SimulatedLaunchTemplates,
        instances: SimulatedInstances,
        reserved_capacity: ReservedCapacity,
        describe: Callable[[SimulatedInstance, StateChange], dict[str, Any]],
    ) -> None:
        self._time = time
        self._capacity_pools = capacity_pools
        self._types = types
        self._network = network
        self._images = images
        self._identity = identity
        self._templates = templates
        self._instances = instances
        self._reserved_capacity = reserved_capacity
        self._describe_instance = describe
        self._tokens = ClientTokens()
        self._serial = count(1)
        self._fleets: dict[str, dict[str, Any]] = {}

    def operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        options = ("ClientToken", "Context", "TagSpecifications", "Type")
        by_target = ("OnDemandOptions", "ReservedCapacityOptions", "SpotOptions")
        run = ("SubnetId", "InstanceMarketOptions", "TagSpecifications")
        return {
            "CreateFleet": ServiceOperation(
                self._create,
                requires=("LaunchTemplateConfigs", "TargetCapacitySpecification"),
                accepts=(*options, *by_target),
            ),
            "DescribeFleets": ServiceOperation(self._describe, requires=("FleetIds",)),
            "RunInstances": ServiceOperation(
                self._run, requires=("ImageId", "InstanceType", "MinCount", "MaxCount"), accepts=run
            ),
        }

    def _create(self, request: ServiceRequest) -> dict[str, Any]:
        if request.get("Type") != "instant":
            raise NotSimulatedError(
                f"the simulation does not support a fleet of type {request.get('Type', 'maintain')}, only instant"
            )
        return self._tokens.response(
            (request.get("ClientToken", ""),), request.parameters, lambda: self._launch_fleet(request)
        )

    def _launch_fleet(self, request: ServiceRequest) -> dict[str, Any]:
        fleet_id = f"fleet-00000000-0000-4000-8000-{next(self._serial):012x}"
        account = _RequestAccount(self, request.tags("instance"))
        response = InstantFleetRequest(
            fleet_id, request.parameters, account, self._capacity_pools, self._time.now()
        ).response
        self._fleets[fleet_id] = response
        return response

    def _describe(self, request: ServiceRequest) -> dict[str, Any]:
        if unknown := [id_ for id_ in request["FleetIds"] if id_ not in self._fleets]:
            raise ServiceError("InvalidFleetId.NotFound", f"The fleet ID '{unknown[0]}' does not exist")
        described = [{"Type": "instant", "FleetState": "active", **self._fleets[id_]} for id_ in request["FleetIds"]]
        return paged("Fleets", described, request)

    def _run(self, request: ServiceRequest) -> dict[str, Any]:
        image = self._images.require(request["ImageId"])
        subnet_id = request.get("SubnetId") or next(iter(self._network.subnets))
        self._network.require_addresses(subnet_id, request["MinCount"])
        launched = [
            self._instances.launch(
                instance_type=request["InstanceType"],
                architecture=self._types.architecture(request["InstanceType"]),
                subnet_id=subnet_id,
                image_id=image.id,
                spot=request.get("InstanceMarketOptions", {}).get("MarketType") == "spot",
                tags=request.tags("instance"),
            )
            for _ in range(request["MaxCount"])
        ]
        return {"Instances": [self._describe_instance(i, i.changes[-1]) for i in launched]}

    def template(self, specification: JSON) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a resolved launch template and its data (`FleetAccount.template`)."""
        found = self._templates.find(specification)
        number = found.number_of(str(specification.get("Version", "$Default")))
        resolved = {"LaunchTemplateId": found.id, "LaunchTemplateName": found.name, "Version": str(number)}
        return resolved, dict(found.versions[number - 1])

    def launch(self, fleet_id: str, pool: FleetPool, number: int, tags: Mapping[str, str]) -> list[str]:
        """Launch `number` instances from a pool and return their ids. Raises ServiceError if EC2 would reject the launch."""
        data = pool.data
        self._images.require(pool.image_id)
        profile = data.get("IamInstanceProfile") or {}
        arn = self._identity.arn_of_profile(profile["Name"]) if "Name" in profile else profile.get("Arn", "")
        groups = self._groups(data)
        self._reserved_capacity.check_launch(data, pool.instance_type, pool.zone, number, pool.target)
        subnet_id = pool.subnet_id or self._network.default_subnet(pool.zone)
        self._network.require_addresses(subnet_id, number)
        instance_tags = launch_tags(fleet_id, pool, {"instance": tags})["instance"]
        launched = [
            self._instances.launch(
                instance_type=pool.instance_type,
                architecture=self._types.architecture(pool.instance_type),
                subnet_id=subnet_id,
                image_id=pool.image_id,
                spot=pool.capacity_type == "spot",
                tags=instance_tags,
                data=self._reserved_capacity.placed(data),
                groups=groups,
                profile_arn=arn,
            )
            for _ in range(number)
        ]
        return [instance.id for instance in launched]

    def _groups(self, data: JSON) -> tuple[JSON, ...]:
        ids = security_group_ids(data)
        known = self._network.groups
        if missing := [id_ for id_ in ids if id_ not in known]:
            raise ServiceError("InvalidGroup.NotFound", f"The security group '{missing[0]}' does not exist")
        return tuple({"GroupId": id_, "GroupName": known[id_].name} for id_ in ids)

    def zone_of(self, subnet_id: str) -> str:
        """Return the zone of a subnet (`FleetAccount.zone_of`)."""
        return self._network.zone_of(subnet_id)


class _RequestAccount:
    """The `FleetAccount` of one request: the account, and the request's tags for instances."""

    def __init__(self, fleets: SimulatedFleets, tags: Mapping[str, str]) -> None:
        self._fleets = fleets
        self._tags = tags
        self.template = fleets.template
        self.zone_of = fleets.zone_of

    def launch(self, fleet_id: str, pool: FleetPool, count: int) -> list[str]:
        """Launch instances from a pool (`FleetAccount.launch`)."""
        return self._fleets.launch(fleet_id, pool, count, self._tags)


class SimulatedLaunchTemplate(Struct, kw_only=True, eq=False):
    """A launch template. Versions are numbered from 1, and the first is the default."""

    id: str
    name: str
    created: datetime
    tags: dict[str, str]
    versions: list[Mapping[str, Any]]
    deleted: datetime | None = None

    def existed_at(self, moment: datetime) -> bool:
        """Whether the template existed at `moment`."""
        return self.created <= moment and (self.deleted is None or self.deleted > moment)

    def number_of(self, version: str) -> int:
        """Return the number of `$Latest`, `$Default` or a version number. Raises ServiceError if the version does not exist."""
        number = {"$Latest": len(self.versions), "$Default": 1}.get(version) or int(version)
        if not 1 <= number <= len(self.versions):
            message = f"Could not find launch template version {version} of launch template {self.id}"
            raise ServiceError("InvalidLaunchTemplateId.VersionNotFound", message)
        return number


_DELETED_SEEN_FOR: Final = timedelta(hours=1)  # longer than any lag of an eventually consistent read


class SimulatedLaunchTemplates:
    """The launch templates: existing ones, and for a while deleted ones, which an eventually consistent read may return."""

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._serial = count(1)
        self._by_name: dict[str, SimulatedLaunchTemplate] = {}
        self._deleted: deque[SimulatedLaunchTemplate] = deque()  # in the order of deletion

    def find(self, specification: Mapping[str, Any]) -> SimulatedLaunchTemplate:
        """Return the template with an id or a name. Raises ServiceError if it does not exist."""
        id_, name = specification.get("LaunchTemplateId"), specification.get("LaunchTemplateName")
        if id_:
            found = next((template for template in self._by_name.values() if template.id == id_), None)
        else:
            found = self._by_name.get(str(name))
        if found is None:
            raise launch_template_not_found(template_id=id_, name=name)
        return found

    def operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        naming = ("LaunchTemplateId", "LaunchTemplateName")
        create = ("LaunchTemplateName", "LaunchTemplateData")
        return {
            "CreateLaunchTemplate": ServiceOperation(self._create, requires=create, accepts=("TagSpecifications",)),
            "CreateLaunchTemplateVersion": ServiceOperation(
                self._add, requires=("LaunchTemplateData",), accepts=naming
            ),
            "DeleteLaunchTemplate": ServiceOperation(self._delete, accepts=naming),
            "DescribeLaunchTemplates": ServiceOperation(self._describe, accepts=("Filters", *PAGING)),
            "DescribeLaunchTemplateVersions": ServiceOperation(
                self._describe_versions, accepts=(*naming, "Versions", *PAGING)
            ),
        }

    def _create(self, request: ServiceRequest) -> dict[str, Any]:
        name = request["LaunchTemplateName"]
        if name in self._by_name:
            message = f"Launch template name already in use: {name}."
            raise ServiceError("InvalidLaunchTemplateName.AlreadyExistsException", message)
        template = SimulatedLaunchTemplate(
            id=f"lt-{next(self._serial):017x}",
            name=name,
            created=self._time.now(),
            tags=request.tags("launch-template"),
            versions=[request["LaunchTemplateData"]],
        )
        self._by_name[name] = template
        return {"LaunchTemplate": _described_template(template)}

    def _add(self, request: ServiceRequest) -> dict[str, Any]:
        template = self.find(request.parameters)
        template.versions.append(request["LaunchTemplateData"])
        return {"LaunchTemplateVersion": _described_template_version(template, len(template.versions))}

    def _delete(self, request: ServiceRequest) -> dict[str, Any]:
        template = self.find(request.parameters)
        now = template.deleted = self._time.now()
        self._deleted.append(self._by_name.pop(template.name))
        while self._deleted[0].deleted is not None and now - self._deleted[0].deleted > _DELETED_SEEN_FOR:
            self._deleted.popleft()
        return {"LaunchTemplate": _described_template(template)}

    def _describe(self, request: ServiceRequest) -> dict[str, Any]:
        every = sorted((*self._by_name.values(), *self._deleted), key=lambda template: template.id)
        known = [template for template in every if template.existed_at(request.as_of)]
        found = selected(known, request.get("Filters", ()), _TEMPLATE_FILTERS)
        return paged("LaunchTemplates", [_described_template(template) for template in found], request)

    def _describe_versions(self, request: ServiceRequest) -> dict[str, Any]:
        template = self.find(request.parameters)
        every = [str(number) for number in range(1, len(template.versions) + 1)]
        numbers = [template.number_of(version) for version in request.get("Versions") or every]
        return paged(
            "LaunchTemplateVersions", [_described_template_version(template, number) for number in numbers], request
        )


_TEMPLATE_FILTERS = {
    "launch-template-name": lambda template: [template.name],
    "tag": lambda template: tag_pairs(template.tags),
}


def _described_template(template: SimulatedLaunchTemplate) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": template.created,
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": len(template.versions),
        "Tags": to_pairs(template.tags),
    }


def _described_template_version(template: SimulatedLaunchTemplate, number: int) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "VersionNumber": number,
        "DefaultVersion": number == 1,
        "LaunchTemplateData": template.versions[number - 1],
    }
