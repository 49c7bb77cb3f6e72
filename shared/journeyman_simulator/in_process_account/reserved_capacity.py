"""Implements the in-process account's capacity reservations and placement groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import count
from typing import Any

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)

JSON = Mapping[str, Any]


class SimulatedReservation(Struct, kw_only=True, eq=False):
    """A capacity reservation for a number of instances of a type in a zone."""

    id: str
    instance_type: str
    zone: str
    total: int
    owner: str
    criteria: str = "targeted"
    kind: str = "default"  # or "capacity-block"
    state: str = "active"
    ends: datetime | None = None
    interruptible: bool = False
    tags: dict[str, str] = field(default_factory=dict)


class SimulatedPlacementGroup(Struct, kw_only=True, eq=False):
    """A placement group."""

    id: str
    name: str
    strategy: str = "cluster"
    state: str = "available"


class ReservedCapacity:
    """The capacity reservations and placement groups of an account.

    Args:
        account: The owner of new reservations.
        targets: Returns the reservation of each instance that is not terminated, or "" for an instance without one.
    """

    def __init__(self, account: str, targets: Callable[[], Iterable[str]]) -> None:
        self._account = account
        self._targets = targets
        self._serial = count(1)
        self.reservations: dict[str, SimulatedReservation] = {}
        self.groups: dict[str, SimulatedPlacementGroup] = {}  # by name

    def reserve(self, instance_type: str, zone: str, total: int, **more: Any) -> SimulatedReservation:
        """Create a capacity reservation."""
        id_ = f"cr-{next(self._serial):017x}"
        fields = {"owner": self._account, **more}
        self.reservations[id_] = SimulatedReservation(
            id=id_, instance_type=instance_type, zone=zone, total=total, **fields
        )
        return self.reservations[id_]

    def add_group(self, name: str, **more: Any) -> SimulatedPlacementGroup:
        """Create a placement group."""
        self.groups[name] = SimulatedPlacementGroup(id=f"pg-{next(self._serial):017x}", name=name, **more)
        return self.groups[name]

    def available(self, reservation: SimulatedReservation) -> int:
        """Return how many more instances the reservation has capacity for."""
        return reservation.total - sum(1 for id_ in self._targets() if id_ == reservation.id)

    def is_active(self, id_: str) -> bool:
        """Whether there is such a reservation, and it has not ended."""
        return id_ in self.reservations and self.reservations[id_].state == "active"

    def check_launch(self, data: JSON, instance_type: str, zone: str, number: int) -> None:
        """Raise ServiceError if the launch template's reservation or placement group does not admit the launch."""
        placement = data.get("Placement") or {}
        if placement.get("GroupName") or placement.get("GroupId"):
            self._require_groups([placement.get("GroupName")], [placement.get("GroupId")])
        if id_ := reservation_of(data):
            reservation = self.reservations.get(id_)
            if reservation is None:
                raise _no_such_reservation(id_)
            if (reservation.instance_type, reservation.zone) != (instance_type, zone):
                message = f"The capacity reservation '{id_}' is not for {instance_type} in {zone}."
                raise ServiceError("InvalidParameterValue", message)
            market = (data.get("InstanceMarketOptions") or {}).get("MarketType", "")
            if (reservation.kind == "capacity-block") != (market == "capacity-block"):
                raise ServiceError("InvalidParameterCombination", f"'{id_}' does not suit the market type '{market}'.")
            if reservation.state != "active" or self.available(reservation) < number:
                message = "The requested reservation does not have sufficient compatible and available capacity."
                raise ServiceError("ReservationCapacityExceeded", message)

    def operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        return {
            "DescribeCapacityReservations": ServiceOperation(
                self._describe_reservations, accepts=("CapacityReservationIds", "Filters", *PAGING)
            ),
            "DescribePlacementGroups": ServiceOperation(self._describe_groups, accepts=("GroupIds", "GroupNames")),
        }

    def _describe_reservations(self, request: ServiceRequest) -> dict[str, Any]:
        ids = request.get("CapacityReservationIds")
        if missing := [id_ for id_ in ids or () if id_ not in self.reservations]:
            raise _no_such_reservation(missing[0])
        known = [self.reservations[id_] for id_ in ids or self.reservations]
        found = selected(known, request.get("Filters", ()), _RESERVATION_READERS)
        return paged("CapacityReservations", [self._described(reservation) for reservation in found], request)

    def _described(self, reservation: SimulatedReservation) -> dict[str, Any]:
        return {
            "CapacityReservationId": reservation.id,
            "OwnerId": reservation.owner,
            "InstanceType": reservation.instance_type,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": reservation.zone,
            "Tenancy": "default",
            "TotalInstanceCount": reservation.total,
            "AvailableInstanceCount": self.available(reservation),
            "State": reservation.state,
            "InstanceMatchCriteria": reservation.criteria,
            "ReservationType": reservation.kind,
            "Interruptible": reservation.interruptible,
            "EndDateType": "limited" if reservation.ends else "unlimited",
            **({"EndDate": reservation.ends} if reservation.ends else {}),
            "Tags": to_pairs(reservation.tags),
        }

    def _describe_groups(self, request: ServiceRequest) -> dict[str, Any]:
        names, ids = request.get("GroupNames", ()), request.get("GroupIds", ())
        found = self._require_groups(names, ids) if names or ids else list(self.groups.values())
        return {
            "PlacementGroups": [
                {"GroupName": g.name, "GroupId": g.id, "Strategy": g.strategy, "State": g.state} for g in found
            ]
        }

    def _require_groups(self, names: Iterable[str | None], ids: Iterable[str | None]) -> list[SimulatedPlacementGroup]:
        by_id = {group.id: group for group in self.groups.values()}
        found = []
        for known, wanted in ((self.groups, names), (by_id, ids)):
            for key in filter(None, wanted):
                if key not in known:
                    raise ServiceError("InvalidPlacementGroup.Unknown", f"The Placement Group '{key}' is unknown.")
                found.append(known[key])
        return found


def reservation_of(data: JSON) -> str:
    """Return the id of the reservation that a launch template targets; empty if it targets none."""
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId", ""))


def _no_such_reservation(id_: str) -> ServiceError:
    return ServiceError("InvalidCapacityReservationId.NotFound", f"The Capacity Reservation ID '{id_}' does not exist.")


_RESERVATION_READERS = {
    "availability-zone": lambda reservation: [reservation.zone],
    "instance-match-criteria": lambda reservation: [reservation.criteria],
    "instance-type": lambda reservation: [reservation.instance_type],
    "owner-id": lambda reservation: [reservation.owner],
    "state": lambda reservation: [reservation.state],
    "tag": lambda reservation: tag_pairs(reservation.tags),
}
