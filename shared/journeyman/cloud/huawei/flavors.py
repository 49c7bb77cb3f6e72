"""The flavors of ECS, which are instance types here: size, where they are sold on demand and on Spot, and whether there is stock.

`cond:operation:status` of a flavor is whether the region sells it, and `cond:operation:az` overrides that for some zones. The
`cond:spot:…` keys say the same for Spot. FlavorSellPolicies lists the Spot stock of a zone.

Source: ECS API reference, ListFlavors, ListFlavorSellPolicies.
Restates: huaweicloud-samples/karpenter-provider-huawei pkg/providers/instancetype/instancetype.go (`resolveOfferingZones`).
Differs: Spot; flavors that are not sold on demand (`cond:operation:charge`) or that CCE does not accept are left out.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.caching import ttl_cache
from journeyman.cloud.huawei.huawei_errors import translated
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.rest_api import ECS, Query, RestApi, RestCall, last_id, pages
from journeyman.cloud.parallel_reads import read_each
from journeyman.core.catalogue import STOCK_LISTED_FOR
from journeyman.ports import Clock

_log = logging.getLogger(__name__)

FLAVORS_TTL: Final = STOCK_LISTED_FOR  # they include the stock that a region shows
SPOT_STOCK_TTL: Final = STOCK_LISTED_FOR
_PAGE: Final = 1000
_MIN_VCPUS: Final = 2  # CCE's documentation of node flavors
_MIN_MEMORY_MIB: Final = 4096  # same
_SOLD: Final = frozenset({"normal", "promotion", "obt"})
_NOT_SOLD: Final = frozenset({"abandon", "sellout", "obt_sellout"})
_SPOT_SOLD: Final = frozenset({"normal", "promotion"})
_ZONE_STATUS: Final = re.compile(r"\s*([^\s(),;]+)\s*\(\s*([A-Za-z_]+)\s*\)")
_COUNT_OF_ALIAS: Final = re.compile(r":(\d+)\s*$")
_GPU_MEMORY_GIB: Final = re.compile(r"(\d+)\s*G", re.IGNORECASE)


class Flavor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flavor. A field is 0 or "" if ECS does not report it."""

    name: str
    arch: str  # as in the label kubernetes.io/arch
    vcpus: int
    memory_mib: int
    on_demand: tuple[tuple[str, bool], ...]  # zones that sell it on demand, and whether it is sold there now; sorted
    spot: tuple[str, ...]  # zones that sell it on Spot, sorted
    sub_interfaces: int = 0  # for pods of CCE Turbo clusters
    max_rate_mbit: int = 0
    gpus: int = 0
    gpu_name: str = ""
    gpu_memory_mib: int = 0  # of one GPU

    @property
    def family(self) -> str:
        """The family, such as c9."""
        return self.name.split(".")[0]

    @property
    def size(self) -> str:
        """The size, such as xlarge."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""


def zone_statuses(text: str) -> dict[str, str]:
    """Return the status of each zone in `cond:operation:az`, such as `cn-north-4a(normal), cn-north-4b(sellout)`."""
    narrow = unicodedata.normalize("NFKC", text)  # full-width punctuation occurs
    return {zone: status.lower() for zone, status in _ZONE_STATUS.findall(narrow)}


def parse_flavor(entry: Mapping[str, Any], zones: Iterable[str]) -> Flavor | None:
    """Return the flavor of an entry of ListFlavors; None if CCE does not accept it, or it is not sold by the hour."""
    specs: Mapping[str, Any] = entry.get("os_extra_specs") or {}
    vcpus, memory = int(entry.get("vcpus") or 0), int(entry.get("ram") or 0)
    if vcpus < _MIN_VCPUS or memory < _MIN_MEMORY_MIB or str(specs.get("cond:operation:charge") or "") == "period":
        return None
    known = tuple(zones)
    overrides = zone_statuses(str(specs.get("cond:operation:az") or ""))
    default = str(specs.get("cond:operation:status") or "normal").lower()
    on_demand = {zone: overrides.get(zone, default) for zone in (*known, *overrides)}
    spot_overrides = zone_statuses(str(specs.get("cond:spot:operation:az") or ""))
    spot_default = str(specs.get("cond:spot:operation:status") or "abandon").lower()
    spot = {zone: spot_overrides.get(zone, spot_default) for zone in (*known, *spot_overrides)}
    count, name, gpu_memory = _gpus(specs)
    return Flavor(
        name=entry["name"],
        arch="arm64" if str(specs.get("ecs:instance_architecture") or "").lower() == "arm64" else "amd64",
        vcpus=vcpus,
        memory_mib=memory,
        # a state that is unknown here counts as sold, as in the published provider
        on_demand=tuple(
            (zone, status not in _NOT_SOLD) for zone, status in sorted(on_demand.items()) if status != "abandon"
        ),
        spot=tuple(zone for zone, status in sorted(spot.items()) if status in _SPOT_SOLD),
        sub_interfaces=_integer(specs.get("quota:sub_network_interface_max_num")),
        max_rate_mbit=_integer(specs.get("quota:max_rate")),
        gpus=count,
        gpu_name=name,
        gpu_memory_mib=gpu_memory,
    )


def _gpus(specs: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return number, name and memory in MiB of a flavor's GPUs, from `pci_passthrough:alias` (`nvidia-t4:2`) and `info:gpu:name`."""
    alias = str(specs.get("pci_passthrough:alias") or "")
    described = str(specs.get("info:gpu:name") or "")
    if not alias and not described:
        return 0, "", 0
    found = _COUNT_OF_ALIAS.search(alias)
    count = int(found.group(1)) if found else 1
    name = alias.partition(":")[0] or described
    memory = _GPU_MEMORY_GIB.search(described)
    return count, name, int(memory.group(1)) * 1024 if memory else 0


def _integer(value: Any) -> int:
    text = str(value or "").strip()
    return int(text) if text.isdigit() else 0


class FlavorReader:
    """Reads the flavors, zones and Spot stock of a region. Thread-safe."""

    def __init__(self, api: RestApi, settings: HuaweiSettings, clock: Clock) -> None:
        self._api = api
        self._settings = settings
        self._cache: TTLCache[Any, tuple[Flavor, ...]] = ttl_cache(clock, FLAVORS_TTL)
        self._stock: TTLCache[Any, Mapping[str, frozenset[str]]] = ttl_cache(clock, SPOT_STOCK_TTL)
        self._lock = Lock()

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def read(self) -> tuple[Flavor, ...]:
        """Return the flavors by name. Raises CloudProviderError."""
        zones = self._zones()
        entries = self._pages("ListFlavors", "cloudservers/flavors", "flavors", "ecs:cloudServerFlavors:get", {})
        found = {f.name: f for entry in entries if (f := parse_flavor(entry, zones)) is not None}
        _log.info("discovered instance types", extra={"count": len(found)})
        return tuple(found[name] for name in sorted(found))

    @cachedmethod(attrgetter("_stock"), lock=attrgetter("_lock"))
    def spot_stock(self, zones: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
        """Return the flavors with Spot stock by zone. Raises CloudProviderError."""
        return read_each(self._spot_stock_of, zones, in_parallel=self._settings.parallel_reads)

    def _zones(self) -> tuple[str, ...]:
        path = f"/v1/{self._settings.project_id}/availability-zones"
        with translated("ecs:cloudServers:list"):  # there is no action for zones
            answer = self._api(RestCall(service=ECS, operation="ListServerAzInfo", method="GET", path=path))
        return tuple(sorted(zone["availability_zone_id"] for zone in answer.get("availability_zones") or ()))

    def _spot_stock_of(self, zone: str) -> frozenset[str]:
        query = {"sell_mode": "spot", "availability_zone_id": zone}
        entries = self._pages(
            "ListFlavorSellPolicies",
            "cloudservers/flavor-sell-policies",
            "sell_policies",
            "ecs:cloudServerFlavors:get",
            query,
        )
        return frozenset(entry["flavor_id"] for entry in entries if entry.get("sell_status") == "available")

    def _pages(
        self, operation: str, resource: str, key: str, action: str, query: Mapping[str, str]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of all pages; the marker of a page is the id of the last entry before it."""
        path = f"/v1/{self._settings.project_id}/{resource}"

        def read(marker: Query) -> Any:
            query_of_page = {"limit": _PAGE, **query, **marker}
            call = RestCall(service=ECS, operation=operation, method="GET", path=path, query=query_of_page)
            with translated(action):
                return self._api(call).get(key) or ()

        for entries in pages(read, lambda entries: last_id(entries, of=_PAGE)):
            yield from entries
