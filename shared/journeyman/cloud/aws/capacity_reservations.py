"""Find the capacity reservations that a NodeClass selects, count their free capacity, and offer it.

A reserved offering costs next to nothing, since the reservation is paid for, so that it is used first. A reservation's free
capacity is read from EC2 every minute, less the launches since.

Restates: karpenter-provider-aws pkg/providers/capacityreservation/provider.go, pkg/controllers/nodeclass/capacityreservation.go,
pkg/providers/instancetype/offering/base_resolver.go.
Differs: counts are read every minute, not every day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from cachetools.keys import hashkey
from msgspec.structs import replace

from journeyman.cloud.aws.aws_errors import error_code, translated
from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.instance_type_labels import RESERVATION_LABELS, ZONE_ID
from journeyman.cloud.aws.network_discovery import tag_filters
from journeyman.cloud.aws.nodeclass_view import NodeClassView
from journeyman.cloud.caching import ttl_cache
from journeyman.cloud.type_requirements import requirement
from journeyman.core.api import labels
from journeyman.core.api.conditions import format_time
from journeyman.core.api.ec2nodeclass_selectors import CapacityReservationSelectorTerm
from journeyman.core.api.ec2nodeclass_status import CapacityReservation
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import InstanceType, Offering
from journeyman.errors import CloudProviderError
from journeyman.ports import JSON, Clock

CAPACITY_BLOCK: Final = "capacity-block"
_TTL: Final = timedelta(minutes=1)  # cache.go `DefaultTTL`, for descriptions
_EXPIRES_BEFORE_END: Final = timedelta(minutes=40)  # EC2 terminates instances 30 minutes before a block ends
INTERRUPTIBLE: Final = "interruptible-capacity-reservation"
_PRICE_DIVISOR: Final = 10_000_000  # base_resolver.go: still ordered by the on-demand price
_ORDER_SHARE: Final = 1e-6
"""Of equal price, default reservations are used first, then capacity blocks, then those that EC2 may interrupt (filter.go
`CapacityReservationTypeFilter`): each kind costs so much more than the one before, which changes no other order."""
_NOT_FOUND: Final = "InvalidCapacityReservationId.NotFound"
_ACTIVE: Final = (("state", ("active",)),)


class CapacityReservationProvider:
    """The capacity reservations of one region. Thread-safe; caches descriptions for a minute."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._cache: TTLCache[Any, tuple[JSON, ...]] = ttl_cache(clock, _TTL)
        self._counts: TTLCache[Any, Mapping[str, int]] = ttl_cache(clock, _TTL)
        self._launched: Counter[str] = Counter()
        self._lock = Lock()

    def find(self, node_class: NodeClassView, now: datetime) -> list[dict[str, Any]]:
        """Return the entries of `status.capacityReservations`, by id. Raises CloudProviderError."""
        found: dict[str, JSON] = {}
        for term in node_class.spec.capacity_reservation_selector_terms:
            found.update((r["CapacityReservationId"], r) for r in self._select(term) if r["State"] == "active")
        return [_status_entry(found[id_], now) for id_ in sorted(found)]

    def free(self, node_class: NodeClassView) -> Mapping[str, int]:
        """Return how many more instances each reservation in the NodeClass's status has capacity for. Raises CloudProviderError."""
        ids = tuple(sorted(r.id for r in node_class.status.capacity_reservations))
        if not ids:
            return {}
        counts = self._read_counts(ids)
        with self._lock:
            return {id_: max(count - self._launched[id_], 0) for id_, count in counts.items()}

    def record_launch(self, reservation_id: str) -> None:
        """Count a launch until EC2's count contains it."""
        with self._lock:
            self._launched[reservation_id] += 1

    @cachedmethod(attrgetter("_cache"), key=lambda _, term: hashkey(term.model_dump_json()), lock=attrgetter("_lock"))
    def _select(self, term: CapacityReservationSelectorTerm) -> tuple[JSON, ...]:
        if term.id:
            return self._by_id(term.id)
        named = (("owner-id", term.owner_id), ("instance-match-criteria", term.instance_match_criteria))
        filters = tuple((name, (value,)) for name, value in named if value)
        every = (*_ACTIVE, *filters, *tag_filters(term.tags))
        return tuple(self._read(Filters=[{"Name": name, "Values": list(values)} for name, values in every]))

    def _by_id(self, id_: str) -> tuple[JSON, ...]:
        """Return the reservation; none if it does not exist."""
        try:
            return tuple(self._read(CapacityReservationIds=[id_]))
        except CloudProviderError as error:
            if error_code(error) != _NOT_FOUND:
                raise
            return ()

    @cachedmethod(attrgetter("_counts"), lock=attrgetter("_lock"))
    def _read_counts(self, ids: tuple[str, ...]) -> Mapping[str, int]:
        """Return EC2's counts of reservations that still exist, and forget the launches that they contain."""
        existing = {r["CapacityReservationId"]: r for id_ in ids for r in self._by_id(id_)}
        with self._lock:
            for id_ in ids:
                self._launched.pop(id_, None)
        return {id_: int(r["AvailableInstanceCount"]) if r["State"] == "active" else 0 for id_, r in existing.items()}

    def _read(self, **parameters: Any) -> Iterator[JSON]:
        pages = self._clients.ec2.get_paginator("describe_capacity_reservations")
        with translated("ec2:DescribeCapacityReservations"):
            for page in pages.paginate(**parameters):
                yield from page["CapacityReservations"]


def _status_entry(reservation: JSON, now: datetime) -> dict[str, Any]:
    kind, ends = reservation.get("ReservationType", "default"), reservation.get("EndDate")
    is_expiring = kind == CAPACITY_BLOCK and ends is not None and ends - now <= _EXPIRES_BEFORE_END
    return {
        "availabilityZone": reservation["AvailabilityZone"],
        **({"endTime": format_time(ends)} if ends is not None else {}),
        "id": reservation["CapacityReservationId"],
        "instanceMatchCriteria": reservation["InstanceMatchCriteria"],
        "instanceType": reservation["InstanceType"],
        "interruptible": bool(reservation.get("Interruptible")),
        "ownerID": reservation["OwnerId"],
        "reservationType": kind,
        "state": "expiring" if is_expiring else "active",
    }


def with_reserved_offerings(
    types: tuple[InstanceType, ...], node_class: NodeClassView, free: Mapping[str, int]
) -> tuple[InstanceType, ...]:
    """Return the types with an offering for each reservation in the NodeClass's status that has a subnet in its zone.

    Args:
        types: The NodeClass's instance types, without reserved offerings.
        node_class: The NodeClass.
        free: How many more instances each reservation has capacity for.
    """
    by_type: dict[str, list[CapacityReservation]] = {}
    for reservation in node_class.status.capacity_reservations:
        if reservation.availability_zone in node_class.zone_ids:
            by_type.setdefault(reservation.instance_type, []).append(reservation)
    if not by_type:
        return types
    return tuple(_with_reservations(t, by_type[t.name], node_class, free) if t.name in by_type else t for t in types)


def _with_reservations(
    instance_type: InstanceType,
    reservations: Iterable[CapacityReservation],
    node_class: NodeClassView,
    free: Mapping[str, int],
) -> InstanceType:
    """Return the type with reserved offerings; unchanged if its on-demand price in their zones is unknown."""
    on_demand = {o.zone: o for o in instance_type.offerings if o.capacity_type == labels.ON_DEMAND}
    offerings = [
        _offering(reservation, on_demand[zone], node_class, free.get(reservation.id, 0))
        for reservation in sorted(reservations, key=lambda r: r.id)
        if (zone := reservation.availability_zone) in on_demand
    ]
    if not offerings:
        return instance_type
    offered = {r.key: set(r.values) for offering in offerings for r in offering.requirements}
    for offering in offerings:
        for r in offering.requirements:
            offered[r.key] |= set(r.values)
    widened = tuple(_widened(r, offered) for r in instance_type.requirements)
    return replace(instance_type, offerings=(*instance_type.offerings, *offerings), requirements=widened)


def _widened(own: NodeSelectorRequirement, offered: Mapping[str, set[str]]) -> NodeSelectorRequirement:
    """Return a type's requirement with the values that its reserved offerings add: capacity type and reservation labels."""
    if own.key not in (labels.CAPACITY_TYPE, *RESERVATION_LABELS):
        return own
    return requirement(own.key, tuple(sorted({*own.values, *offered[own.key]})))


def market_of(reservation: CapacityReservation) -> str:
    """Return EC2's market type for launches on a reservation, as in the NodeClass's status; empty for on-demand."""
    if reservation.reservation_type == CAPACITY_BLOCK:
        return CAPACITY_BLOCK
    return INTERRUPTIBLE if reservation.interruptible else ""


def _order(reservation: CapacityReservation) -> int:
    return ("", CAPACITY_BLOCK, INTERRUPTIBLE).index(market_of(reservation))


def _offering(reservation: CapacityReservation, on_demand: Offering, node_class: NodeClassView, free: int) -> Offering:
    zone = reservation.availability_zone
    expiring = "" if reservation.state == "active" else "the capacity block ends soon"
    interruptible = "true" if reservation.interruptible else "false"
    reason = on_demand.unavailable_reason or expiring or ("" if free else "the capacity reservation is used up")
    values = {
        labels.ZONE: zone,
        labels.CAPACITY_TYPE: labels.RESERVED,
        ZONE_ID: node_class.zone_ids.get(zone, ""),
        **dict(zip(RESERVATION_LABELS, (reservation.id, reservation.reservation_type, interruptible), strict=True)),
    }
    return Offering(
        zone=zone,
        capacity_type=labels.RESERVED,
        price=on_demand.price / _PRICE_DIVISOR * (1 + _ORDER_SHARE * _order(reservation)),
        available=not reason,
        unavailable_reason=reason,
        requirements=tuple(requirement(key, (value,)) for key, value in values.items() if value),
        reservation_id=reservation.id,
        reservation_capacity=free,
    )
