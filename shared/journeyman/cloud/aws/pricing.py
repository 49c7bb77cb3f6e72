"""Prices of offerings: from AWS, from another process that read them, or from a table that ships with the package.

On-demand prices come from the Pricing API, which takes seconds and megabytes. So one process reads them every 12 hours, in a
step that no pod waits for, and OfferingState keeps them for all others. Until then a region has the prices of the shipped
table, or, if the table lacks the region, an estimate: the prices of another region with the same currency, and never less
than the Spot price of the type.

Restates: karpenter-provider-aws pkg/providers/pricing/pricing.go.
Differs: a sandbox reads Spot prices on first use and every 12 h after that; the estimate for China is not in dollars.
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

_ESTIMATED_FROM: Final = {"USD": "us-east-1", "CNY": "cn-north-1"}
# GovCloud and the isolated regions have no Pricing API in their partition
_WITHOUT_PRICING_API: Final = ("us-gov-", "us-iso", "eu-iso")
_RETRY_AFTER: Final = timedelta(hours=1)
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


def currency_of(region: str) -> str:
    """Return the currency in which AWS sells in a region, on demand and Spot."""
    return "CNY" if region.startswith("cn-") else "USD"


def shipped_region(region: str) -> str:
    """Return the region whose shipped prices a region has: its own, or one with the same currency if the table lacks it."""
    return region if region in shipped_prices().on_demand_per_hour else _ESTIMATED_FROM[currency_of(region)]


def shipped_on_demand(region: str) -> Mapping[str, float]:
    """Return a region's shipped prices; those of another region with the same currency if the table lacks the region."""
    return shipped_prices().on_demand_per_hour[shipped_region(region)]


class PriceProvider:
    """Current prices per hour, in the region's currency.

    `version` increases with each change. Before the first read of Spot prices, the on-demand price stands in for them;
    after it, a type without Spot price history in a zone has no spot offering there.
    """

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._shipped = shipped_on_demand(settings.region)
        self._on_demand = self._shipped
        self._spot: Mapping[tuple[str, str], float] | None = None
        self._dearest_spot: Mapping[str, float] = {}  # by type
        self._spot_read_at: datetime | None = None
        self._state = _state_of_shipped(settings.region)
        self.version = 0

    def on_demand(self, instance_type: str) -> float | None:
        """Return the price; None if it is unknown."""
        price = self._on_demand.get(instance_type)
        if price is None or not self._state.estimated:
            return price
        return max(price, self._dearest_spot.get(instance_type, price))  # AWS caps Spot prices at on-demand prices

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the price; None if the type has no spot price in that zone."""
        if self._spot is None:
            return self.on_demand(instance_type)
        return self._spot.get((instance_type, zone))

    def state(self) -> Prices:
        """Return the prices' source, age and currency, and the on-demand prices that AWS returned. Makes no call to AWS."""
        return replace(self._state, on_demand_due_at=self._on_demand_due_at())

    def adopt(self, recorded: Prices) -> None:
        """Use the on-demand prices that another process read, if they are newer than this one's and of this currency."""
        if recorded.currency != self._state.currency:
            return
        if _is_newer(recorded.on_demand_tried_at, self._state.on_demand_tried_at):
            self._state = replace(self._state, on_demand_tried_at=recorded.on_demand_tried_at, message=recorded.message)
        read_at = recorded.on_demand_refreshed_at
        if read_at is not None and recorded.on_demand and _is_newer(read_at, self._state.on_demand_refreshed_at):
            self._use(recorded.on_demand, read_at, recorded.source)

    def refresh_spot_if_due(self) -> None:
        """Read Spot prices if they were never read, or are older than the refresh period; on failure, keep the last ones."""
        now, period = self._clock.now(), self._settings.spot_refresh_period
        if period is not None and (self._spot_read_at is None or now - self._spot_read_at >= period):
            self._refresh_spot(now)

    def refresh_on_demand_if_due(self) -> None:
        """Read on-demand prices if they are due; on failure, keep the last ones and try again after an hour."""
        now, due_at = self._clock.now(), self._on_demand_due_at()
        if due_at is not None and due_at <= now:
            self._refresh_on_demand(now)

    def _on_demand_due_at(self) -> datetime | None:
        """Return when on-demand prices are read again; None if the Pricing API cannot be reached from here."""
        settings, state = self._settings, self._state
        if settings.on_demand_refresh_period is None or settings.isolated_vpc:
            return None
        if settings.region.startswith(_WITHOUT_PRICING_API):
            return None
        if state.on_demand_tried_at is None:
            return self._clock.now()
        has_failed = _is_newer(state.on_demand_tried_at, state.on_demand_refreshed_at)
        return state.on_demand_tried_at + (_RETRY_AFTER if has_failed else settings.on_demand_refresh_period)

    def _refresh_spot(self, now: datetime) -> None:
        self._spot_read_at = now
        try:
            spot = dict(self._read_spot()) or self._spot
        except CloudProviderError as error:
            self._report_failure("spot", error)
            return
        self._state = replace(self._state, spot_refreshed_at=now, message="")
        if spot != self._spot:
            self._spot = spot
            dearest: dict[str, float] = {}
            for (name, _), price in (spot or {}).items():
                dearest[name] = max(price, dearest.get(name, price))
            self._dearest_spot = dearest
            self.version += 1

    def _refresh_on_demand(self, now: datetime) -> None:
        self._state = replace(self._state, on_demand_tried_at=now)
        try:
            read = dict(self._read_on_demand())
        except CloudProviderError as error:
            self._report_failure("on-demand", error)
            return
        if not read:
            region, currency = self._settings.region, self._state.currency
            self._report_failure("on-demand", f"pricing:GetProducts returned no price of {region} in {currency}")
            return
        self._state = replace(self._state, message="")
        self._use(read, now, "pricing:GetProducts")

    def _use(self, read: Mapping[str, float], read_at: datetime, source: str) -> None:
        """Use prices of the region's own; types without one keep the shipped price, if that is the region's own as well."""
        is_own = shipped_region(self._settings.region) == self._settings.region
        on_demand = {**(self._shipped if is_own else {}), **read}
        before, was_estimated = self._on_demand, self._state.estimated
        self._state = replace(
            self._state, on_demand_refreshed_at=read_at, source=source, estimated=False, on_demand=read
        )
        if on_demand != before or was_estimated:
            self._on_demand = on_demand
            self.version += 1

    def _report_failure(self, kind: str, error: CloudProviderError | str) -> None:
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
        for offer in _OFFERS:
            fields = {**_COMMON_FILTERS, **offer, "regionCode": self._settings.region}
            filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
            with translated("pricing:GetProducts"):
                for page in pages.paginate(ServiceCode="AmazonEC2", Filters=filters):
                    yield from _products(page["PriceList"], self._state.currency)


def _state_of_shipped(region: str) -> Prices:
    table, source = shipped_prices(), shipped_region(region)
    is_own = source == region
    return Prices(
        source=f"table of {table.as_of}" if is_own else f"table of {table.as_of} for {source}",
        currency=currency_of(region),
        estimated=not is_own,
    )


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


def _is_newer(at: datetime | None, than: datetime | None) -> bool:
    return at is not None and (than is None or at > than)
