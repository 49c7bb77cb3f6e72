"""CreateFleet with Type=instant, on moto's backend: a launch through templates that chooses as EC2 does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidSubnetIdError
from moto.ec2.models.fleets import Fleet
from moto.ec2.responses.fleets import Fleets
from moto.ec2.utils import convert_tag_spec, random_fleet_id

from journeyman_simulator.aws.allocation import Market, Pool
from journeyman_simulator.aws.fulfilment import ClientTokens, Fulfilment
from journeyman_simulator.aws.launching import launch
from journeyman_simulator.aws.patching import Patch
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper


class InstantFleet(Fleet):
    """A fleet that is asked for once, as moto's DescribeFleets shows it; `Grounds` of its own fulfilment."""

    def __init__(self, backend: Any, request: Mapping[str, Any], market: Market, time: Timekeeper) -> None:
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
        tags = convert_tag_spec(request["TagSpecifications"])
        self.add_tags(tags.get("fleet", {}))
        self.tags = self.get_tags()
        self._request_tags = tags
        self._zones: dict[str, str] = {}
        fulfilment = Fulfilment(self.id, request, self, market, time.now())
        self.answer = fulfilment.answer
        self.errors = fulfilment.errors
        self.fulfilled_capacity = fulfilment.capacity

    @property
    def instances(self) -> list[dict[str, Any]]:
        """As DescribeFleets tells them."""
        return list(self.answer["Instances"])

    def template(self, specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """`Grounds.template`."""
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
        """`Grounds.zone_of`."""
        if subnet_id not in self._zones:
            try:
                self._zones[subnet_id] = str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
            except InvalidSubnetIdError:
                self._zones[subnet_id] = ""
        return self._zones[subnet_id]

    def launch(self, fleet_id: str, pool: Pool, count: int) -> list[str]:
        """`Grounds.launch`."""
        try:
            instances = launch(self.ec2_backend, fleet_id, pool, count, self._request_tags)
        except EC2ClientError as error:
            raise RefusedError(error.code, error.message) from error
        self.on_demand_instances += [{"id": pool.capacity_type, "instance": instance} for instance in instances]
        return [instance.id for instance in instances]


def patches(market: Market, time: Timekeeper) -> tuple[Patch, ...]:
    """CreateFleet with Type=instant; the other types stay moto's."""
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
                return ActionResult(tokens.answer(key, request, lambda: _create(response, market, time).answer))
            except RefusedError as error:
                raise EC2ClientError(error.code, error.message) from error

        return create_fleet

    return (
        Patch(
            owner=Fleets,
            name="create_fleet",
            replace=replace,
            reason="instant fleets choose by strategy, report Errors, honour ClientToken and apply the whole template",
        ),
    )


def _create(response: Any, market: Market, time: Timekeeper) -> InstantFleet:
    read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
    request = {
        "SpotOptions": read("SpotOptions", {}),
        "OnDemandOptions": read("OnDemandOptions", {}),
        "TargetCapacitySpecification": read("TargetCapacitySpecification", {}),
        "LaunchTemplateConfigs": read("LaunchTemplateConfigs", []),
        "TagSpecifications": read("TagSpecifications", []),
    }
    fleet = InstantFleet(response.ec2_backend, request, market, time)
    response.ec2_backend.fleets[fleet.id] = fleet
    return fleet
