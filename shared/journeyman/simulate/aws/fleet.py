"""CreateFleet of type instant as EC2 does it: allocation strategies, per-pool errors, idempotent client tokens."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidSubnetIdError
from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instances import Instance
from moto.ec2.responses.fleets import Fleets
from moto.ec2.utils import convert_tag_spec, random_fleet_id

from journeyman.simulate.aws.allocation import STRATEGIES, Market, Pool, Refusal
from journeyman.simulate.aws.launching import launch
from journeyman.simulate.aws.patching import Patch
from journeyman.simulate.aws.timekeeping import Timekeeper


class InstantFleet(Fleet):
    """A fleet that is asked for once: what it got and what it did not get is all in its answer."""

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
        self.fulfilled_capacity = self.fulfilled_spot_capacity = self.fulfilled_on_demand_capacity = 0.0
        self._market = market
        self._time = time
        tags = convert_tag_spec(request["TagSpecifications"])
        self.add_tags(tags.get("fleet", {}))
        self.tags = self.get_tags()
        self._request_tags = tags
        self._zones: dict[str, str] = {}
        self.errors: list[dict[str, Any]] = []
        self._launched: list[tuple[Pool, list[str]]] = []
        for capacity_type, amount in _targets(self.target_capacity_specification):
            if amount > 0:
                self._fulfil(capacity_type, amount)

    @property
    def answer(self) -> dict[str, Any]:
        """CreateFleet's result: ids grouped by the override they came from."""
        return {"FleetId": self.id, "Instances": self.instances, "Errors": self.errors}

    @property
    def instances(self) -> list[dict[str, Any]]:
        """What was launched, one entry for each override that gave instances."""
        return [
            {**_origin(pool), "InstanceIds": ids, "InstanceType": pool.instance_type} for pool, ids in self._launched
        ]

    def _fulfil(self, capacity_type: str, amount: float) -> None:
        strategy = self._strategy(capacity_type)
        waiting = deque(self._market.ranked(self._pools(capacity_type), strategy))
        while amount > 0 and waiting:
            pool = waiting.popleft()
            count = 1 if strategy == "diversified" else math.ceil(amount / pool.weight)
            launched = self._try(pool, count)
            amount -= launched * pool.weight
            if launched and strategy == "diversified":
                waiting.append(pool)

    def _try(self, pool: Pool, count: int) -> int:
        """How many could be launched: all or, with an error noted, none."""
        refusal = self._market.refusal(pool, self._time.now())
        if refusal is None:
            try:
                instances = launch(self.ec2_backend, self.id, pool, count, self._request_tags)
            except EC2ClientError as error:
                refusal = Refusal(error.code, error.message)
            else:
                self._remember(pool, instances)
                return len(instances)
        self.errors.append({**_origin(pool), "ErrorCode": refusal.code, "ErrorMessage": refusal.message})
        return 0

    def _remember(self, pool: Pool, instances: list[Instance]) -> None:
        self.on_demand_instances += [{"id": pool.capacity_type, "instance": instance} for instance in instances]
        ids = [instance.id for instance in instances]
        known = next((earlier for before, earlier in self._launched if before is pool), None)
        if known is None:
            self._launched.append((pool, ids))
        else:
            known += ids
        self.fulfilled_capacity += len(ids) * pool.weight

    def _strategy(self, capacity_type: str) -> str:
        options = self.spot_options if capacity_type == "spot" else self.on_demand_options
        strategy = str(options.get("AllocationStrategy") or "lowest-price")
        if strategy not in STRATEGIES[capacity_type]:
            raise EC2ClientError("InvalidParameterValue", f"Invalid allocation strategy '{strategy}'.")
        return strategy

    def _pools(self, capacity_type: str) -> Iterator[Pool]:
        index = 0
        for config in self.launch_template_configs:
            template, data = self._template(config["LaunchTemplateSpecification"])
            for override in config.get("Overrides") or [{}]:
                yield self._pool(capacity_type, template, data, override, index)
                index += 1

    def _pool(
        self, capacity_type: str, template: dict[str, Any], data: dict[str, Any], override: dict[str, Any], index: int
    ) -> Pool:
        nics = data.get("NetworkInterfaces", ())
        subnet_id = override.get("SubnetId") or next((nic["SubnetId"] for nic in nics if "SubnetId" in nic), None)
        return Pool(
            instance_type=override.get("InstanceType") or data.get("InstanceType", ""),
            zone=self._zone(subnet_id)
            if subnet_id
            else override.get("AvailabilityZone") or self._market.prices.zones()[0],
            capacity_type=capacity_type,
            subnet_id=subnet_id,
            image_id=override.get("ImageId") or data.get("ImageId", ""),
            template=template,
            data=data,
            override=override,
            index=index,
        )

    def _zone(self, subnet_id: str) -> str:
        """Where a subnet is; empty if there is no such subnet."""
        if subnet_id not in self._zones:
            try:
                self._zones[subnet_id] = str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
            except InvalidSubnetIdError:
                self._zones[subnet_id] = ""
        return self._zones[subnet_id]

    def _template(self, specification: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The specification with id and version resolved, as answers carry it, and that version's data."""
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


class _Remembered(NamedTuple):
    request: Mapping[str, Any]
    answer: dict[str, Any]


def patches(market: Market, time: Timekeeper) -> tuple[Patch, ...]:
    """CreateFleet with Type=instant; the other types stay moto's."""
    answers: dict[tuple[str, str, str], _Remembered] = {}

    def replace(original: Callable[[Fleets], ActionResult]) -> Callable[[Fleets], ActionResult]:
        def create_fleet(response: Any) -> ActionResult:
            read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
            if read("Type") != "instant":
                return original(response)
            response.error_on_dryrun()
            key = (response.current_account, response.region, read("ClientToken") or "")
            request = dict(response.querystring)
            earlier = answers.get(key) if key[-1] else None
            if earlier is None:
                fleet = _create(response, market, time)
                earlier = answers[key] = _Remembered(request, fleet.answer)
            elif earlier.request != request:
                raise EC2ClientError(
                    "IdempotentParameterMismatch",
                    "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
                )
            return ActionResult(earlier.answer)

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


def _targets(specification: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Units wanted of each capacity type; what is not spoken for goes to the default type, on-demand if unsaid."""
    total = float(specification["TotalTargetCapacity"])
    wanted = {
        "on-demand": float(specification.get("OnDemandTargetCapacity") or 0),
        "spot": float(specification.get("SpotTargetCapacity") or 0),
    }
    default = specification.get("DefaultTargetCapacityType") or "on-demand"
    wanted[default] += max(0.0, total - sum(wanted.values()))
    yield from wanted.items()


def _origin(pool: Pool) -> dict[str, Any]:
    return {
        "LaunchTemplateAndOverrides": {
            "LaunchTemplateSpecification": dict(pool.template),
            "Overrides": dict(pool.override),
        },
        "Lifecycle": pool.capacity_type,
    }
