"""Choose a launch's subnet in each zone: the one with most free addresses, less those of launches in flight.

Restates: karpenter-provider-aws pkg/providers/subnet/subnet.go (`ZonalSubnetsForLaunch`, `UpdateInflightIPs`,
`UpdateICEdSubnet`).
Differs: free addresses are read only where a zone has a choice of subnets, and in the run that launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.caching import ttl_cache
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import InstanceType
from journeyman.ports import Clock

SubnetsByZone = Mapping[str, tuple[str, ...]]
"""Subnet ids by zone."""

_TTL: Final = timedelta(minutes=1)  # cache.go `DefaultTTL`, for descriptions


class ChosenSubnet(Struct, frozen=True, kw_only=True):
    """A zone's subnet for one launch, in which `reserved` addresses are reserved until the cloud responds."""

    id: str
    zone: str
    reserved: int


class FreeAddresses:
    """Tracks free addresses: the number that the cloud reported, less the expected use of later launches. Thread-safe.

    Args:
        describe: Returns the free addresses of subnets by id. It may raise CloudProviderError.
        clock: Decides when they are read again.
    """

    def __init__(self, describe: Callable[[tuple[str, ...]], Mapping[str, int]], clock: Clock) -> None:
        self._describe = describe
        self._free_cache: TTLCache[Any, Mapping[str, int]] = ttl_cache(clock, _TTL)
        self._reserved: Counter[str] = Counter()
        self._exhausted: set[str] = set()
        self._lock = Lock()

    def choose(
        self,
        subnets: SubnetsByZone,
        types: Collection[InstanceType],
        capacity_type: str,
        *,
        full: Collection[str] = (),
    ) -> dict[str, ChosenSubnet]:
        """Return one subnet per zone, after reserving the addresses that the launch is expected to use.

        Args:
            subnets: The subnets to choose from.
            types: The instance types of the launch.
            capacity_type: Its capacity type.
            full: Subnets that had no free address a short while ago, also for other processes; they come last.
        """
        free = self._free(subnets)
        with self._lock:
            chosen: dict[str, ChosenSubnet] = {}
            for zone, ids in subnets.items():
                best = max(
                    ids, key=lambda id_: (self._has_room(id_, full), free.get(id_, 0) - self._reserved[id_], id_)
                )
                chosen[zone] = ChosenSubnet(id=best, zone=zone, reserved=smallest_pods(types, zone, capacity_type))
                self._reserved[best] += chosen[zone].reserved
            return chosen

    def release_unused(self, chosen: Iterable[ChosenSubnet], used: str | None) -> None:
        """Release the reserved addresses, except in the subnet that the instance uses."""
        with self._lock:
            for subnet in chosen:
                if subnet.id != used:
                    self._reserved[subnet.id] -= subnet.reserved

    def mark_exhausted(self, subnet_id: str) -> None:
        """Record that the subnet has no free address; `choose` then takes it last, until the next description."""
        with self._lock:
            self._exhausted.add(subnet_id)

    def is_zone_exhausted(self, subnets: SubnetsByZone, zone: str, *, full: Collection[str] = ()) -> bool:
        """Whether the cloud reported for every subnet of the zone that it has no free address, or `full` has it."""
        with self._lock:
            return not any(self._has_room(id_, full) for id_ in subnets.get(zone, ()))

    def _has_room(self, subnet_id: str, full: Collection[str]) -> bool:
        return subnet_id not in self._exhausted and subnet_id not in full

    def _free(self, subnets: SubnetsByZone) -> Mapping[str, int]:
        """Return free addresses by subnet; empty, without a request, if no zone has two subnets."""
        if all(len(ids) == 1 for ids in subnets.values()):
            return {}
        return self._read(tuple(sorted(id_ for group in subnets.values() for id_ in group)))

    @cachedmethod(attrgetter("_free_cache"), lock=attrgetter("_lock"))
    def _read(self, ids: tuple[str, ...]) -> Mapping[str, int]:
        """Return free addresses from the cloud, and discard the reservations in these subnets."""
        free = self._describe(ids)
        with self._lock:
            for id_ in ids:
                self._reserved.pop(id_, None)
                self._exhausted.discard(id_)
        return free


def subnets_by_zone(subnets: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the ids of (zone, id) pairs by zone, all sorted."""
    by_zone: dict[str, tuple[str, ...]] = {}
    for zone, id_ in sorted(subnets):
        by_zone[zone] = (*by_zone.get(zone, ()), id_)
    return by_zone


def smallest_pods(types: Iterable[InstanceType], zone: str, capacity_type: str) -> int:
    """Return the least number of addresses that a launch uses in a zone: the fewest pods among its types."""
    counts = (
        t.capacity.get(PODS, 0)
        for t in types
        if any(o.available and o.zone == zone and o.capacity_type == capacity_type for o in t.offerings)
    )
    return min(counts, default=0)
