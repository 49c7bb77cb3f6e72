"""Prices of a simulated region: on-demand from a table, Spot from the table and a seed, with history and products."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_errors import ServiceError

# The Spot price of each (type, zone) is the on-demand price times a share from a uniform distribution.
_MIN_SPOT_SHARE, _MAX_SPOT_SHARE = 0.28, 0.62
_PRODUCT = "Linux/UNIX"


class SpotPrice(NamedTuple):
    """The price of a pool in USD per hour, from the time `since`."""

    since: datetime
    price: float


class SimulatedPriceTable:
    """The prices of one region.

    Args:
        on_demand: Price per hour by instance type; a missing type has neither on-demand nor Spot prices.
        pools: The (type, zone) pairs that the region offers.
        without_spot: Types that are offered only on demand.
        since: The time of the first Spot price of every pool.
        seed: The seed of the Spot prices.
        spot_shares: The range of the Spot prices, as shares of the on-demand price.
    """

    def __init__(
        self,
        on_demand: Mapping[str, float],
        *,
        pools: Iterable[tuple[str, str]],
        since: datetime,
        without_spot: Set[str] = frozenset(),
        seed: int = 1,
        spot_shares: tuple[float, float] = (_MIN_SPOT_SHARE, _MAX_SPOT_SHARE),
    ) -> None:
        self._on_demand = on_demand
        self._without_spot = without_spot
        self._since = since
        self._seed = seed
        self._spot_shares = spot_shares
        self._pools = sorted(pools)
        self._offered = frozenset(self._pools)
        self._first_prices: dict[tuple[str, str], float | None] = {}
        self._changes: dict[tuple[str, str], list[SpotPrice]] = {}
        self.version = 0  # increases with every change of a Spot price

    def is_offered(self, instance_type: str, zone: str) -> bool:
        """Whether the zone offers this type."""
        return (instance_type, zone) in self._offered

    def zones(self) -> tuple[str, ...]:
        """Return the region's zones that offer instances."""
        return tuple(sorted({zone for _, zone in self._pools}))

    def on_demand(self, instance_type: str) -> float | None:
        """Return USD per hour; None if the table lacks the type."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the current Spot price in USD per hour; None if the pool does not exist."""
        if changes := self._changes.get((instance_type, zone)):
            return changes[-1].price
        return self._first_price(instance_type, zone)

    def price(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """Return the price of an offering in USD per hour; None if it does not exist."""
        return self.spot(instance_type, zone) if capacity_type == "spot" else self.on_demand(instance_type)

    def set_spot(self, instance_type: str, zone: str, price: float, since: datetime) -> None:
        """Change the Spot price of a pool."""
        self._changes.setdefault((instance_type, zone), []).append(SpotPrice(since, price))
        self.version += 1

    def history(self, instance_type: str, zone: str) -> tuple[SpotPrice, ...]:
        """Return all Spot prices of a pool, newest first."""
        first = self._first_price(instance_type, zone)
        oldest = () if first is None else (SpotPrice(self._since, first),)
        return (*reversed(self._changes.get((instance_type, zone), [])), *oldest)

    def pools(self) -> Iterator[tuple[str, str]]:
        """Yield each pool as (type, zone), sorted by name."""
        return iter(self._pools)

    def _first_price(self, instance_type: str, zone: str) -> float | None:
        pool = (instance_type, zone)
        if pool not in self._first_prices:
            self._first_prices[pool] = self._drawn_price(instance_type, zone)
        return self._first_prices[pool]

    def _drawn_price(self, instance_type: str, zone: str) -> float | None:
        on_demand = self._on_demand.get(instance_type)
        if on_demand is None or not self.is_offered(instance_type, zone) or instance_type in self._without_spot:
            return None
        draw = random.Random(f"{self._seed}/{instance_type}/{zone}")
        return round(on_demand * draw.uniform(*self._spot_shares), 4)


class SpotPriceQuery(Struct, frozen=True, kw_only=True):
    """A DescribeSpotPriceHistory request; an empty set selects all values."""

    start: datetime
    end: datetime
    types: Set[str] = frozenset()
    zones: Set[str] = frozenset()
    products: Set[str] = frozenset()

    def rows(self, prices: SimulatedPriceTable) -> Iterator[dict[str, Any]]:
        """Yield each pool's price changes between `start` and `end`, newest first, and then its price at `start`."""
        # Karpenter requests both product names; AWS returns the name without "(Amazon VPC)" to VPC-only accounts
        if self.products and not {_PRODUCT, f"{_PRODUCT} (Amazon VPC)"} & self.products:
            return
        for instance_type, zone in prices.pools():
            if (self.types and instance_type not in self.types) or (self.zones and zone not in self.zones):
                continue
            for change in self._within(prices.history(instance_type, zone)):
                yield {
                    "InstanceType": instance_type,
                    "AvailabilityZone": zone,
                    "ProductDescription": _PRODUCT,
                    "SpotPrice": f"{change.price:.6f}",
                    "Timestamp": change.since,
                }

    def _within(self, history: tuple[SpotPrice, ...]) -> Iterator[SpotPrice]:
        for change in history:
            if change.since <= self.end:
                yield change
            if change.since <= self.start:
                return


_OFFER_TERM, _RATE = "JRTCKXETXF", "6YS6EN2CT7"  # AWS's codes for on-demand terms and hourly rates


class PricedProduct(NamedTuple):
    """An on-demand Linux instance type and its price per hour, in the region's currency."""

    attributes: dict[str, str]
    price: float

    def price_list_entry(self) -> str:
        """Return the product as JSON, as in GetProducts' PriceList."""
        return json.dumps(_offer(self.attributes, self.price))


def products(
    prices: SimulatedPriceTable,
    region: str,
    request: Mapping[str, Any],
    *,
    bare_metal: Callable[[str], bool] = lambda _: False,
) -> list[PricedProduct]:
    """Return the products that match all filters of a GetProducts request, sorted by instance type.

    Raises:
        ServiceError: The request is for a service other than AmazonEC2.
    """
    if request["ServiceCode"] != "AmazonEC2":
        raise ServiceError("InvalidParameterException", f"Invalid Service Code: {request['ServiceCode']}")
    wanted = {item["Field"]: item["Value"] for item in request.get("Filters", ())}
    found = []
    for name in sorted({kind for kind, _ in prices.pools()}):
        price = prices.on_demand(name)
        product = _product_attributes(name, region, bare_metal=bare_metal(name))
        if price is not None and _has_attributes(product, wanted):
            found.append(PricedProduct(product, price))
    return found


def _product_attributes(instance_type: str, region: str, *, bare_metal: bool) -> dict[str, str]:
    """Return the attributes of a product, by which GetProducts can filter."""
    return {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "licenseModel": "No License required",
        # Karpenter requests shared tenancy, and for bare metal its product family with dedicated tenancy
        "tenancy": "Dedicated" if bare_metal else "Shared",
        "productFamily": "Compute Instance (bare metal)" if bare_metal else "Compute Instance",
        "operation": "RunInstances",
        "servicecode": "AmazonEC2",
        "locationType": "AWS Region",
    }


def _has_attributes(product: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a product has all wanted attributes. The case of names and values does not count: AWS takes `serviceCode`."""
    attributes = {field.lower(): value.lower() for field, value in product.items()}
    return all(attributes.get(field.lower()) == value.lower() for field, value in wanted.items())


def _offer(product: Mapping[str, str], price: float) -> dict[str, Any]:
    """Return an entry of PriceList: the product and its hourly price, which AWS lists in yuan for its regions in China."""
    currency = "CNY" if product["regionCode"].startswith("cn-") else "USD"
    sku = product["instanceType"].upper().replace(".", "").replace("-", "")
    term, rate = f"{sku}.{_OFFER_TERM}", f"{sku}.{_OFFER_TERM}.{_RATE}"
    attributes = {key: value for key, value in product.items() if key != "productFamily"}
    dimension = {
        "rateCode": rate,
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "description": f"{price} {currency} per On Demand Linux {product['instanceType']} Instance Hour",
        "appliesTo": [],
        "pricePerUnit": {currency: f"{price:.10f}"},
    }
    return {
        "product": {"sku": sku, "productFamily": product["productFamily"], "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                term: {
                    "sku": sku,
                    "offerTermCode": _OFFER_TERM,
                    "termAttributes": {},
                    "priceDimensions": {rate: dimension},
                }
            }
        },
    }
