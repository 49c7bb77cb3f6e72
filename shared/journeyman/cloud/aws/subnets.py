"""Choose a launch's subnet in each zone: the one with most free addresses, less those of launches in flight.

Restates: karpenter-provider-aws pkg/providers/subnet/subnet.go (`ZonalSubnetsForLaunch`, `UpdateInflightIPs`,
`UpdateICEdSubnet`).
Differs: free addresses are read only where a zone has a choice of subnets, and in the run that launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.aws.aws_errors import translated
from journeyman.cloud.aws.aws_settings import Clients, ttl_cache
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import InstanceType
from journeyman.ports import Clock

_TTL: Final = timedelta(minutes=1)  # cache.go `DefaultTTL`, for descriptions


class ChosenSubnet(Struct, frozen=True, kw_only=True):
    """A zone's subnet for one launch, in which `reserved` addresses are reserved until the fleet responds."""

    id: str
    zone: str
    reserved: int


class SubnetProvider:
    """Tracks free addresses: the number that EC2 reported, less the expected use of later launches. Thread-safe."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._free_cache: TTLCache[Any, Mapping[str, int]] = ttl_cache(clock, _TTL)
        self._reserved: Counter[str] = Counter()
        self._exhausted: set[str] = set()
        self._lock = Lock()

    def choose(
        self, node_class: NodeClassView, types: Collection[InstanceType], capacity_type: str
    ) -> dict[str, ChosenSubnet]:
        """Return one subnet per zone of the NodeClass, after reserving the addresses that the launch is expected to use."""
        free = self._free(node_class)
        with self._lock:
            chosen: dict[str, ChosenSubnet] = {}
            for zone, ids in subnets_by_zone(node_class).items():
                best = max(
                    ids, key=lambda id_: (id_ not in self._exhausted, free.get(id_, 0) - self._reserved[id_], id_)
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
        """Record that the subnet has no free address; `choose` then takes it last, until the next DescribeSubnets."""
        with self._lock:
            self._exhausted.add(subnet_id)

    def is_zone_exhausted(self, node_class: NodeClassView, zone: str) -> bool:
        """Whether EC2 reported for every subnet of the zone that it has no free address."""
        with self._lock:
            return all(id_ in self._exhausted for id_ in subnets_by_zone(node_class).get(zone, ()))

    def _free(self, node_class: NodeClassView) -> Mapping[str, int]:
        """Return free addresses by subnet; empty, without a call to AWS, if no zone has two subnets."""
        by_zone = subnets_by_zone(node_class)
        if all(len(ids) == 1 for ids in by_zone.values()):
            return {}
        ids = tuple(sorted(id_ for group in by_zone.values() for id_ in group))
        return self._describe(ids)

    @cachedmethod(attrgetter("_free_cache"), lock=attrgetter("_lock"))
    def _describe(self, ids: tuple[str, ...]) -> Mapping[str, int]:
        """Return free addresses from EC2, and discard the reservations in these subnets."""
        free: dict[str, int] = {}
        filters: list[dict[str, Any]] = [{"Name": "subnet-id", "Values": list(ids)}]
        with translated("ec2:DescribeSubnets"):
            for page in self._clients.ec2.get_paginator("describe_subnets").paginate(Filters=filters):
                free.update((s["SubnetId"], s["AvailableIpAddressCount"]) for s in page["Subnets"])
        with self._lock:
            for id_ in ids:
                self._reserved.pop(id_, None)
                self._exhausted.discard(id_)
        return free


def subnets_by_zone(node_class: NodeClassView) -> dict[str, tuple[str, ...]]:
    """Return the subnet ids in the NodeClass's status by zone, zones by name."""
    by_zone: dict[str, tuple[str, ...]] = {}
    for subnet in sorted(node_class.subnets, key=lambda s: (str(s["zone"]), str(s["id"]))):
        by_zone[subnet["zone"]] = (*by_zone.get(subnet["zone"], ()), subnet["id"])
    return by_zone


def smallest_pods(types: Iterable[InstanceType], zone: str, capacity_type: str) -> int:
    """Return the least number of addresses that a launch uses in a zone: the fewest pods among its types."""
    counts = (
        t.capacity.get(PODS, 0)
        for t in types
        if any(o.available and o.zone == zone and o.capacity_type == capacity_type for o in t.offerings)
    )
    return min(counts, default=0)
