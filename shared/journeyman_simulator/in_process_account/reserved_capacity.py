"""Implements the in-process account's capacity reservations and placement groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final, NamedTuple

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
_SPREAD_LIMIT: Final = 7  # instances in a zone
INTERRUPTIBLE: Final = "interruptible-capacity-reservation"
"""The market type, the reservation type of a fleet, and the lifecycle of instances on an interruptible reservation."""


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

    @property
    def market_and_target(self) -> tuple[str, str]:
        """Return the market type of launch templates for it, and the target capacity type of fleets."""
        if self.kind == "capacity-block":
            return "capacity-block", "capacity-block"
        return (INTERRUPTIBLE, "reserved-capacity") if self.interruptible else ("", "on-demand")


class SimulatedPlacementGroup(Struct, kw_only=True, eq=False):
    """A placement group."""

    id: str
    name: str
    strategy: str = "cluster"
    partitions: int = 0  # of the strategy "partition"
    state: str = "available"


class PlacedInstance(NamedTuple):
    """An instance that is not terminated: its launch template's data, and its zone."""

    data: JSON
    zone: str


class ReservedCapacity:
    """The capacity reservations and placement groups of an account.

    Args:
        account: The owner of new reservations.
        instances: Returns the instances that are not terminated.
    """

    def __init__(self, account: str, instances: Callable[[], Iterable[PlacedInstance]]) -> None:
        self._account = account
        self._instances = instances
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
        return reservation.total - sum(1 for i in self._instances() if reservation_of(i.data) == reservation.id)

    def is_active(self, id_: str) -> bool:
        """Whether there is such a reservation, and it has not ended."""
        return id_ in self.reservations and self.reservations[id_].state == "active"

    def check_launch(self, data: JSON, instance_type: str, zone: str, number: int, target: str) -> None:
        """Raise ServiceError if the launch template's reservation or placement group does not admit the launch.

        `target` is the fleet's DefaultTargetCapacityType.
        """
        if group := self._group_of(data):
            self._check_group(group, data, zone, number)
        if id_ := reservation_of(data):
            reservation = self.reservations.get(id_)
            if reservation is None:
                raise _no_such_reservation(id_)
            if (reservation.instance_type, reservation.zone) != (instance_type, zone):
                message = f"The capacity reservation '{id_}' is not for {instance_type} in {zone}."
                raise ServiceError("InvalidParameterValue", message)
            market = (data.get("InstanceMarketOptions") or {}).get("MarketType", "")
            if (market, target) != reservation.market_and_target:
                message = f"'{id_}' does not suit the market type '{market}' and the target capacity type '{target}'."
                raise ServiceError("InvalidParameterCombination", message)
            if reservation.state != "active" or self.available(reservation) < number:
                message = "The requested reservation does not have sufficient compatible and available capacity."
                raise ServiceError("ReservationCapacityExceeded", message)

    def placed(self, data: JSON) -> JSON:
        """Return a launch template's data with the partition in which EC2 puts the instance: the emptiest, if none is given."""
        group, placement = self._group_of(data), data.get("Placement") or {}
        if group is None or not group.partitions or placement.get("PartitionNumber"):
            return data
        used = Counter(i.data["Placement"].get("PartitionNumber") for i in self._members(group))
        emptiest = min(range(1, group.partitions + 1), key=lambda number: (used[number], number))
        return {**data, "Placement": {**placement, "PartitionNumber": emptiest}}

    def _group_of(self, data: JSON) -> SimulatedPlacementGroup | None:
        placement = data.get("Placement") or {}
        found = self._require_groups([placement.get("GroupName")], [placement.get("GroupId")])
        return found[0] if found else None

    def _members(self, group: SimulatedPlacementGroup) -> Iterator[PlacedInstance]:
        for instance in self._instances():
            placement = instance.data.get("Placement") or {}
            if group.id == placement.get("GroupId") or group.name == placement.get("GroupName"):
                yield instance

    def _check_group(self, group: SimulatedPlacementGroup, data: JSON, zone: str, number: int) -> None:
        """Restates: EC2 user guide, "Placement strategies"; Karpenter has the message of the limit."""
        partition = int((data.get("Placement") or {}).get("PartitionNumber") or 0)
        if partition > group.partitions:
            message = f"The partition number '{partition}' is invalid for the placement group '{group.name}'."
            raise ServiceError("InvalidParameterValue", message)
        if group.strategy == "spread" and sum(i.zone == zone for i in self._members(group)) + number > _SPREAD_LIMIT:
            message = (
                "You've reached the limit of instances in this spread placement group. A spread placement group can have "
                "up to seven instances per Availability Zone."
            )
            raise ServiceError("InsufficientInstanceCapacity", message)

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
                {
                    "GroupName": g.name,
                    "GroupId": g.id,
                    "Strategy": g.strategy,
                    "State": g.state,
                    **({"PartitionCount": g.partitions} if g.partitions else {}),
                }
                for g in found
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
