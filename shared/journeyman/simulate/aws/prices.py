"""What the simulated AWS charges: on-demand from a table, Spot from the same table and a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses.spot_instances import SpotInstances

from journeyman.simulate.aws.patching import Patch
from journeyman.simulate.aws.timekeeping import Timekeeper
from journeyman.simulate.aws.wire import ec2_answer

# A Spot price is this share of the on-demand price, drawn evenly for each (type, zone).
_CHEAPEST_SHARE, _DEAREST_SHARE = 0.28, 0.62
_PAGE = 1000  # DescribeSpotPriceHistory's largest page
_PRODUCT = "Linux/UNIX"


class SpotPrice(NamedTuple):
    """The price of a pool from a moment on, USD per hour."""

    since: datetime
    price: float


class PriceTable:
    """Prices of one region.

    Args:
        on_demand: USD per hour by instance type; a type that is missing has no price and no Spot market.
        region: Whose zones there are pools in.
        since: When the first Spot price of every pool was set.
        seed: Another seed gives other Spot prices.
    """

    def __init__(self, on_demand: Mapping[str, float], *, region: str, since: datetime, seed: int = 1) -> None:
        self._on_demand = on_demand
        self._since = since
        self._seed = seed
        offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
        self._pools = sorted((offer["InstanceType"], offer["Location"]) for offer in offered)
        self._offered = frozenset(self._pools)
        self._firsts: dict[tuple[str, str], float | None] = {}
        self._changes: dict[tuple[str, str], list[SpotPrice]] = {}

    def is_offered(self, instance_type: str, zone: str) -> bool:
        """Whether the zone has this type at all."""
        return (instance_type, zone) in self._offered

    def zones(self) -> tuple[str, ...]:
        """The region's zones that have instances."""
        return tuple(sorted({zone for _, zone in self._pools}))

    def on_demand(self, instance_type: str) -> float | None:
        """USD per hour; None if the table does not know the type."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """USD per hour now; None if there is no such pool."""
        if changes := self._changes.get((instance_type, zone)):
            return changes[-1].price
        return self._first(instance_type, zone)

    def price(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """USD per hour of an offering; None if it cannot be bought."""
        return self.spot(instance_type, zone) if capacity_type == "spot" else self.on_demand(instance_type)

    def set_spot(self, instance_type: str, zone: str, price: float, since: datetime) -> None:
        """Let a pool cost something else from now on."""
        self._changes.setdefault((instance_type, zone), []).append(SpotPrice(since, price))

    def history(self, instance_type: str, zone: str) -> tuple[SpotPrice, ...]:
        """All prices of a pool, newest first."""
        first = self._first(instance_type, zone)
        beginning = () if first is None else (SpotPrice(self._since, first),)
        return (*reversed(self._changes.get((instance_type, zone), [])), *beginning)

    def pools(self) -> Iterator[tuple[str, str]]:
        """(type, zone) of every pool, by name."""
        return iter(self._pools)

    def _first(self, instance_type: str, zone: str) -> float | None:
        pool = (instance_type, zone)
        if pool not in self._firsts:
            self._firsts[pool] = self._drawn(instance_type, zone)
        return self._firsts[pool]

    def _drawn(self, instance_type: str, zone: str) -> float | None:
        on_demand = self._on_demand.get(instance_type)
        if on_demand is None or not self.is_offered(instance_type, zone) or not _has_spot(instance_type):
            return None
        draw = random.Random(f"{self._seed}/{instance_type}/{zone}")
        return round(on_demand * draw.uniform(_CHEAPEST_SHARE, _DEAREST_SHARE), 4)


def _has_spot(instance_type: str) -> bool:
    return "spot" in INSTANCE_TYPES.get(instance_type, {}).get("SupportedUsageClasses", ())


def patches(table: PriceTable, time: Timekeeper) -> tuple[Patch, ...]:
    """DescribeSpotPriceHistory answers from the table."""

    def describe_spot_price_history(response: Any) -> str:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        wanted = _Wanted(response, time.now())
        rows = [row for pool in table.pools() for row in wanted.rows(pool, table.history(*pool))]
        start = int(read("NextToken") or 0)
        end = start + min(int(read("MaxResults") or _PAGE), _PAGE)
        token = str(end) if end < len(rows) else ""
        return ec2_answer("DescribeSpotPriceHistory", {"SpotPriceHistory": rows[start:end], "NextToken": token})

    return (
        Patch(
            owner=SpotInstances,
            name="describe_spot_price_history",
            replace=lambda _: describe_spot_price_history,
            reason="Spot prices are the table's, dated, filtered and paged; moto's are all 0.00001 of 2006",
        ),
    )


class _Wanted:
    """What a DescribeSpotPriceHistory request asks for."""

    def __init__(self, response: Any, now: datetime) -> None:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        filters = response._filters_from_querystring()  # noqa: SLF001 - same
        if unknown := sorted(set(filters) - {"availability-zone", "instance-type", "product-description"}):
            raise EC2ClientError("InvalidParameterValue", f"The filter '{unknown[0]}' is invalid")
        self.types = {*read("InstanceTypes", []), *filters.get("instance-type", ())}
        self.zones = {*filters.get("availability-zone", ())} | ({read("AvailabilityZone")} - {None})
        self.products = {*read("ProductDescriptions", []), *filters.get("product-description", ())}
        self.start = _aware(read("StartTime"), now - timedelta(days=90))
        self.end = _aware(read("EndTime"), now)

    def rows(self, pool: tuple[str, str], history: tuple[SpotPrice, ...]) -> Iterator[dict[str, Any]]:
        """Changes within the span, newest first, and the price that held when it began."""
        instance_type, zone = pool
        # Karpenter and others ask for both product names; AWS answers VPC-only accounts with the plain one.
        if self.products and not {_PRODUCT, f"{_PRODUCT} (Amazon VPC)"} & self.products:
            return
        if (self.types and instance_type not in self.types) or (self.zones and zone not in self.zones):
            return
        for change in history:
            if change.since <= self.end:
                yield {
                    "InstanceType": instance_type,
                    "AvailabilityZone": zone,
                    "ProductDescription": _PRODUCT,
                    "SpotPrice": f"{change.price:.6f}",
                    "Timestamp": change.since.replace(tzinfo=None),
                }
            if change.since <= self.start:
                return


def _aware(value: Any, default: datetime) -> datetime:
    """A request's time as botocore's parser left it: a naive or aware datetime, or nothing."""
    if value is None:
        return default
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=default.tzinfo)
