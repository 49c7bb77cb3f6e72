"""An instant fleet's choice: what it launches, in which order it tries, what it answers, and what its token stands for.

The same for every simulated account; how a template is found and an instance is launched is the account's own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from journeyman_simulator.aws.allocation import STRATEGIES, Market, Pool, Refusal
from journeyman_simulator.aws.refusal import RefusedError

_MISMATCH = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
JSON = Mapping[str, Any]


class Grounds(Protocol):
    """What a fleet stands on: the account's templates and subnets, and its way to launch."""

    def template(self, specification: JSON) -> tuple[dict[str, Any], dict[str, Any]]:
        """The specification with id and version resolved, as answers carry it, and that version's data."""
        ...

    def zone_of(self, subnet_id: str) -> str:
        """Where a subnet is; empty if there is no such subnet."""
        ...

    def launch(self, fleet_id: str, pool: Pool, count: int) -> list[str]:
        """Ids of that many new instances. Raises RefusedError if EC2 would refuse them."""
        ...


class Fulfilment:
    """One request of a fleet, carried out at once: what it got and what it did not get is all in its answer."""

    def __init__(self, fleet_id: str, request: JSON, grounds: Grounds, market: Market, now: datetime) -> None:
        """Launches.

        Args:
            fleet_id: Of the new fleet.
            request: CreateFleet's parameters.
            grounds: The account.
            market: Prices and stock.
            now: When.

        Raises:
            RefusedError: The request makes no sense: no such strategy, and what `grounds.template` raises.
        """
        self.fleet_id = fleet_id
        self.launched: list[tuple[Pool, list[str]]] = []
        self.errors: list[dict[str, Any]] = []
        self._request = request
        self._grounds = grounds
        self._market = market
        self._now = now
        for capacity_type, amount in _targets(request["TargetCapacitySpecification"]):
            if amount > 0:
                self._fulfil(capacity_type, amount)

    @property
    def answer(self) -> dict[str, Any]:
        """CreateFleet's result: ids grouped by the override they came from."""
        return {"FleetId": self.fleet_id, "Instances": self.instances, "Errors": self.errors}

    @property
    def instances(self) -> list[dict[str, Any]]:
        """What was launched, one entry for each override that gave instances."""
        return [
            {**_origin(pool), "InstanceIds": ids, "InstanceType": pool.instance_type} for pool, ids in self.launched
        ]

    @property
    def capacity(self) -> float:
        """Units of target capacity that were launched."""
        return sum(len(ids) * pool.weight for pool, ids in self.launched)

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
        refusal = self._market.refusal(pool, self._now)
        if refusal is None:
            try:
                ids = self._grounds.launch(self.fleet_id, pool, count)
            except RefusedError as error:
                refusal = Refusal(error.code, error.message)
            else:
                self._remember(pool, ids)
                return len(ids)
        self.errors.append({**_origin(pool), "ErrorCode": refusal.code, "ErrorMessage": refusal.message})
        return 0

    def _remember(self, pool: Pool, ids: list[str]) -> None:
        known = next((earlier for before, earlier in self.launched if before is pool), None)
        if known is None:
            self.launched.append((pool, ids))
        else:
            known += ids

    def _strategy(self, capacity_type: str) -> str:
        options = self._request.get("SpotOptions" if capacity_type == "spot" else "OnDemandOptions") or {}
        strategy = str(options.get("AllocationStrategy") or "lowest-price")
        if strategy not in STRATEGIES[capacity_type]:
            raise RefusedError("InvalidParameterValue", f"Invalid allocation strategy '{strategy}'.")
        return strategy

    def _pools(self, capacity_type: str) -> Iterator[Pool]:
        index = 0
        for config in self._request["LaunchTemplateConfigs"]:
            template, data = self._grounds.template(config["LaunchTemplateSpecification"])
            for override in config.get("Overrides") or [{}]:
                yield self._pool(capacity_type, template, data, override, index)
                index += 1

    def _pool(
        self, capacity_type: str, template: dict[str, Any], data: dict[str, Any], override: dict[str, Any], index: int
    ) -> Pool:
        nics = data.get("NetworkInterfaces", ())
        subnet_id = override.get("SubnetId") or next((nic["SubnetId"] for nic in nics if "SubnetId" in nic), None)
        zone = override.get("AvailabilityZone") or self._market.prices.zones()[0]
        return Pool(
            instance_type=override.get("InstanceType") or data.get("InstanceType", ""),
            zone=self._grounds.zone_of(subnet_id) if subnet_id else zone,
            capacity_type=capacity_type,
            subnet_id=subnet_id,
            image_id=override.get("ImageId") or data.get("ImageId", ""),
            template=template,
            data=data,
            override=override,
            index=index,
        )


class ClientTokens:
    """What each client token was used for.

    Restates: EC2 API reference, "Ensuring idempotency": a token that was used gives the answer of its first use,
    a failure too; with other parameters it is refused.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, ...], _Remembered] = {}

    def answer(self, key: tuple[str, ...], request: JSON, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The first use's answer, or a new one.

        Args:
            key: Whose token, the token last; an empty token stands for nothing.
            request: All parameters of the request.
            make: Carries it out. What it raises is not remembered.

        Raises:
            RefusedError: The token was used for another request.
        """
        earlier = self._answers.get(key) if key[-1] else None
        if earlier is None:
            earlier = self._answers[key] = _Remembered(request, make())
        elif earlier.request != request:
            raise RefusedError("IdempotentParameterMismatch", _MISMATCH)
        return earlier.answer


class _Remembered(NamedTuple):
    request: JSON
    answer: dict[str, Any]


def _targets(specification: JSON) -> Iterator[tuple[str, float]]:
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
