"""Stores the catalogue as columns, one row per offering, and the remaining reserved capacity.

A label is stored per instance type, or per offering where offerings define it (zone, capacity type), as an index into
its few distinct requirements. A requirement is compared once with each distinct one; the result then applies to
thousands of offerings.

Restates: karpenter pkg/cloudprovider/types.go `Offerings`; pkg/controllers/provisioning/scheduling/
reservationmanager.go `ReservationManager`.
Differs: a NodeClaim holds one reservation, not one slot in each that is compatible; if every reservation is
full, pods use spot or on-demand in the same pass, where Karpenter's wait for the next pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue, InstanceType, Offering, label_requirements
from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct
from journeyman.core.scheduling.requirements import Requirement, Requirements, requirement


class LabelColumn(Struct, frozen=True, eq=False):
    """One label's requirement per entry: `distinct[codes[i]]`, None where the label is not defined."""

    codes: Ints
    distinct: tuple[Requirement | None, ...]

    def meets(self, wanted: Requirement) -> Bools:
        """Return which entries meet the requirement; an entry without the label meets every requirement."""
        found: Bools = np.array([d is None or d.admits(wanted) for d in self.distinct], dtype=bool)[self.codes]
        return found


class OfferingTable(Struct, eq=False, dict=True):
    """All offerings of a list of instance types. Results are cached.

    `row_type[r]` is the index into `types` of row r; rows follow the types' order. `by_price` are the rows by price,
    then type name. `row_reservation[r]` is the reservation that row r draws on, an index into `reservations` (by id),
    or -1; `reserved[n]` is the remaining node count of reservation n (the lowest that its offerings report).
    `type_columns` have an entry per type, `row_columns` (labels that offerings define) an entry per row.
    """

    types: tuple[InstanceType, ...]
    row_type: Ints
    prices: Floats
    by_price: Ints
    available: Bools
    row_reservation: Ints
    reservations: tuple[str, ...]
    reserved: tuple[int, ...]
    type_columns: Mapping[str, LabelColumn]
    row_columns: Mapping[str, LabelColumn]
    _amounts: dict[tuple[str, bool], Ints] = field(default_factory=dict)
    _values: dict[str, Bools] = field(default_factory=dict)

    @cached_property
    def labels(self) -> frozenset[str]:
        """The labels that types or offerings define."""
        return frozenset(self.type_columns) | frozenset(self.row_columns)

    def types_meeting(self, required: Mapping[str, Requirement]) -> Bools:
        """Return by type whether its own requirements meet all of these; offerings are ignored."""
        verdict: Bools = np.ones(len(self.types), dtype=bool)
        for key, wanted in required.items():
            column = self.type_columns.get(key)
            if column is not None:
                verdict &= column.meets(wanted)
        return verdict

    def rows_meeting(self, required: Mapping[str, Requirement]) -> Bools:
        """Return by row whether type and offering together meet all requirements; availability is ignored."""
        verdict: Bools = self.types_meeting(required)[self.row_type]
        for key, wanted in required.items():
            column = self.row_columns.get(key)
            if column is not None:
                verdict &= column.meets(wanted)
        return verdict

    def unmet(self, required: Mapping[str, Requirement]) -> str:
        """Return as text, by key, the requirements that no row meets; empty if only their combination is unmet."""
        known = (wanted for key, wanted in sorted(required.items()) if key in self.labels)  # rows meet all others
        alone = (wanted for wanted in known if not self.rows_meeting({wanted.key: wanted}).any())
        return " and ".join(map(str, alone))

    def row_requirements(self, key: str) -> tuple[Ints, tuple[Requirement | None, ...]]:
        """Return a label's code per row, and the requirement per code; None if neither offering nor type defines it."""
        column = self.row_columns.get(key)
        if column is not None:
            return column.codes, column.distinct
        column = self.type_columns.get(key)
        if column is None:
            return np.zeros(len(self.row_type), dtype=np.int64), (None,)
        return column.codes[self.row_type], column.distinct

    def by_labels(self, keys: Sequence[str], rows: Ints) -> Iterator[tuple[tuple[Requirement | None, ...], Ints]]:
        """Group rows by their type's and offering's requirements on the labels; yield (requirements, rows)."""
        if not len(rows):
            return
        columns = [self.row_requirements(key) for key in keys]
        order, starts = np.arange(len(rows)), np.zeros(1, dtype=np.int64)
        if columns:
            order = np.lexsort([column[rows] for column, _ in reversed(columns)])
            sorted_codes = np.stack([column[rows[order]] for column, _ in columns])
            changes = np.logical_or.reduce(sorted_codes[:, 1:] != sorted_codes[:, :-1], axis=0)
            starts = np.concatenate((starts, np.flatnonzero(changes) + 1))
        for where in np.split(rows[order], starts[1:]):
            yield tuple(entries[int(column[where[0]])] for column, entries in columns), where

    def row_values(self, key: str) -> tuple[Ints, tuple[str | None, ...]]:
        """Return a label's code per row, and the value per code; None if the row leaves it open."""
        codes, distinct_requirements = self.row_requirements(key)
        return codes, tuple(r.single if r is not None else None for r in distinct_requirements)

    def settles(self, key: str) -> bool:
        """Whether no row leaves the label open."""
        codes, values = self.row_values(key)
        return all(values[code] is not None for code in distinct(codes).tolist())

    def type_values(self, key: str) -> Bools:
        """Return by type and value of a label whether the type lists it. Callers must not change the array."""
        if key not in self._values:
            column = self.type_columns.get(key)
            requirements = column.distinct if column is not None else (None,)
            listed = [r.values if r is not None and not r.complement else frozenset() for r in requirements]
            values = sorted(frozenset().union(*listed))
            table = np.array([[value in own for value in values] for own in listed], dtype=bool)
            codes = column.codes if column is not None else np.zeros(len(self.types), dtype=np.int64)
            self._values[key] = table.reshape(len(listed), len(values))[codes]
        return self._values[key]

    def amounts(self, resource: str, *, allocatable: bool) -> Ints:
        """Return a resource by type: its allocatable or its capacity. Callers must not change the array."""
        key = (resource, allocatable)
        if key not in self._amounts:
            found = np.array([t.capacity.get(resource, 0) for t in self.types], dtype=np.int64)
            if allocatable:
                found -= np.array([t.overhead.get(resource, 0) for t in self.types], dtype=np.int64)
            self._amounts[key] = np.maximum(found, 0)
        return self._amounts[key]


_OFFERING_ORDER: Final = attrgetter("zone", "capacity_type", "reservation_id", "price")


@lru_cache(maxsize=2)
def offering_tables(catalogue: Catalogue) -> Mapping[str, OfferingTable]:
    """Return a catalogue's tables by NodePool; cached per catalogue. NodePools with the same types share one."""
    distinct_tables: list[OfferingTable] = []
    tables: dict[str, OfferingTable] = {}
    for name, types in catalogue.by_node_pool.items():
        table = next((other for other in distinct_tables if other.types is types), None)
        if table is None:
            table = _table(types)
            distinct_tables.append(table)
        tables[name] = table
    return tables


def _table(types: tuple[InstanceType, ...]) -> OfferingTable:
    offerings = [offering for t in types for offering in sorted(t.offerings, key=_OFFERING_ORDER)]
    row_type = np.repeat(np.arange(len(types)), [len(t.offerings) for t in types])
    prices = np.array([o.price for o in offerings], dtype=np.float64)
    row_reservation, reserved = _reserved(offerings)
    rank = np.empty(len(types), dtype=np.int64)
    rank[sorted(range(len(types)), key=lambda index: types[index].name)] = np.arange(len(types))
    entries = [o.requirements or label_requirements(zone=o.zone, capacity_type=o.capacity_type) for o in offerings]
    return OfferingTable(
        types=types,
        row_type=row_type,
        prices=prices,
        by_price=np.lexsort((rank[row_type], prices)),
        available=np.array([o.available for o in offerings], dtype=bool),
        row_reservation=row_reservation,
        reservations=tuple(reserved),
        reserved=tuple(reserved.values()),
        type_columns=_columns([t.requirements for t in types]),
        row_columns=_shared_columns(entries),
    )


def _reserved(offerings: Sequence[Offering]) -> tuple[Ints, dict[str, int]]:
    """Return by offering the index of its reservation or -1, and by reservation id its lowest reported node count."""
    rows: Ints = np.full(len(offerings), -1, dtype=np.int64)
    names = [offering.reservation_id for offering in offerings]
    if not any(names):
        return rows, {}
    left: dict[str, int] = {}
    for name, offering in zip(names, offerings, strict=True):
        if name:
            left[name] = min(offering.reservation_capacity, left.get(name, offering.reservation_capacity))
    left = dict(sorted(left.items()))
    number = {"": -1} | {name: index for index, name in enumerate(left)}
    rows[:] = [number[name] for name in names]
    return rows, left


def _shared_columns(entries: Sequence[tuple[NodeSelectorRequirement, ...]]) -> dict[str, LabelColumn]:
    """Return the same as `_columns`; faster where most entries are equal."""
    kinds: dict[tuple[NodeSelectorRequirement, ...], int] = {}
    which = np.array([kinds.setdefault(entry, len(kinds)) for entry in entries], dtype=np.int64)
    return {key: LabelColumn(column.codes[which], column.distinct) for key, column in _columns(list(kinds)).items()}


def _columns(entries: Sequence[Iterable[NodeSelectorRequirement]]) -> dict[str, LabelColumn]:
    """Return a column per key; builds each distinct requirement once."""
    codes: dict[str, list[int]] = {}
    seen: dict[str, dict[tuple[str, tuple[str, ...]], int]] = {}
    for index, selectors in enumerate(entries):
        for selector in selectors:
            key = selector.key
            column = codes.get(key)
            if column is None:
                column = codes[key] = [0] * len(entries)
                seen[key] = {}
            known = seen[key]
            column[index] = known.setdefault((selector.operator, selector.values), len(known) + 1)
    return {
        key: LabelColumn(
            np.array(column, dtype=np.int64),
            (None, *(requirement(key, operator, values) for operator, values in seen[key])),
        )
        for key, column in codes.items()
    }


class Reservations(Struct, eq=False):
    """The remaining node count of each reservation, by id; planning a node reduces it.

    Each attempt works on a copy, so nothing is ever given back.

    Restates: karpenter pkg/controllers/provisioning/scheduling/reservationmanager.go `Reserve`, `RemainingCapacity`.
    """

    left: dict[str, int]

    @classmethod
    def of(cls, tables: Iterable[OfferingTable], claims: Iterable[NodeClaim]) -> Reservations:
        """Return the (lowest) node counts that offerings report, less NodeClaims not launched yet.

        The cloud provider's count already excludes launched NodeClaims.
        """
        left: dict[str, int] = {}
        for table in tables:
            for name, count in zip(table.reservations, table.reserved, strict=True):
                left[name] = min(count, left.get(name, count))
        waiting = (
            (c for c in claims if not c.status.provider_id and c.metadata.deletion_timestamp is None) if left else ()
        )
        for entry in (entry for claim in waiting for entry in claim.spec.requirements):
            for name in entry.values if entry.key == labels.RESERVATION_ID and entry.operator == "In" else ():
                if name in left:
                    left[name] = max(left[name] - 1, 0)
        return cls(left)

    def copy(self) -> Reservations:
        """Return an independent copy."""
        return Reservations(dict(self.left))

    def take(self, name: str, count: int) -> int:
        """Take up to `count` nodes from a reservation; return the number taken."""
        taken = min(count, self.left.get(name, 0))
        self.left[name] = self.left.get(name, 0) - taken
        return taken


def on_reservation(requirements: Requirements, reservation: str) -> Requirements:
    """Return the requirements, restricted to the reserved capacity of this reservation."""
    return requirements & {
        labels.CAPACITY_TYPE: requirement(labels.CAPACITY_TYPE, "In", (labels.RESERVED,)),
        labels.RESERVATION_ID: requirement(labels.RESERVATION_ID, "In", (reservation,)),
    }


def reservation_of(requirements: Requirements) -> str:
    """Return the id of the reservation that a node with these requirements uses; empty if none."""
    capacity_type = requirements.get(labels.CAPACITY_TYPE)
    reservation = requirements.get(labels.RESERVATION_ID)
    if capacity_type is None or reservation is None or capacity_type.single != labels.RESERVED:
        return ""
    return reservation.single or ""
