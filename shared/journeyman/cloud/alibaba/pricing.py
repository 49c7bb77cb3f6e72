"""Prices of ECS in the account's currency: on demand from DescribePrice, Spot from DescribeSpotAdvice, and a shipped table.

DescribePrice answers for one instance type, and a region sells some 700. Within a family, prices are proportional to each
other; what differs between accounts is the family's discount. So one type of each family is asked for its price, and the
shipped prices of its family are multiplied by the same factor. They remain estimates of the same age as the table where a
family's proportions change.

DescribeSpotAdvice answers for all types and zones at once, with the average of thirty days as a percentage of the on-demand
price. DescribeSpotPriceHistory has exact prices, but for one type a request.

Source: ECS API reference, DescribePrice, DescribeSpotAdvice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec

from journeyman.cloud.alibaba.alibaba_errors import translated
from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.instance_types import EcsTypeInfo
from journeyman.cloud.alibaba.open_api import ECS, ApiCall, OpenApi
from journeyman.cloud.prices import PriceProvider, PriceSource
from journeyman.errors import CloudProviderError, RateLimitedError
from journeyman.ports import Clock, Prices

_log = logging.getLogger(__name__)

_ESTIMATED_FROM: Final = "cn-hangzhou"


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """On-demand prices per hour by region and instance type."""

    source: str
    as_of: str
    currency: str
    on_demand_per_hour: dict[str, dict[str, float]]


@lru_cache(maxsize=1)
def shipped_prices() -> PriceTable:
    """Return the table that ships with the package."""
    text = resources.files(__package__).joinpath("data/on_demand_prices.json").read_bytes()
    return msgspec.json.decode(text, type=PriceTable)


def shipped_on_demand(region: str) -> Mapping[str, float]:
    """Return a region's shipped prices; those of Hangzhou if the table lacks the region."""
    by_region = shipped_prices().on_demand_per_hour
    return by_region.get(region) or by_region[_ESTIMATED_FROM]


def price_provider(
    call: OpenApi, settings: AlibabaSettings, types: Callable[[], tuple[EcsTypeInfo, ...]], clock: Clock
) -> PriceProvider:
    """Return the prices of the settings' region.

    Args:
        call: Sends requests to the region.
        settings: The cluster's.
        types: Returns the region's instance types; called when on-demand prices are read.
        clock: Decides when prices are read again.
    """
    table, region = shipped_prices(), settings.region
    is_own = region in table.on_demand_per_hour
    shipped = shipped_on_demand(region)
    source = f"estimated table of {table.as_of}" + ("" if is_own else f" for {_ESTIMATED_FROM}")

    def read_spot() -> Iterator[tuple[tuple[str, str], float]]:
        return _read_spot(call, region, provider.on_demand)

    provider = PriceProvider(
        PriceSource(
            region=region,
            shipped=shipped,
            state=Prices(source=source, currency=table.currency, estimated=True),
            read_spot=read_spot,
            read_on_demand=lambda: _read_on_demand(call, region, shipped, types(), table.currency),
            on_demand_api="ecs:DescribePrice",
            spot_period=settings.spot_refresh_period,
            on_demand_period=settings.on_demand_refresh_period,
            keeps_shipped=is_own,
        ),
        clock,
    )
    return provider


def _read_spot(
    call: OpenApi, region: str, on_demand: Callable[[str], float | None]
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the Spot price of each instance type and zone, from its average discount."""
    parameters = {"RegionId": region, "MinCores": 1, "MinMemory": 0.5}  # all types
    with translated("ecs:DescribeSpotAdvice"):
        answer = call(ApiCall(service=ECS, action="DescribeSpotAdvice", parameters=parameters))
    for zone in (answer.get("AvailableSpotZones") or {}).get("AvailableSpotZone") or ():
        for resource in (zone.get("AvailableSpotResources") or {}).get("AvailableSpotResource") or ():
            price = on_demand(resource["InstanceType"])
            percent = float(resource.get("AverageSpotDiscount") or 0)
            if price is not None and percent > 0:
                yield (resource["InstanceType"], zone["ZoneId"]), round(price * min(percent, 100) / 100, 6)


def _read_on_demand(
    call: OpenApi, region: str, shipped: Mapping[str, float], types: tuple[EcsTypeInfo, ...], currency: str
) -> Iterator[tuple[str, float]]:
    """Yield the price of each type whose family's price the account's API has, in that currency."""
    by_family: dict[str, list[EcsTypeInfo]] = {}
    for info in types:
        by_family.setdefault(info.family, []).append(info)
    for family in sorted(by_family):
        sample = _sample(by_family[family], shipped)
        if sample is None:
            continue
        try:
            priced = _price_of(call, region, sample.name)
        except RateLimitedError:
            raise
        except CloudProviderError as error:
            _log.info("no price of family %s: %s", family, error.message)
            continue
        if priced is None or priced[1] != currency:
            continue
        factor = priced[0] / shipped[sample.name]
        yield from (
            (info.name, round(shipped[info.name] * factor, 6)) for info in by_family[family] if info.name in shipped
        )


def _sample(family: list[EcsTypeInfo], shipped: Mapping[str, float]) -> EcsTypeInfo | None:
    """Return the type of a family whose price is read: the smallest with a shipped price."""
    priced = [info for info in family if shipped.get(info.name)]
    return min(priced, key=lambda info: (info.vcpus, info.memory_mib, info.name), default=None)


def _price_of(call: OpenApi, region: str, instance_type: str) -> tuple[float, str] | None:
    """Return the price per hour of an instance without its disk, and the currency; None if the answer has no price."""
    parameters: dict[str, Any] = {
        "RegionId": region,
        "ResourceType": "instance",
        "InstanceType": instance_type,
        "InstanceNetworkType": "vpc",
        "PriceUnit": "Hour",
    }
    with translated("ecs:DescribePrice", instance_type=instance_type):
        answer = call(ApiCall(service=ECS, action="DescribePrice", parameters=parameters))
    found = answer.get("PriceInfo") or {}
    price = found.get("Price") or {}
    details = ((price.get("DetailInfos") or {}).get("DetailInfo")) or ()
    amount = next(
        (d.get("TradePrice") for d in details if d.get("Resource") == "instanceType"), price.get("TradePrice")
    )
    return (float(amount), str(price.get("Currency") or "")) if amount else None
