"""Implements CreateFleet with Type=instant: the order and choice of pools, errors, response, and client tokens.

Both simulated accounts use it, and implement the lookup of launch templates and the launch of instances (`FleetAccount`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from journeyman_simulator.cloud_rules.price_table import SimulatedPriceTable
from journeyman_simulator.cloud_rules.service_errors import ServiceError, require_few_tags

_PRIORITIZED = frozenset({"prioritized", "capacity-optimized-prioritized"})
STRATEGIES = {
    "on-demand": frozenset({"lowest-price", "prioritized"}),
    "spot": frozenset(
        {
            "capacity-optimized",
            "capacity-optimized-prioritized",
            "diversified",
            "lowest-price",
            "price-capacity-optimized",
        }
    ),
}


class FleetPoolError(NamedTuple):
    """The reason why EC2 did not launch from a pool, as in CreateFleet's Errors."""

    code: str
    message: str


class FleetPool(Struct, frozen=True, kw_only=True):
    """A pool from which a fleet can launch: an override of a launch template, with its zone and capacity type."""

    instance_type: str
    zone: str  # empty if the subnet does not exist
    capacity_type: str
    target: str  # the request's target capacity type, which differs by kind of capacity reservation
    subnet_id: str | None
    image_id: str
    template: Mapping[str, Any]  # the resolved LaunchTemplateSpecification
    data: Mapping[str, Any]  # the template version's data
    override: Mapping[str, Any]  # as in the request
    index: int  # position in the request

    @property
    def weight(self) -> float:
        """Return the units of target capacity of one instance."""
        return float(self.override.get("WeightedCapacity") or 1)

    @property
    def priority(self) -> float:
        """Return the priority: EC2 tries lower ones first, and pools without a priority last."""
        return float(self.override.get("Priority", math.inf))


class CapacityPools:
    """The region's prices, and the pools without capacity."""

    def __init__(self, prices: SimulatedPriceTable) -> None:
        self.prices = prices
        self._unavailable_until: dict[tuple[str, str, str], datetime] = {}

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make launches from this pool fail with InsufficientInstanceCapacity until `until`."""
        self._unavailable_until[instance_type, zone, capacity_type] = until

    def is_out_of_stock(self, instance_type: str, zone: str, capacity_type: str, now: datetime) -> bool:
        """Whether the pool has no capacity at `now`."""
        return self._unavailable_until.get((instance_type, zone, capacity_type), now) > now

    def ranked(self, pools: Iterable[FleetPool], strategy: str) -> list[FleetPool]:
        """Return the pools in the order in which a strategy tries them.

        A simulated pool has unlimited capacity or none, so the capacity-optimized strategies use their second criterion:
        priority for the prioritized one, else price.
        """
        return sorted(pools, key=lambda pool: (pool.priority if strategy in _PRIORITIZED else 0, *self._cost(pool)))

    def error_of(self, pool: FleetPool, now: datetime) -> FleetPoolError | None:
        """Return the reason why EC2 cannot launch from the pool at `now`; None if it can."""
        kind, zone = pool.instance_type, pool.zone
        if not zone:
            return FleetPoolError("InvalidSubnetID.NotFound", f"The subnet ID '{pool.subnet_id}' does not exist")
        if not any(self.prices.is_offered(kind, known) for known in self.prices.zones()):
            return FleetPoolError("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if not self.prices.is_offered(kind, zone):
            return FleetPoolError(
                "InvalidFleetConfiguration",
                f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone}).",
            )
        if self.is_out_of_stock(kind, zone, pool.capacity_type, now):
            return _insufficient(pool)
        return self._spot_error(pool) if pool.capacity_type == "spot" else None

    def _spot_error(self, pool: FleetPool) -> FleetPoolError | None:
        price, limit = self.prices.spot(pool.instance_type, pool.zone), pool.override.get("MaxPrice")
        if price is None:
            return _insufficient(pool)
        if limit is not None and float(limit) < price:
            return FleetPoolError(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {limit} is lower than the minimum required Spot request fulfillment price of {price}.",
            )
        return None

    def _cost(self, pool: FleetPool) -> tuple[float, str, str, int]:
        price = self.prices.price(pool.instance_type, pool.zone, pool.capacity_type)
        return (math.inf if price is None else price / pool.weight, pool.instance_type, pool.zone, pool.index)


def _insufficient(pool: FleetPool) -> FleetPoolError:
    if pool.capacity_type == "spot":
        message = "There is no Spot capacity available that matches your request."
    else:
        message = (
            f"We currently do not have sufficient {pool.instance_type} capacity in the Availability Zone you requested "
            f"({pool.zone}). Our system will be working on provisioning additional capacity."
        )
    return FleetPoolError("InsufficientInstanceCapacity", message)


_MISMATCH = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
JSON = Mapping[str, Any]


class FleetAccount(Protocol):
    """The parts of an account that a fleet uses: launch templates, subnets and launches."""

    def template(self, specification: JSON) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the specification with id and version resolved, as in responses, and the data of that version."""
        ...

    def zone_of(self, subnet_id: str) -> str:
        """Return the zone of a subnet; empty if the subnet does not exist."""
        ...

    def launch(self, fleet_id: str, pool: FleetPool, count: int) -> list[str]:
        """Launch `count` instances and return their ids. Raises ServiceError if EC2 would reject the launch."""
        ...


class InstantFleetRequest:
    """A CreateFleet request, which launches on creation; the response has the instances and the errors of failed pools."""

    def __init__(
        self, fleet_id: str, request: JSON, account: FleetAccount, capacity_pools: CapacityPools, now: datetime
    ) -> None:
        """Launch the fleet's instances.

        Args:
            fleet_id: The id of the new fleet.
            request: The parameters of CreateFleet.
            account: The account's templates, subnets and instances.
            capacity_pools: The region's prices, and the pools without capacity.
            now: The time of the request.

        Raises:
            ServiceError: The allocation strategy or the launch template does not exist.
        """
        self.fleet_id = fleet_id
        self.launched: list[tuple[FleetPool, list[str]]] = []
        self.errors: list[dict[str, Any]] = []
        self._request = request
        self._account = account
        self._capacity_pools = capacity_pools
        self._now = now
        self._target = request["TargetCapacitySpecification"].get("DefaultTargetCapacityType") or "on-demand"
        _check_options(request, self._target)
        for capacity_type, amount in _targets(request["TargetCapacitySpecification"]):
            if amount > 0:
                self._launch_capacity(capacity_type, amount)

    @property
    def response(self) -> dict[str, Any]:
        """Return the response of CreateFleet, with instance ids grouped by override."""
        return {"FleetId": self.fleet_id, "Instances": self.instances, "Errors": self.errors}

    @property
    def instances(self) -> list[dict[str, Any]]:
        """Return the launched instances, in an entry for each override."""
        return [
            {**_origin(pool), "InstanceIds": ids, "InstanceType": pool.instance_type} for pool, ids in self.launched
        ]

    @property
    def capacity(self) -> float:
        """Return the launched units of target capacity."""
        return sum(len(ids) * pool.weight for pool, ids in self.launched)

    def _launch_capacity(self, capacity_type: str, amount: float) -> None:
        strategy = self._strategy(capacity_type)
        remaining_pools = deque(self._capacity_pools.ranked(self._pools(capacity_type), strategy))
        while amount > 0 and remaining_pools:
            pool = remaining_pools.popleft()
            count = 1 if strategy == "diversified" else math.ceil(amount / pool.weight)
            launched = self._try(pool, count)
            amount -= launched * pool.weight
            if launched and strategy == "diversified":
                remaining_pools.append(pool)

    def _try(self, pool: FleetPool, count: int) -> int:
        """Launch from a pool and return the number of instances: `count`, or 0 after recording an error."""
        failure = self._capacity_pools.error_of(pool, self._now)
        if failure is None:
            try:
                ids = self._account.launch(self.fleet_id, pool, count)
            except ServiceError as error:
                failure = FleetPoolError(error.code, error.message)
            else:
                self._record_launch(pool, ids)
                return len(ids)
        self.errors.append({**_origin(pool), "ErrorCode": failure.code, "ErrorMessage": failure.message})
        return 0

    def _record_launch(self, pool: FleetPool, ids: list[str]) -> None:
        known = next((earlier for before, earlier in self.launched if before is pool), None)
        if known is None:
            self.launched.append((pool, ids))
        else:
            known += ids

    def _strategy(self, capacity_type: str) -> str:
        options = self._request.get("SpotOptions" if capacity_type == "spot" else "OnDemandOptions") or {}
        strategy = str(options.get("AllocationStrategy") or "lowest-price")
        if strategy not in STRATEGIES[capacity_type]:
            raise ServiceError("InvalidParameterValue", f"Invalid allocation strategy '{strategy}'.")
        return strategy

    def _pools(self, capacity_type: str) -> Iterator[FleetPool]:
        index = 0
        for config in self._request["LaunchTemplateConfigs"]:
            template, data = self._account.template(config["LaunchTemplateSpecification"])
            for override in config.get("Overrides") or [{}]:
                yield self._pool(capacity_type, template, data, override, index)
                index += 1

    def _pool(
        self, capacity_type: str, template: dict[str, Any], data: dict[str, Any], override: dict[str, Any], index: int
    ) -> FleetPool:
        nics = data.get("NetworkInterfaces", ())
        subnet_id = override.get("SubnetId") or next((nic["SubnetId"] for nic in nics if "SubnetId" in nic), None)
        zone = override.get("AvailabilityZone") or self._capacity_pools.prices.zones()[0]
        return FleetPool(
            instance_type=override.get("InstanceType") or data.get("InstanceType", ""),
            zone=self._account.zone_of(subnet_id) if subnet_id else zone,
            capacity_type=capacity_type,
            target=self._target,
            subnet_id=subnet_id,
            image_id=override.get("ImageId") or data.get("ImageId", ""),
            template=template,
            data=data,
            override=override,
            index=index,
        )


def launch_tags(
    fleet_id: str, pool: FleetPool, request_tags: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the tags of a fleet's instances, volumes and interfaces, by resource type.

    The request's TagSpecifications override the launch template's, and AWS adds three tags to each instance.
    """
    merged: dict[str, dict[str, str]] = {
        "instance": {
            "aws:ec2:fleet-id": fleet_id,
            "aws:ec2launchtemplate:id": pool.template["LaunchTemplateId"],
            "aws:ec2launchtemplate:version": pool.template["Version"],
        }
    }
    for source in (tags_by_resource(pool.data.get("TagSpecifications", ())), request_tags):
        for resource_type, tags in source.items():
            merged.setdefault(resource_type, {}).update(tags)
    return merged


def tags_by_resource(specifications: Iterable[JSON]) -> dict[str, dict[str, str]]:
    """Return the tags in TagSpecifications by resource type. Raises ServiceError if a resource would have too many."""
    found: dict[str, dict[str, str]] = {}
    for specification in specifications:
        tags = found.setdefault(specification["ResourceType"], {})
        tags.update({tag["Key"]: tag["Value"] for tag in specification["Tags"]})
        require_few_tags(tags)
    return found


def security_group_ids(data: JSON) -> list[str]:
    """Return the security groups of a launch template, or else those of its first interface that has groups."""
    interfaces = data.get("NetworkInterfaces", ())
    return list(data.get("SecurityGroupIds") or next((i["Groups"] for i in interfaces if i.get("Groups")), ()))


class ClientTokens:
    """Stores the responses to requests with client tokens.

    Restates: EC2 API reference, "Ensuring idempotency": a used token returns the response of its first use,
    including a failure; EC2 rejects a used token with other parameters.
    """

    def __init__(self) -> None:
        self._responses: dict[tuple[str, ...], _TokenUse] = {}

    def response(self, key: tuple[str, ...], request: JSON, execute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the response of the token's first use, or a new one.

        Args:
            key: The token's owner and, last, the token; an empty token counts as no token.
            request: All parameters of the request.
            execute: Executes the request. An exception leaves the token unused.

        Raises:
            ServiceError: The token was used for another request.
        """
        earlier = self._responses.get(key) if key[-1] else None
        if earlier is None:
            earlier = self._responses[key] = _TokenUse(request, execute())
        elif earlier.request != request:
            raise ServiceError("IdempotentParameterMismatch", _MISMATCH)
        return earlier.response


class _TokenUse(NamedTuple):
    request: JSON
    response: dict[str, Any]


_RESERVED_TARGETS = frozenset({"capacity-block", "reserved-capacity"})
_INTERRUPTIBLE = {"ReservationTypes": ["interruptible-capacity-reservation"]}


def _check_options(request: JSON, target: str) -> None:
    """Raise ServiceError if the request's options are not those of its target capacity type."""
    if target in _RESERVED_TARGETS and (request.get("OnDemandOptions") or request.get("SpotOptions")):
        raise ServiceError("InvalidParameterCombination", f"Target '{target}' has neither on-demand nor Spot options.")
    if (target == "reserved-capacity") != (request.get("ReservedCapacityOptions") == _INTERRUPTIBLE):
        message = f"Target '{target}' and ReservedCapacityOptions do not suit each other."
        raise ServiceError("InvalidParameterCombination", message)


def _targets(specification: JSON) -> Iterator[tuple[str, float]]:
    """Yield the units of each capacity type. The default type, else on-demand, gets the rest."""
    total = float(specification["TotalTargetCapacity"])
    wanted = {
        "on-demand": float(specification.get("OnDemandTargetCapacity") or 0),
        "spot": float(specification.get("SpotTargetCapacity") or 0),
    }
    default = specification.get("DefaultTargetCapacityType") or "on-demand"
    default = "on-demand" if default in _RESERVED_TARGETS else default  # bought in advance, allocated alike
    wanted[default] += max(0.0, total - sum(wanted.values()))
    yield from wanted.items()


def _origin(pool: FleetPool) -> dict[str, Any]:
    return {
        "LaunchTemplateAndOverrides": {
            "LaunchTemplateSpecification": dict(pool.template),
            "Overrides": dict(pool.override),
        },
        "Lifecycle": pool.capacity_type,
    }
