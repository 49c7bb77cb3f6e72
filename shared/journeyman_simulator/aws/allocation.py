"""Which pools a fleet tries, in which order, and why EC2 would refuse one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from journeyman_simulator.aws.price_table import PriceTable

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


class Refusal(NamedTuple):
    """Why an instance was not launched, in EC2's words."""

    code: str
    message: str


class Pool(Struct, frozen=True, kw_only=True):
    """One thing a fleet may launch: an override of a launch template, in a zone, with a capacity type."""

    instance_type: str
    zone: str  # empty if the subnet does not exist
    capacity_type: str
    subnet_id: str | None
    image_id: str
    template: Mapping[str, Any]  # the resolved LaunchTemplateSpecification
    data: Mapping[str, Any]  # the template version's data
    override: Mapping[str, Any]  # as sent
    index: int  # position in the request

    @property
    def weight(self) -> float:
        """How many units of target capacity one instance counts for."""
        return float(self.override.get("WeightedCapacity") or 1)

    @property
    def priority(self) -> float:
        """Lower is tried first; no priority comes last."""
        return float(self.override.get("Priority", math.inf))


class Market:
    """Prices, and what is out of stock until when."""

    def __init__(self, prices: PriceTable) -> None:
        self.prices = prices
        self._out: dict[tuple[str, str, str], datetime] = {}

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Nothing more can be had from this pool until then."""
        self._out[instance_type, zone, capacity_type] = until

    def is_out_of_stock(self, instance_type: str, zone: str, capacity_type: str, now: datetime) -> bool:
        """Whether nothing can be had from this pool at the moment."""
        return self._out.get((instance_type, zone, capacity_type), now) > now

    def ranked(self, pools: Iterable[Pool], strategy: str) -> list[Pool]:
        """The order in which a strategy tries pools.

        Simulated pools have no depth: each has capacity or has none. So the capacity-optimized strategies are left
        with their second criterion, which is priority where they have one and price otherwise.
        """
        return sorted(pools, key=lambda pool: (pool.priority if strategy in _PRIORITIZED else 0, *self._cost(pool)))

    def refusal(self, pool: Pool, now: datetime) -> Refusal | None:
        """Why this pool cannot be launched from now; None if it can."""
        kind, zone = pool.instance_type, pool.zone
        if not zone:
            return Refusal("InvalidSubnetID.NotFound", f"The subnet ID '{pool.subnet_id}' does not exist")
        if not any(self.prices.is_offered(kind, known) for known in self.prices.zones()):
            return Refusal("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
        if not self.prices.is_offered(kind, zone):
            return Refusal(
                "InvalidFleetConfiguration",
                f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone}).",
            )
        if self.is_out_of_stock(kind, zone, pool.capacity_type, now):
            return _insufficient(pool)
        return self._spot_refusal(pool) if pool.capacity_type == "spot" else None

    def _spot_refusal(self, pool: Pool) -> Refusal | None:
        price, limit = self.prices.spot(pool.instance_type, pool.zone), pool.override.get("MaxPrice")
        if price is None:
            return _insufficient(pool)
        if limit is not None and float(limit) < price:
            return Refusal(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {limit} is lower than the minimum required Spot request fulfillment price of {price}.",
            )
        return None

    def _cost(self, pool: Pool) -> tuple[float, str, str, int]:
        price = self.prices.price(pool.instance_type, pool.zone, pool.capacity_type)
        return (math.inf if price is None else price / pool.weight, pool.instance_type, pool.zone, pool.index)


def _insufficient(pool: Pool) -> Refusal:
    if pool.capacity_type == "spot":
        message = "There is no Spot capacity available that matches your request."
    else:
        message = (
            f"We currently do not have sufficient {pool.instance_type} capacity in the Availability Zone you requested "
            f"({pool.zone}). Our system will be working on provisioning additional capacity."
        )
    return Refusal("InsufficientInstanceCapacity", message)
