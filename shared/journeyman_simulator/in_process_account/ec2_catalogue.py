"""Implements DescribeInstanceTypes and the price APIs of the in-process account, with some of EC2's instance types."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman_simulator.cloud_rules.price_table import SimulatedPriceTable, SpotPriceQuery, products
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
)

_TYPES_PAGE: Final = 100  # of DescribeInstanceTypes

# from EC2: architecture, manufacturer, GHz, vCPUs, MiB, interfaces, addresses of each, EBS Mbit/s, encryption in transit,
# Nitro Enclaves
_RECORD: Final = {
    "a1.large": ("arm64", "AWS", 2.3, 2, 4096, 3, 10, 3500, False, False),
    "c5.large": ("x86_64", "Intel", 3.4, 2, 4096, 3, 10, 4750, False, False),
    "c6a.large": ("x86_64", "AMD", 3.6, 2, 4096, 3, 10, 10000, True, False),
    "c6g.large": ("arm64", "AWS", 2.5, 2, 4096, 3, 10, 4750, False, True),
    "c6i.large": ("x86_64", "Intel", 3.5, 2, 4096, 3, 10, 10000, True, False),
    "m5.large": ("x86_64", "Intel", 3.1, 2, 8192, 3, 10, 4750, False, False),
    "m5.xlarge": ("x86_64", "Intel", 3.1, 4, 16384, 4, 15, 4750, False, True),
    "m5.2xlarge": ("x86_64", "Intel", 3.1, 8, 32768, 4, 15, 4750, False, True),
    "m5.24xlarge": ("x86_64", "Intel", 3.1, 96, 393216, 15, 50, 19000, False, True),
    "m6g.large": ("arm64", "AWS", 2.5, 2, 8192, 3, 10, 4750, False, True),
    "m6g.xlarge": ("arm64", "AWS", 2.5, 4, 16384, 4, 15, 4750, False, True),
    "r5.large": ("x86_64", "Intel", 3.1, 2, 16384, 3, 10, 4750, False, False),
    "r5.xlarge": ("x86_64", "Intel", 3.1, 4, 32768, 4, 15, 4750, False, True),
    "r6g.large": ("arm64", "AWS", 2.5, 2, 16384, 3, 10, 4750, False, True),
    "t3.large": ("x86_64", "Intel", 2.5, 2, 8192, 3, 12, 2780, False, False),
    "t3.medium": ("x86_64", "Intel", 2.5, 2, 4096, 3, 6, 2085, False, False),
    "t3.nano": ("x86_64", "Intel", 2.5, 2, 512, 2, 2, 2085, False, False),
}
KNOWN_TYPES: Final = tuple(_RECORD)
SMALL_SELECTION: Final = ("c5.large", "c6g.large", "m5.large", "m5.xlarge", "m6g.large", "r5.large")


class SimulatedInstanceTypes:
    """The instance types that the account offers, by zone.

    Args:
        names: The offered types, from `KNOWN_TYPES`.
        zones: The zones of the region.
        missing: The (type, zone) pairs that are not offered.
        region: The name of the region.

    Raises:
        KeyError: A name is not in `KNOWN_TYPES`.
    """

    def __init__(
        self, names: Sequence[str], zones: Sequence[str], missing: Collection[tuple[str, str]], region: str
    ) -> None:
        self.described = {name: _described(name) for name in sorted(names)}
        self._region = region
        self.pools = [(name, zone) for name in self.described for zone in zones if (name, zone) not in missing]

    def architecture(self, name: str) -> str:
        """Return EC2's name of a type's architecture."""
        return str(self.described[name]["ProcessorInfo"]["SupportedArchitectures"][0])

    def operations(self) -> ServiceOperations:
        """Return EC2's operations on instance types."""
        return {
            "DescribeInstanceTypes": ServiceOperation(self._types, accepts=("Filters", "InstanceTypes", *PAGING)),
            "DescribeInstanceTypeOfferings": ServiceOperation(
                self._offerings, accepts=("Filters", "LocationType", *PAGING)
            ),
        }

    def _types(self, request: ServiceRequest) -> dict[str, Any]:
        names = request.get("InstanceTypes") or tuple(self.described)
        if unknown := [name for name in names if name not in self.described]:
            message = f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
            raise ServiceError("InvalidInstanceType", message)
        found = selected((self.described[name] for name in names), request.get("Filters", ()), _READERS)
        return paged("InstanceTypes", found, request, _TYPES_PAGE)

    def _offerings(self, request: ServiceRequest) -> dict[str, Any]:
        kind = request.get("LocationType", "region")
        pools = self.pools if kind == "availability-zone" else [(name, self._region) for name in self.described]
        rows = [{"InstanceType": name, "LocationType": kind, "Location": location} for name, location in pools]
        readers = {"instance-type": lambda row: [row["InstanceType"]], "location": lambda row: [row["Location"]]}
        return paged("InstanceTypeOfferings", selected(rows, request.get("Filters", ()), readers), request)


_READERS = {
    "instance-type": lambda entry: [entry["InstanceType"]],
    "supported-virtualization-type": lambda entry: entry["SupportedVirtualizationTypes"],
    "processor-info.supported-architecture": lambda entry: entry["ProcessorInfo"]["SupportedArchitectures"],
}


class _TypeFacts(Struct, frozen=True):
    """A row of `_RECORD`."""

    architecture: str
    manufacturer: str
    ghz: float
    vcpus: int
    memory_mib: int
    interfaces: int
    addresses_each: int
    ebs_megabits: int
    encrypts: bool
    enclaves: bool


def _described(name: str) -> dict[str, Any]:
    facts = _TypeFacts(*_RECORD[name])
    return {
        "InstanceType": name,
        "BareMetal": False,
        "Hypervisor": "nitro",
        "SupportedUsageClasses": ["on-demand", "spot"],
        "SupportedVirtualizationTypes": ["hvm"],
        "ProcessorInfo": {
            "Manufacturer": facts.manufacturer,
            "SupportedArchitectures": [facts.architecture],
            "SustainedClockSpeedInGhz": facts.ghz,
        },
        "VCpuInfo": {"DefaultVCpus": facts.vcpus},
        "MemoryInfo": {"SizeInMiB": facts.memory_mib},
        "InstanceStorageSupported": False,
        "EbsInfo": {
            "EbsOptimizedSupport": "default",
            "EbsOptimizedInfo": {"MaximumBandwidthInMbps": facts.ebs_megabits},
        },
        "PlacementGroupInfo": {
            "SupportedStrategies": [*([] if name.startswith("t") else ["cluster"]), "partition", "spread"]
        },
        "NitroEnclavesSupport": "supported" if facts.enclaves else "unsupported",
        "NetworkInfo": {
            "DefaultNetworkCardIndex": 0,
            "MaximumNetworkInterfaces": facts.interfaces,
            "Ipv4AddressesPerInterface": facts.addresses_each,
            "EncryptionInTransitSupported": facts.encrypts,
            "NetworkCards": [{"NetworkCardIndex": 0, "MaximumNetworkInterfaces": facts.interfaces}],
        },
    }


_OLDEST: Final = timedelta(days=90)  # the age of the oldest Spot prices that EC2 keeps
_PRODUCTS_PAGE: Final = 100  # of GetProducts


class PriceOperations:
    """Implements the operations of EC2 and the Pricing API on a region's prices."""

    def __init__(self, table: SimulatedPriceTable, time: ServiceTime, region: str) -> None:
        self._table = table
        self._time = time
        self._region = region

    def ec2_operations(self) -> ServiceOperations:
        """Return EC2's operations on prices."""
        accepts = ("AvailabilityZone", "EndTime", "InstanceTypes", "ProductDescriptions", "StartTime", *PAGING)
        return {"DescribeSpotPriceHistory": ServiceOperation(self._spot_history, accepts=accepts)}

    def pricing_operations(self) -> ServiceOperations:
        """Return the Pricing API's operations."""
        return {
            "GetProducts": ServiceOperation(self._products, requires=("ServiceCode",), accepts=("Filters", *PAGING))
        }

    def _spot_history(self, request: ServiceRequest) -> dict[str, Any]:
        now = self._time.now()
        query = SpotPriceQuery(
            types=frozenset(request.get("InstanceTypes", ())),
            zones=frozenset({request.get("AvailabilityZone")} - {None}),
            products=frozenset(request.get("ProductDescriptions", ())),
            start=request.get("StartTime") or now - _OLDEST,
            end=request.get("EndTime") or now,
        )
        return paged("SpotPriceHistory", list(query.rows(self._table)), request)

    def _products(self, request: ServiceRequest) -> dict[str, Any]:
        found = products(self._table, self._region, request.parameters)
        response = paged("PriceList", found, request, _PRODUCTS_PAGE)
        response["PriceList"] = [product.price_list_entry() for product in response["PriceList"]]
        return {"FormatVersion": "aws_v1", **response}
