"""What a NodePool may launch: a row for every available offering of its instance types, cheapest first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue, InstanceType, Offering
from journeyman.core.scheduling.verify.kinds import Kind
from journeyman.core.scheduling.verify.matching import is_met, normalized, untolerated
from journeyman.core.scheduling.verify.ports import Port
from journeyman.core.scheduling.verify.possible import Column, Possibilities, Rows, Values

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

Columns = dict[str, dict[Values, Rows]]
K = TypeVar("K")


class Overhead(Struct, frozen=True, eq=False):
    """What the DaemonSets of these rows' nodes take."""

    rows: Rows
    requests: Mapping[str, int]
    ports: tuple[Port, ...]


class Market:
    """The available offerings of a list of instance types, as rows, and how large they are."""

    def __init__(self, types: Iterable[InstanceType]) -> None:
        found = [(t, o) for t in types for o in t.offerings if o.available]
        found.sort(key=lambda row: row[1].price)
        self.rows: Sequence[tuple[InstanceType, Offering]] = found
        self.types = {t.name: t for t, _ in found}
        self.by_type = _grouped(t.name for t, _ in found)
        self.by_offering = _grouped((t.name, o.zone, o.capacity_type) for t, o in found)
        self.columns = self._columns()
        self.reserved = _grouped(o.reservation_id for _, o in found)
        self.reserved.pop("", None)
        self.reservation_room: dict[str, int] = {}  # how many more nodes, by the offering that says least
        for _, offering in found:
            if offering.reservation_id:
                room = self.reservation_room.get(offering.reservation_id, offering.reservation_capacity)
                self.reservation_room[offering.reservation_id] = min(room, offering.reservation_capacity)
        self._allocatable: dict[str, _Sizes] = {}
        self._capacity: dict[str, _Sizes] = {}

    @property
    def everything(self) -> Rows:
        """All rows."""
        return (1 << len(self.rows)) - 1

    def _columns(self) -> Columns:
        """Labels by key; what an offering says goes before what its type says, which is why it is written last."""
        columns: Columns = {}
        for name, instance_type in self.types.items():
            for requirement in instance_type.requirements:
                _write(columns, requirement, self.by_type[name])
        offered: Columns = {}
        for requirements, rows in _grouped(_labels_of(offering) for _, offering in self.rows).items():
            for requirement in requirements:
                _write(offered, requirement, rows)
        for key, column in offered.items():
            said = 0
            for rows in column.values():
                said |= rows
            by_type = {values: rows & ~said for values, rows in columns.get(key, {}).items()}
            columns[key] = {values: column.get(values, 0) | by_type.get(values, 0) for values in {**column, **by_type}}
        return columns

    def smaller_than(self, resource: str, amount: int) -> Rows:
        """The rows whose nodes give pods less than this much."""
        if resource not in self._allocatable:
            self._allocatable[resource] = _Sizes(self._by_size(resource, allocatable=True))
        return self._allocatable[resource].below(amount)

    def largest(self, resource: str, rows: Rows) -> int:
        """The most that a node of one of these rows has in all."""
        if resource not in self._capacity:
            self._capacity[resource] = _Sizes(self._by_size(resource, allocatable=False))
        return self._capacity[resource].largest(rows)

    def _by_size(self, resource: str, *, allocatable: bool) -> dict[int, Rows]:
        rows_by_size: dict[int, Rows] = {}
        for name, instance_type in self.types.items():
            kept = instance_type.overhead.get(resource, 0) if allocatable else 0
            size = max(instance_type.capacity.get(resource, 0) - kept, 0)
            rows_by_size[size] = rows_by_size.get(size, 0) | self.by_type[name]
        return rows_by_size


class Markets:
    """The markets of a catalogue by NodePool; pools with the same instance types share one."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._by_types: dict[int, Market] = {}

    def of(self, pool: str) -> Market:
        """What the pool may choose from."""
        types = self._catalogue.instance_types(pool)
        if id(types) not in self._by_types:
            self._by_types[id(types)] = Market(types)
        return self._by_types[id(types)]


@lru_cache(maxsize=2)
def markets_of(catalogue: Catalogue) -> Markets:
    """A catalogue's markets, made once: many plans are made from one catalogue."""
    return Markets(catalogue)


class _Sizes:
    """One resource: the sizes in ascending order, and for each the rows below it."""

    def __init__(self, rows_by_size: Mapping[int, Rows]) -> None:
        self._sizes = sorted(rows_by_size)
        self._below = [0]
        for size in self._sizes:
            self._below.append(self._below[-1] | rows_by_size[size])

    def below(self, amount: int) -> Rows:
        """The rows that have less."""
        return self._below[bisect_left(self._sizes, amount)]

    def largest(self, rows: Rows) -> int:
        """The largest size among these rows, 0 if there are none."""
        reached = bisect_left(self._below, True, key=lambda below: rows & ~below == 0)
        return self._sizes[reached - 1] if reached else 0


def _grouped(keys: Iterable[K]) -> dict[K, Rows]:
    """By key, the rows that have it."""
    indexes: dict[K, list[int]] = {}
    for index, key in enumerate(keys):
        indexes.setdefault(key, []).append(index)
    return {key: _rows(found) for key, found in indexes.items()}


def _rows(indexes: Sequence[int]) -> Rows:
    """The rows with these indexes, in ascending order."""
    bits = bytearray(indexes[-1] // 8 + 1)
    for index in indexes:
        bits[index // 8] |= 1 << index % 8
    return int.from_bytes(bits, "little")


def _labels_of(offering: Offering) -> tuple[NodeSelectorRequirement, ...]:
    """What the offering says of its node's labels, with its zone and capacity type even if only its fields name them."""
    said = {requirement.key for requirement in offering.requirements}
    fields = ((labels.ZONE, offering.zone), (labels.CAPACITY_TYPE, offering.capacity_type))
    missing = [
        NodeSelectorRequirement(key=key, operator="In", values=(value,))
        for key, value in fields
        if value and key not in said
    ]
    return (*offering.requirements, *missing)


def _write(columns: Columns, requirement: NodeSelectorRequirement, rows: Rows) -> None:
    if requirement.operator in {"In", "DoesNotExist"}:
        column = columns.setdefault(normalized(requirement.key), {})
        values = frozenset(requirement.values)
        column[values] = column.get(values, 0) | rows


class Launches:
    """The rows of a market with the labels that a NodePool adds."""

    def __init__(self, pool: NodePool, market: Market, daemons: Sequence[Kind]) -> None:
        self.pool = pool
        self.market = market
        template = pool.spec.template
        ref = template.spec.node_class_ref
        self._own = {
            **template.metadata.labels,
            f"{ref.group}/{ref.kind.lower()}": ref.name,
            labels.NODEPOOL: pool.metadata.name,
            labels.REGISTERED: "true",
            labels.INITIALIZED: "true",
        }
        given: dict[str, Column] = {k: {frozenset({v}): market.everything} for k, v in self._own.items()}
        self.possible = Possibilities(market.everything, given | market.columns)
        self.rules = (
            *template.spec.requirements,
            *(NodeSelectorRequirement(key=k, operator="In", values=(v,)) for k, v in sorted(self._own.items())),
        )
        self._daemons = [d for d in daemons if untolerated(d.pod, template.spec.taints) is None]
        self._of_types: dict[tuple[str, ...], Rows] = {}
        self._narrowed: dict[tuple[NodeSelectorRequirement, ...], Possibilities] = {}
        self._overheads: dict[int, tuple[Overhead, ...]] = {}
        self._in_order: dict[int, Rows] = {}

    def defines(self, key: str) -> bool:
        """Whether a pod may ask for this label: nodes have it, the NodePool allows it, or every cloud knows it."""
        key = normalized(key)
        return (
            key in labels.WELL_KNOWN
            or key in self._own
            or key in self.market.columns
            or any(normalized(r.key) == key and not is_met(r, None) for r in self.pool.spec.template.spec.requirements)
        )

    def values(self, key: str, wanted: tuple[NodeSelectorRequirement, ...]) -> frozenset[str]:
        """The values of a label that nodes may get which suit these requirements; those that somebody names."""
        rules = (*self.rules, *wanted)
        if key not in self.market.columns and not any(normalized(r.key) == key and r.operator == "In" for r in rules):
            return frozenset()
        if not all(is_met(r, None) or self.defines(r.key) for r in wanted):
            return frozenset()
        left = self.narrowed(rules)
        return left.values(key, left.rows)

    def narrowed(self, requirements: tuple[NodeSelectorRequirement, ...]) -> Possibilities:
        """What requirements leave to be launched."""
        if requirements not in self._narrowed:
            self._narrowed[requirements] = self.possible.narrowed(requirements)
        return self._narrowed[requirements]

    def claimed(self, requirements: Sequence[NodeSelectorRequirement]) -> tuple[Possibilities, Rows]:
        """What a claim with these requirements may become: labels, and which rows.

        A label of the user's own gets onto the node only if the NodePool knows it and the claim names values for it.
        """
        named = {r.key for r in requirements if r.operator == "In"}
        heeded = tuple(
            r
            for r in requirements
            if not (r.key == labels.INSTANCE_TYPE and r.operator == "In")
            and (r.key in labels.WELL_KNOWN or r.key in self.market.columns or (r.key in named and self.defines(r.key)))
        )
        possible = self.narrowed(heeded)
        rows = possible.rows
        for requirement in requirements:
            if requirement.key == labels.INSTANCE_TYPE and requirement.operator == "In":
                rows &= self.rows_of(requirement.values)
        return possible, rows

    def rows_of(self, types: tuple[str, ...]) -> Rows:
        """The rows of these instance types."""
        known = self._of_types.get(types)
        if known is None:
            known = 0
            for name in types:
                known |= self.market.by_type.get(name, 0)
            self._of_types[types] = known
        return known

    def in_order(self, possible: Possibilities) -> Rows:
        """The rows that keep the NodePool's requirements, whatever comes."""
        known = self._in_order.get(id(possible))
        if known is None:
            known = self._in_order[id(possible)] = possible.suiting(((rule,),) for rule in self.rules)
        return known

    def overheads(self, possible: Possibilities) -> tuple[Overhead, ...]:
        """What daemons take, for all rows in one entry each."""
        known = self._overheads.get(id(possible))
        if known is None:
            known = self._overheads[id(possible)] = tuple(self._split(possible))
        return known

    def _split(self, possible: Possibilities) -> list[Overhead]:
        parts = [Overhead(possible.rows, {}, ())]
        for daemon in self._daemons:
            running = possible.possibly_suiting(daemon.wishes)
            parts = [half for part in parts for half in _halves(part, running, daemon) if half.rows]
        return parts


def _halves(part: Overhead, running: Rows, daemon: Kind) -> tuple[Overhead, Overhead]:
    """The rows with the daemon and those without."""
    requests = dict(part.requests)
    for resource, amount in daemon.requests.items():
        requests[resource] = requests.get(resource, 0) + amount
    with_it = Overhead(part.rows & running, requests, (*part.ports, *daemon.ports))
    return with_it, Overhead(part.rows & ~running, part.requests, part.ports)
