"""Prices of EC2: on demand from the Pricing API, Spot from EC2, and the table that ships with the package.

A region that the table lacks has an estimate: the prices of another region with the same currency, and never less than the
Spot price of the type.

Restates: karpenter-provider-aws pkg/providers/pricing/pricing.go.
Differs: the estimate for China is not in dollars.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec

from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.prices import PriceProvider, PriceSource
from journeyman.ports import Clock, Prices

_ESTIMATED_FROM: Final = {"USD": "us-east-1", "CNY": "cn-north-1"}
# GovCloud and the isolated regions have no Pricing API in their partition
_WITHOUT_PRICING_API: Final = ("us-gov-", "us-iso", "eu-iso")
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


def price_provider(clients: Clients, settings: AwsSettings, clock: Clock) -> PriceProvider:
    """Return the prices of the settings' region."""
    is_readable = not settings.isolated_vpc and not settings.region.startswith(_WITHOUT_PRICING_API)
    return PriceProvider(
        PriceSource(
            region=settings.region,
            shipped=shipped_on_demand(settings.region),
            state=_state_of_shipped(settings.region),
            read_spot=lambda: _read_spot(clients, clock.now()),
            read_on_demand=lambda: _read_on_demand(clients, settings.region),
            on_demand_api="pricing:GetProducts",
            spot_period=settings.spot_refresh_period,
            on_demand_period=settings.on_demand_refresh_period if is_readable else None,
            keeps_shipped=shipped_region(settings.region) == settings.region,
        ),
        clock,
    )


def _read_spot(clients: Clients, now: datetime) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the latest price of each instance type and zone."""
    latest: dict[tuple[str, str], tuple[Any, float]] = {}
    pages = clients.ec2.get_paginator("describe_spot_price_history")
    with translated("ec2:DescribeSpotPriceHistory"):
        for page in pages.paginate(ProductDescriptions=_SPOT_PRODUCTS, StartTime=now):
            for entry in page["SpotPriceHistory"]:
                key = (entry["InstanceType"], entry["AvailabilityZone"])
                seen = latest.get(key)
                if seen is None or entry["Timestamp"] > seen[0]:
                    latest[key] = (entry["Timestamp"], float(entry["SpotPrice"]))
    return ((key, price) for key, (_, price) in latest.items())


def _read_on_demand(clients: Clients, region: str) -> Iterator[tuple[str, float]]:
    pages = clients.pricing.get_paginator("get_products")
    for offer in _OFFERS:
        fields = {**_COMMON_FILTERS, **offer, "regionCode": region}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
        with translated("pricing:GetProducts"):
            for page in pages.paginate(ServiceCode="AmazonEC2", Filters=filters):
                yield from _products(page["PriceList"], currency_of(region))


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
