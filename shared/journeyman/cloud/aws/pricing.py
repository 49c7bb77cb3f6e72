"""Prices of offerings, from a table that ships with the package and from AWS.

Restates: karpenter-provider-aws pkg/providers/pricing/pricing.go.
Differs: a sandbox reads Spot prices on first use and every 12 h after that; on-demand prices, which rarely change, come
from the shipped table unless a refresh period is set.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.errors import CloudProviderError
from journeyman.ports import Clock, Prices

_log = logging.getLogger(__name__)

_FALLBACK_REGION: Final = "us-east-1"
_SPOT_PRODUCTS: Final = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]
_COMMON_FILTERS: Final = {
    "serviceCode": "AmazonEC2",
    "preInstalledSw": "NA",
    "operatingSystem": "Linux",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_OFFERS: Final = (
    {"tenancy": "Shared", "productFamily": "Compute Instance"},
    {"tenancy": "Dedicated", "productFamily": "Compute Instance (bare metal)"},
)


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """On-demand prices per hour by region and instance type, in the region's currency."""

    source: str
    as_of: str
    currency: dict[str, str]
    on_demand_per_hour: dict[str, dict[str, float]]


@lru_cache(maxsize=1)
def shipped_prices() -> PriceTable:
    """Return the table that ships with the package."""
    text = resources.files(__package__).joinpath("data/on_demand_prices.json").read_bytes()
    return msgspec.json.decode(text, type=PriceTable)


def shipped_on_demand(region: str) -> Mapping[str, float]:
    """Return a region's shipped prices; those of us-east-1 for a region that the table lacks."""
    table = shipped_prices()
    if region not in table.on_demand_per_hour:
        _log.warning("no shipped prices for this region, using those of %s", _FALLBACK_REGION, extra={"region": region})
    return table.on_demand_per_hour.get(region, table.on_demand_per_hour[_FALLBACK_REGION])


class PriceProvider:
    """Current prices per hour, in the region's currency.

    `version` increases with each change. Before the first read of Spot prices, the on-demand price stands in for them;
    after it, a type without Spot price history in a zone has no spot offering there.
    """

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._on_demand = shipped_on_demand(settings.region)
        self._spot: Mapping[tuple[str, str], float] | None = None
        self._spot_read_at: datetime | None = None
        self._on_demand_read_at: datetime | None = None
        self._state = Prices(source=f"table of {shipped_prices().as_of}")
        self.version = 0

    def on_demand(self, instance_type: str) -> float | None:
        """Return the price; None if it is unknown."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the price; None if the type has no spot price in that zone."""
        if self._spot is None:
            return self.on_demand(instance_type)
        return self._spot.get((instance_type, zone))

    def state(self) -> Prices:
        """Return the source and age of the prices. Makes no call to AWS."""
        return self._state

    def refresh_if_due(self) -> None:
        """Refresh the Spot or on-demand prices that have a refresh period and are older than it, or were never read."""
        now = self._clock.now()
        if _is_due(self._spot_read_at, self._settings.spot_refresh_period, now):
            self._refresh_spot()
        if _is_due(self._on_demand_read_at, self._settings.on_demand_refresh_period, now):
            self._refresh_on_demand()

    def refresh(self) -> None:
        """Read Spot and on-demand prices from AWS."""
        self._refresh_spot()
        self._refresh_on_demand()

    def _refresh_spot(self) -> None:
        """Read spot prices; on failure, log a warning and keep the last ones until the next period."""
        self._spot_read_at = self._clock.now()
        try:
            spot = dict(self._read_spot()) or self._spot
        except CloudProviderError as error:
            self._report_failure("spot", error)
            return
        self._state = replace(self._state, spot_refreshed_at=self._spot_read_at, message="")
        if spot != self._spot:
            self._spot = spot
            self.version += 1

    def _refresh_on_demand(self) -> None:
        """Read on-demand prices, as `_refresh_spot`; skip an isolated VPC, which cannot reach the Pricing API."""
        self._on_demand_read_at = self._clock.now()
        if self._settings.isolated_vpc:
            return
        try:
            on_demand = {**self._on_demand, **dict(self._read_on_demand())}
        except CloudProviderError as error:
            self._report_failure("on-demand", error)
            return
        self._state = replace(
            self._state, on_demand_refreshed_at=self._on_demand_read_at, source="pricing:GetProducts", message=""
        )
        if on_demand != self._on_demand:
            self._on_demand = on_demand
            self.version += 1

    def _report_failure(self, kind: str, error: CloudProviderError) -> None:
        text = f"keeping the last {kind} prices: {error}"
        self._state = replace(self._state, message=text)
        _log.warning(text)

    def _read_spot(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield the latest price of each instance type and zone."""
        latest: dict[tuple[str, str], tuple[Any, float]] = {}
        pages = self._clients.ec2.get_paginator("describe_spot_price_history")
        with translated("ec2:DescribeSpotPriceHistory"):
            for page in pages.paginate(ProductDescriptions=_SPOT_PRODUCTS, StartTime=self._clock.now()):
                for entry in page["SpotPriceHistory"]:
                    key = (entry["InstanceType"], entry["AvailabilityZone"])
                    seen = latest.get(key)
                    if seen is None or entry["Timestamp"] > seen[0]:
                        latest[key] = (entry["Timestamp"], float(entry["SpotPrice"]))
        return ((key, price) for key, (_, price) in latest.items())

    def _read_on_demand(self) -> Iterator[tuple[str, float]]:
        pages = self._clients.pricing.get_paginator("get_products")
        currency = shipped_prices().currency.get(self._settings.region, "USD")
        for offer in _OFFERS:
            fields = {**_COMMON_FILTERS, **offer, "regionCode": self._settings.region}
            filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
            with translated("pricing:GetProducts"):
                for page in pages.paginate(ServiceCode="AmazonEC2", Filters=filters):
                    yield from _products(page["PriceList"], currency)


def _products(price_list: Iterable[str], currency: str) -> Iterator[tuple[str, float]]:
    """Yield instance type and price of each product with a price above 0 in that currency."""
    for text in price_list:
        product = json.loads(text)
        name = product.get("product", {}).get("attributes", {}).get("instanceType")
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                price = float(dimension.get("pricePerUnit", {}).get(currency, 0) or 0)
                if name and price > 0:
                    yield name, price


def _is_due(read_at: datetime | None, period: timedelta | None, now: datetime) -> bool:
    return period is not None and (read_at is None or now - read_at >= period)
