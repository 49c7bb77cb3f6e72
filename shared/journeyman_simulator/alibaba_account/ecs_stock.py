"""Implements the stock of each pool, the vCPU quotas, and the actions that show stock: zones and available resources."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from journeyman_simulator.alibaba_account.ecs_types import EcsCatalogue, system_disk_categories
from journeyman_simulator.alibaba_account.launch_parameters import DISK_CATEGORIES
from journeyman_simulator.alibaba_account.openapi_errors import missing_parameter
from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest
from journeyman_simulator.cloud_rules.fleet_allocation import CapacityPools
from journeyman_simulator.cloud_rules.service_errors import NotSimulatedError, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime

UNLIMITED: Final = 1_000_000
_SOLD_OUT: Final = frozenset({"WithoutStock", "ClosedWithoutStock"})
_CATEGORIES: Final = frozenset({"WithStock", "ClosedWithStock", *_SOLD_OUT})
JSON = Mapping[str, Any]
PoolName = tuple[str, str, str]
"""An instance type, a zone and a capacity type ("on-demand" or "spot")."""


class EcsStock:
    """The instances that each pool can still launch, and the vCPUs that the account may still use."""

    def __init__(self, catalogue: EcsCatalogue, time: ServiceTime) -> None:
        self._catalogue = catalogue
        self._time = time
        self.pools = CapacityPools(catalogue.prices)
        self._instances: dict[PoolName, int] = {}
        self._categories: dict[PoolName, str] = {}
        self._limited: set[PoolName] = set()  # pools whose stock was ever set
        self.vcpu_quotas: dict[str, int] = {}  # by capacity type; a missing one is unlimited

    def out_of_stock(self, instance_type: str, zone: str, capacity_type: str, until: datetime) -> None:
        """Make launches from this pool fail for lack of stock until `until`."""
        self._limited.add((instance_type, zone, capacity_type))
        self.pools.out_of_stock(instance_type, zone, capacity_type, until)

    def set_stock(
        self, instance_type: str, zone: str, capacity_type: str, *, instances: int | None, category: str
    ) -> None:
        """Set the number of instances that a pool can launch (None: unlimited) and its StatusCategory ("": by number)."""
        pool = (instance_type, zone, capacity_type)
        if category and category not in _CATEGORIES:
            raise ValueError(f"a StatusCategory is one of {', '.join(sorted(_CATEGORIES))}, not {category!r}")
        self._limited.add(pool)
        self._instances.pop(pool, None)
        self._categories.pop(pool, None)
        if instances is not None:
            self._instances[pool] = instances
        if category:
            self._categories[pool] = category

    def available(self, instance_type: str, zone: str, capacity_type: str) -> int:
        """Return how many instances the pool can launch now."""
        pool = (instance_type, zone, capacity_type)
        if self._categories.get(pool) in _SOLD_OUT or self.pools.is_out_of_stock(*pool, self._time.now()):
            return 0
        return self._instances.get(pool, UNLIMITED)

    def take(self, instance_type: str, zone: str, capacity_type: str, number: int) -> None:
        """Remove launched instances from a pool's stock."""
        pool = (instance_type, zone, capacity_type)
        if pool in self._instances:
            self._instances[pool] -= number

    def launch_error(self, instance_type: str, zone: str, capacity_type: str) -> ServiceError | None:
        """Return the reason why the pool cannot launch one instance now; None if it can."""
        if instance_type not in self._catalogue.types:
            return ServiceError(
                "InvalidInstanceType.ValueNotSupported", f"The instance type {instance_type} is not supported."
            )
        if not self._catalogue.prices.is_offered(instance_type, zone):
            return ServiceError("Zone.NotOnSale", f"The zone {zone} does not sell the instance type {instance_type}.")
        if not self.available(instance_type, zone, capacity_type):
            message = f"The requested resource is sold out in the specified zone: {instance_type} in {zone}."
            return ServiceError("OperationDenied.NoStock", message)
        return None

    def require_quota(self, capacity_type: str, used: int, added: int) -> None:
        """Raise ServiceError if the account would use more vCPUs than its quota."""
        quota = self.vcpu_quotas.get(capacity_type)
        if quota is not None and used + added > quota:
            message = f"The vCPU quota of {quota} is used up: {used} are in use, and {added} more were requested."
            raise ServiceError("QuotaExceed.ElasticQuota", message)

    def handlers(self) -> ActionHandlers:
        """Return the handlers of ECS's actions."""
        return {"DescribeAvailableResource": self._describe_available, "DescribeZones": self._describe_zones}

    def _describe_available(self, request: ActionRequest) -> dict[str, Any]:
        destination = request["DestinationResource"]
        if destination not in {"InstanceType", "SystemDisk", "Zone"}:
            raise NotSimulatedError(f"the simulation does not support DestinationResource={destination}")
        if destination == "SystemDisk" and "InstanceType" not in request.parameters:
            raise missing_parameter("InstanceType")
        capacity_type = "on-demand" if request.get("SpotStrategy", "NoSpot") == "NoSpot" else "spot"
        zones = [zone for zone in self._catalogue.zones if request.get("ZoneId", zone) == zone]
        entries = [
            {
                "RegionId": self._catalogue.region,
                "ZoneId": zone,
                "Status": "Available",
                "StatusCategory": "WithStock",
                "AvailableResources": {
                    "AvailableResource": [
                        {"Type": destination, "SupportedResources": {"SupportedResource": supported}}
                        for supported in [self._supported(destination, zone, capacity_type, request)]
                        if supported
                    ]
                },
            }
            for zone in zones
        ]
        return {"AvailableZones": {"AvailableZone": entries}}

    def _supported(self, destination: str, zone: str, capacity_type: str, request: ActionRequest) -> list[JSON]:
        offered = self._catalogue.prices.is_offered
        is_filtered = not request.parameters.keys().isdisjoint(("InstanceType", "Cores", "Memory"))
        names = [
            name
            for name, facts in self._catalogue.types.items()
            if offered(name, zone) and (not is_filtered or _is_wanted(facts, request))
        ]
        if destination == "InstanceType":
            return [self._entry(name, zone, capacity_type) for name in names]
        if destination == "Zone":
            return [{"Value": zone, "Status": "Available", "StatusCategory": "WithStock"}] if names else []
        return [
            {
                "Value": value,
                "Status": "Available",
                "StatusCategory": "WithStock",
                "Min": 20,
                "Max": 2048,
                "Unit": "GiB",
            }
            for name in names
            for value in system_disk_categories(self._catalogue.types[name])
        ]

    def _entry(self, name: str, zone: str, capacity_type: str) -> JSON:
        if (name, zone, capacity_type) not in self._limited:
            return {"Value": name, "Status": "Available", "StatusCategory": "WithStock"}
        stock = self.available(name, zone, capacity_type)
        category = self._categories.get((name, zone, capacity_type)) or ("WithStock" if stock else "WithoutStock")
        if not stock and category not in _SOLD_OUT:
            category = "WithoutStock"
        return {"Value": name, "Status": "Available" if stock else "SoldOut", "StatusCategory": category}

    def _describe_zones(self, request: ActionRequest) -> dict[str, Any]:
        offered = self._catalogue.prices.is_offered
        return {
            "Zones": {
                "Zone": [
                    {
                        "ZoneId": zone,
                        "LocalName": zone,
                        "ZoneType": "AvailabilityZone",
                        "AvailableResourceCreation": {"ResourceTypes": ["VSwitch", "IoOptimized", "Instance", "Disk"]},
                        "AvailableInstanceTypes": {
                            "InstanceTypes": [name for name in self._catalogue.types if offered(name, zone)]
                        },
                        "AvailableDiskCategories": {"DiskCategories": list(DISK_CATEGORIES[1:])},
                    }
                    for zone in self._catalogue.zones
                ]
            }
        }


def _is_wanted(facts: JSON, request: ActionRequest) -> bool:
    return bool(
        request.get("InstanceType", facts["InstanceTypeId"]) == facts["InstanceTypeId"]
        and request.get("Cores", facts["CpuCoreCount"]) == facts["CpuCoreCount"]
        and request.get("Memory", facts["MemorySize"]) == facts["MemorySize"]
    )
