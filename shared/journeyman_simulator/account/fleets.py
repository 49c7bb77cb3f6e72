"""CreateFleet with Type=instant, and RunInstances: how the simulated account's instances come to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from journeyman_simulator.account.asking import Ask, NotSimulatedError, Operation, Operations, paged, tags_given
from journeyman_simulator.account.identity import Identity
from journeyman_simulator.account.images import Images
from journeyman_simulator.account.instances import Change, Instance, Instances
from journeyman_simulator.account.network import Network
from journeyman_simulator.account.templates import Templates
from journeyman_simulator.account.types import InstanceTypes
from journeyman_simulator.aws.allocation import Market, Pool
from journeyman_simulator.aws.fulfilment import ClientTokens, Fulfilment
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper

JSON = Mapping[str, Any]


class Fleets:
    """Launches from templates, chooses by strategy, and answers a client token that it knows with what it answered before."""

    def __init__(
        self,
        time: Timekeeper,
        *,
        market: Market,
        types: InstanceTypes,
        network: Network,
        images: Images,
        identity: Identity,
        templates: Templates,
        instances: Instances,
        describe: Callable[[Instance, Change], dict[str, Any]],
    ) -> None:
        self._time = time
        self._market = market
        self._types = types
        self._network = network
        self._images = images
        self._identity = identity
        self._templates = templates
        self._instances = instances
        self._describe_instance = describe
        self._tokens = ClientTokens()
        self._serial = count(1)
        self._fleets: dict[str, dict[str, Any]] = {}

    def operations(self) -> Operations:
        """What EC2 answers from here."""
        options = ("ClientToken", "Context", "OnDemandOptions", "SpotOptions", "TagSpecifications", "Type")
        run = ("SubnetId", "InstanceMarketOptions", "TagSpecifications")
        return {
            "CreateFleet": Operation(
                self._create, requires=("LaunchTemplateConfigs", "TargetCapacitySpecification"), accepts=options
            ),
            "DescribeFleets": Operation(self._describe, requires=("FleetIds",)),
            "RunInstances": Operation(
                self._run, requires=("ImageId", "InstanceType", "MinCount", "MaxCount"), accepts=run
            ),
        }

    def _create(self, ask: Ask) -> dict[str, Any]:
        if ask.get("Type") != "instant":
            raise NotSimulatedError(
                f"a fleet of type {ask.get('Type', 'maintain')} is not simulated here, only instant"
            )
        return self._tokens.answer((ask.get("ClientToken", ""),), ask.given, lambda: self._fulfilled(ask))

    def _fulfilled(self, ask: Ask) -> dict[str, Any]:
        fleet_id = f"fleet-00000000-0000-4000-8000-{next(self._serial):012x}"
        grounds = _Grounds(self, tags_given(ask, "instance"))
        answer = Fulfilment(fleet_id, ask.given, grounds, self._market, self._time.now()).answer
        self._fleets[fleet_id] = answer
        return answer

    def _describe(self, ask: Ask) -> dict[str, Any]:
        if unknown := [id_ for id_ in ask["FleetIds"] if id_ not in self._fleets]:
            raise RefusedError("InvalidFleetId.NotFound", f"The fleet ID '{unknown[0]}' does not exist")
        told = [{"Type": "instant", "FleetState": "active", **self._fleets[id_]} for id_ in ask["FleetIds"]]
        return paged("Fleets", told, ask)

    def _run(self, ask: Ask) -> dict[str, Any]:
        image = self._images.require(ask["ImageId"])
        subnet_id = ask.get("SubnetId") or next(iter(self._network.subnets))
        self._network.require_addresses(subnet_id, ask["MinCount"])
        launched = [
            self._instances.launch(
                instance_type=ask["InstanceType"],
                architecture=self._types.architecture(ask["InstanceType"]),
                subnet_id=subnet_id,
                image_id=image.id,
                spot=ask.get("InstanceMarketOptions", {}).get("MarketType") == "spot",
                tags=tags_given(ask, "instance"),
            )
            for _ in range(ask["MaxCount"])
        ]
        return {"Instances": [self._describe_instance(i, i.changes[-1]) for i in launched]}

    def template(self, specification: JSON) -> tuple[dict[str, Any], dict[str, Any]]:
        """`Grounds.template`."""
        found = self._templates.find(specification)
        number = found.number_of(str(specification.get("Version", "$Default")))
        resolved = {"LaunchTemplateId": found.id, "LaunchTemplateName": found.name, "Version": str(number)}
        return resolved, dict(found.versions[number - 1])

    def launch(self, fleet_id: str, pool: Pool, number: int, tags: Mapping[str, str]) -> list[str]:
        """That many instances from a pool, as RunInstances would. Raises RefusedError."""
        data = pool.data
        self._images.require(pool.image_id)
        profile = data.get("IamInstanceProfile") or {}
        arn = self._identity.arn_of_profile(profile["Name"]) if "Name" in profile else profile.get("Arn", "")
        groups = self._groups(data)
        subnet_id = pool.subnet_id or self._network.default_subnet(pool.zone)
        self._network.require_addresses(subnet_id, number)
        given = {
            "aws:ec2:fleet-id": fleet_id,
            "aws:ec2launchtemplate:id": pool.template["LaunchTemplateId"],
            "aws:ec2launchtemplate:version": pool.template["Version"],
            **_template_tags(data),
            **tags,
        }
        launched = [
            self._instances.launch(
                instance_type=pool.instance_type,
                architecture=self._types.architecture(pool.instance_type),
                subnet_id=subnet_id,
                image_id=pool.image_id,
                spot=pool.capacity_type == "spot",
                tags=given,
                data=data,
                groups=groups,
                profile_arn=arn,
            )
            for _ in range(number)
        ]
        return [instance.id for instance in launched]

    def _groups(self, data: JSON) -> tuple[JSON, ...]:
        interfaces = data.get("NetworkInterfaces", ())
        ids = data.get("SecurityGroupIds") or next((i["Groups"] for i in interfaces if i.get("Groups")), ())
        known = self._network.groups
        if missing := [id_ for id_ in ids if id_ not in known]:
            raise RefusedError("InvalidGroup.NotFound", f"The security group '{missing[0]}' does not exist")
        return tuple({"GroupId": id_, "GroupName": known[id_].name} for id_ in ids)

    def zone_of(self, subnet_id: str) -> str:
        """`Grounds.zone_of`."""
        return self._network.zone_of(subnet_id)


class _Grounds:
    """What one fleet stands on: the account, and the tags that the request gives to instances."""

    def __init__(self, fleets: Fleets, tags: Mapping[str, str]) -> None:
        self._fleets = fleets
        self._tags = tags
        self.template = fleets.template
        self.zone_of = fleets.zone_of

    def launch(self, fleet_id: str, pool: Pool, count: int) -> list[str]:
        """`Grounds.launch`."""
        return self._fleets.launch(fleet_id, pool, count, self._tags)


def _template_tags(data: JSON) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for specification in data.get("TagSpecifications", ())
        if specification["ResourceType"] == "instance"
        for tag in specification["Tags"]
    }
