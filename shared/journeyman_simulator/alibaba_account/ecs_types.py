"""Implements DescribeInstanceTypes and the price actions, with the shipped list prices and seeded Spot prices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec

from journeyman_simulator.alibaba_account.openapi_errors import invalid_parameter, missing_parameter
from journeyman_simulator.alibaba_account.openapi_requests import (
    ActionHandlers,
    ActionRequest,
    from_second,
    to_second,
    token_page,
)
from journeyman_simulator.cloud_rules.price_table import SimulatedPriceTable
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

JSON = Mapping[str, Any]
CURRENCY: Final = "CNY"
SMALL_SELECTION: Final = (
    *("ecs.c7.large", "ecs.c7.xlarge", "ecs.c8y.large", "ecs.g6.large", "ecs.g7.large", "ecs.g7.xlarge"),
    *("ecs.g7.2xlarge", "ecs.g7.4xlarge", "ecs.g8y.large", "ecs.g8y.xlarge", "ecs.r7.large", "ecs.u1-c1m2.large"),
)
"""Instance types for short simulations: several families and sizes, two of them ARM."""

SPOT_SHARES: Final = (0.1, 0.4)
"""The range of Spot prices, as shares of the on-demand price."""

_PRICES: Final = ("journeyman.cloud.alibaba", "data/on_demand_prices.json")
_TYPES: Final = ("journeyman_simulator.alibaba_account", "instance_types.json")
_OLD_FAMILIES: Final = frozenset({"ecs.c6", "ecs.g6", "ecs.r6", "ecs.t6"})
_DISKS: Final = {
    # CNY per GiB and hour
    "cloud_efficiency": 0.00049,
    "cloud_ssd": 0.0014,
    "cloud_essd": 0.00105,
    "cloud_auto": 0.0007,
    "cloud_essd_entry": 0.00056,
    "cloud": 0.00042,
}


class ShippedPrices(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of the product's price file that the simulation reads: CNY per hour by region and instance type."""

    on_demand_per_hour: dict[str, dict[str, float]]


@lru_cache(maxsize=1)
def all_instance_types() -> Mapping[str, JSON]:
    """Return all types that the simulation knows by name, as DescribeInstanceTypes returns them."""
    package, name = _TYPES
    rows: list[dict[str, Any]] = msgspec.json.decode(resources.files(package).joinpath(name).read_bytes())
    return {row["InstanceTypeId"]: row for row in rows}


@lru_cache(maxsize=8)
def list_prices(region: str) -> Mapping[str, float]:
    """Return CNY per hour by instance type, for every type that the simulation knows.

    A type without a list price costs, per vCPU and GiB, as much as the other types of the region.
    """
    package, name = _PRICES
    shipped = msgspec.json.decode(resources.files(package).joinpath(name).read_bytes(), type=ShippedPrices)
    listed = shipped.on_demand_per_hour.get(region) or shipped.on_demand_per_hour["cn-hangzhou"]
    per_unit = listed["ecs.g7.large"] / _units(all_instance_types()["ecs.g7.large"])
    types = all_instance_types()
    return {name: listed.get(name) or round(per_unit * _units(facts), 6) for name, facts in types.items()}


def _units(facts: JSON) -> float:
    """Return the size of a type; a vCPU costs about as much as 6 GiB, and a GPU as much as 24 vCPUs."""
    return float(facts["CpuCoreCount"] + facts["MemorySize"] / 6 + 24 * facts["GPUAmount"])


def system_disk_categories(facts: JSON) -> tuple[str, ...]:
    """Return the disk categories that a type can boot from, the default first."""
    if facts["InstanceTypeFamily"] in _OLD_FAMILIES:
        return ("cloud_efficiency", "cloud_essd", "cloud_ssd", "cloud_auto")
    if facts["InstanceTypeFamily"] == "ecs.u1":
        return ("cloud_essd", "cloud_auto", "cloud_essd_entry")
    return ("cloud_essd", "cloud_auto")


def image_architecture(facts: JSON) -> str:
    """Return the architecture of the images that a type boots, as DescribeImages names it."""
    return "arm64" if facts["CpuArchitecture"] == "ARM" else "x86_64"


class EcsCatalogue:
    """The instance types and prices of one region.

    Args:
        names: The offered types, from `all_instance_types`.
        zones: The zones of the region.
        missing: The (type, zone) pairs that are not offered.
        region: The name of the region.
        time: The account's time.
        price_seed: The seed of the Spot prices.

    Raises:
        KeyError: A name is not in `all_instance_types`.
    """

    def __init__(
        self,
        names: Iterable[str],
        zones: Sequence[str],
        missing: Collection[tuple[str, str]],
        *,
        region: str,
        time: ServiceTime,
        price_seed: int,
    ) -> None:
        self.types = {name: all_instance_types()[name] for name in sorted(names)}
        self.zones = tuple(zones)
        self.region = region
        self.discount = 1.0  # the account's own prices, as a share of the list prices
        self._time = time
        self._pages: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.prices = SimulatedPriceTable(
            list_prices(region),
            pools=[(name, zone) for name in self.types for zone in zones if (name, zone) not in missing],
            since=time.now() - timedelta(days=1),
            seed=price_seed,
            spot_shares=SPOT_SHARES,
        )

    def facts(self, name: str) -> JSON:
        """Return the entry of a type. Raises ServiceError if the region does not have it."""
        if name not in self.types:
            raise ServiceError(
                "InvalidInstanceType.ValueNotSupported", f"The specified InstanceType {name} is not supported."
            )
        return self.types[name]

    def cpus(self, name: str) -> int:
        """Return the number of vCPUs of a type."""
        return int(self.types[name]["CpuCoreCount"])

    def handlers(self) -> ActionHandlers:
        """Return the handlers of ECS's actions."""
        return {
            "DescribeInstanceTypes": self._describe_types,
            "DescribePrice": self._describe_price,
            "DescribeSpotPriceHistory": self._describe_spot_prices,
            "DescribeSpotAdvice": self._describe_spot_advice,
        }

    def _describe_types(self, request: ActionRequest) -> dict[str, Any]:
        """Return a page of types. Answers are shared, so that they cost nothing; callers must not change them."""
        key = tuple((name, str(value)) for name, value in sorted(request.parameters.items()))
        if key not in self._pages:
            found = [facts for facts in self.types.values() if _is_selected(facts, request)]
            page, token = token_page(request, found, default=100)  # 100 is the most of new accounts
            self._pages[key] = {"InstanceTypes": {"InstanceType": page}, **token}
        return dict(self._pages[key])

    def _describe_price(self, request: ActionRequest) -> dict[str, Any]:
        if request.get("ResourceType", "instance") != "instance":
            raise NotSimulatedError("the simulation prices only ResourceType=instance")
        if request.get("PriceUnit", "Hour") != "Hour":
            raise NotSimulatedError("the simulation has only prices per hour")
        if "InstanceType" not in request.parameters:
            raise missing_parameter("InstanceType")
        facts = self.facts(request["InstanceType"])
        amount = request.get("Amount", 1)
        name = facts["InstanceTypeId"]
        original = self.prices.on_demand(name) or 0.0
        traded = original * self.discount
        if request.get("SpotStrategy", "NoSpot") != "NoSpot":
            zones = [request["ZoneId"]] if "ZoneId" in request.parameters else self.prices.zones()
            traded = min((price for zone in zones if (price := self.prices.spot(name, zone))), default=0.0)
            if not traded:
                raise ServiceError("Zone.NotOnSale", f"The zone {zones[0]} does not sell the Spot type {name}.")
        disk = self._disk_price(facts, request.get("SystemDisk") or {})
        parts = (("instanceType", original, traded), ("systemDisk", disk, disk * self.discount))
        return {
            "PriceInfo": {
                "Price": {
                    **_price_entry(amount, sum(part[1] for part in parts), sum(part[2] for part in parts)),
                    "Currency": CURRENCY,
                    "DetailInfos": {
                        "DetailInfo": [
                            {"Resource": resource, **_price_entry(amount, before, after)}
                            for resource, before, after in parts
                        ]
                    },
                },
                "Rules": {"Rule": []},
            }
        }

    def _disk_price(self, facts: JSON, disk: JSON) -> float:
        allowed = system_disk_categories(facts)
        category = disk.get("Category") or allowed[0]
        if category not in allowed:
            raise unsupported_disk(category, facts["InstanceTypeId"])
        return float(_DISKS[category] * (disk.get("Size") or 40))

    def _describe_spot_prices(self, request: ActionRequest) -> dict[str, Any]:
        now = self._time.now()
        end = from_second(request["EndTime"]) if "EndTime" in request.parameters else now
        start = from_second(request["StartTime"]) if "StartTime" in request.parameters else end - timedelta(hours=3)
        if start > end or now - start > timedelta(days=30, minutes=1):
            raise invalid_parameter("StartTime", "must be before EndTime, and at most 30 days ago")
        name = request["InstanceType"]
        self.facts(name)
        zones = [request["ZoneId"]] if "ZoneId" in request.parameters else self.zones
        rows = [row for zone in zones for row in self._hourly_prices(name, zone, start, end)]
        rows.sort(key=lambda row: (row["Timestamp"], row["ZoneId"]))
        offset = request.get("Offset", 0)
        following = offset + _SPOT_PAGE
        return {
            "SpotPrices": {"SpotPriceType": rows[offset:following]},
            "Currency": CURRENCY,
            "NextOffset": following if following < len(rows) else 0,
        }

    def _hourly_prices(self, name: str, zone: str, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
        """Yield the Spot price of a pool at every full hour, and at `end`."""
        changes = self.prices.history(name, zone)
        hour = start.replace(minute=0, second=0, microsecond=0)
        while changes and hour <= end:
            latest = min(hour + timedelta(hours=1), end)  # a change counts for the hour in which it happens
            price = next((change.price for change in changes if change.since <= latest), changes[-1].price)
            yield {
                "InstanceType": name,
                "ZoneId": zone,
                "NetworkType": "vpc",
                "IoOptimized": "optimized",
                "SpotPrice": price,
                "OriginPrice": self.prices.on_demand(name),
                "Timestamp": to_second(hour),
            }
            hour += timedelta(hours=1)

    def _describe_spot_advice(self, request: ActionRequest) -> dict[str, Any]:
        names = request.get("InstanceTypes") or [
            name for name, facts in self.types.items() if _is_advised(facts, request)
        ]
        zones = [request["ZoneId"]] if "ZoneId" in request.parameters else self.zones
        return {
            "RegionId": self.region,
            "AvailableSpotZones": {
                "AvailableSpotZone": [
                    {
                        "ZoneId": zone,
                        "AvailableSpotResources": {
                            "AvailableSpotResource": [
                                self._advice(name, price) for name in names if (price := self.prices.spot(name, zone))
                            ]
                        },
                    }
                    for zone in zones
                ]
            },
        }

    def _advice(self, name: str, price: float) -> dict[str, Any]:
        discount = round(100 * price / (self.prices.on_demand(name) or price))
        # a pool that is more in demand is dearer and loses more instances
        rate, text = (1.5, "0-3%") if discount < 25 else (4.0, "3-5%") if discount < 35 else (7.0, "5-10%")
        return {
            "InstanceType": name,
            "AverageSpotDiscount": discount,
            "InterruptionRate": rate,
            "InterruptRateDesc": text,
        }


_SPOT_PAGE: Final = 50


def unsupported_disk(category: str, instance_type: str) -> ServiceError:
    """Return the error for a system disk of a category that the type cannot boot from."""
    message = f"The disk category {category} is not supported by the instance type {instance_type}."
    return ServiceError("InvalidDiskCategory.NotSupported", message)


def _price_entry(amount: int, original: float, traded: float) -> dict[str, float]:
    original, traded = round(original * amount, 6), round(traded * amount, 6)
    return {"OriginalPrice": original, "DiscountPrice": round(original - traded, 6), "TradePrice": traded}


def _is_selected(facts: JSON, request: ActionRequest) -> bool:
    names = request.get("InstanceTypes")
    return (
        (not names or facts["InstanceTypeId"] in names)
        and request.get("InstanceTypeFamily", facts["InstanceTypeFamily"]) == facts["InstanceTypeFamily"]
        and request.get("CpuArchitecture", facts["CpuArchitecture"]) == facts["CpuArchitecture"]
        and request.get("MinimumCpuCoreCount", 1) <= facts["CpuCoreCount"]
        and facts["CpuCoreCount"] <= request.get("MaximumCpuCoreCount", facts["CpuCoreCount"])
        and request.get("MinimumGPUAmount", 0) <= facts["GPUAmount"]
    )


def _is_advised(facts: JSON, request: ActionRequest) -> bool:
    return bool(
        request.get("Cores", facts["CpuCoreCount"]) == facts["CpuCoreCount"]
        and request.get("Memory", facts["MemorySize"]) == facts["MemorySize"]
        and request.get("MinCores", 0) <= facts["CpuCoreCount"]
        and request.get("MinMemory", 0) <= facts["MemorySize"]
        and request.get("InstanceTypeFamily", facts["InstanceTypeFamily"]) == facts["InstanceTypeFamily"]
    )
