"""Finds the cells (combinations of domains) that a row can go to, on existing and on new nodes, and their prices.

Offerings are gathered once for all rows with equal node requirements; for each row only the fit of one pod and its
least price are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct, every
from journeyman.core.scheduling.domain_distribution import UNLIMITED, DomainCell
from journeyman.core.scheduling.node_filling import NodeFilling
from journeyman.core.scheduling.nodepool_options import NodeConstraints, NodeDemand, NodePoolOptions
from journeyman.core.scheduling.pod_classes import HostPort
from journeyman.core.scheduling.problem import PartialSolution, SchedulingProblem
from journeyman.core.scheduling.requirements import Requirement
from journeyman.core.scheduling.topology import Pins

_Asked = list[tuple[int, int]]
"""What a pod asks for, as (axis, amount)."""

_DECIMALS: Final = 12  # of a price; what differs beyond is rounding


class _DomainOffer(Struct, frozen=True, eq=False):
    """One NodePool in one combination of domains: its types' sizes and prices, and its best price of a unit by axis."""

    pins: Pins
    values: dict[str, str]
    order: tuple[int, bool]
    sizes: Ints
    prices: Floats
    largest: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]

    def holds(self, asked: _Asked, amounts: Ints) -> bool:
        """Whether one of its types is large enough."""
        if any(_covers(size, asked) for size in self.largest):
            return True
        return len(self.largest) > 1 and bool(every(self.sizes >= amounts).any())

    def price(self, asked: _Asked) -> float:
        """What a pod costs at the least, as a share of the best offering for what it asks most of."""
        return round(max([amount * self.rates[axis] for axis, amount in asked], default=0.0), _DECIMALS)

    def fleet_price(self, total: Ints) -> float:
        """What nodes of one type that hold so much together cost, of the type for which that is least."""
        axes = np.flatnonzero(total)
        large = self.sizes[:, axes].all(axis=1)
        nodes = -(-total[axes] // self.sizes[large][:, axes])
        return float((self.prices[large] * nodes.max(axis=1, initial=1)).min(initial=np.inf))


class _DomainOffers(Struct, frozen=True, eq=False):
    """The offers for equal node constraints, by their pins; `sure` is held by every one of them. `distinct`: no two have equal pins."""

    all: tuple[_DomainOffer, ...]
    sure: tuple[int, ...]
    distinct: bool = True

    @classmethod
    def of(cls, offers: Iterable[_DomainOffer]) -> _DomainOffers:
        """Put offers together."""
        found = tuple(sorted(offers, key=lambda offer: offer.pins))
        sure = tuple(min(sizes) for sizes in zip(*(offer.largest[0] for offer in found), strict=True))
        return cls(found, sure, len({offer.pins for offer in found}) == len(found))

    def holding(self, asked: _Asked, amounts: Ints) -> Sequence[_DomainOffer]:
        """Those in which a pod fits."""
        if not self.all or _covers(self.sure, asked):
            return self.all
        return [offer for offer in self.all if offer.holds(asked, amounts)]


_NO_OFFERS: Final = _DomainOffers((), ())


def _covers(size: Sequence[int], asked: _Asked) -> bool:
    for axis, amount in asked:  # noqa: SIM110 - in a hot path, where a generator costs more than the comparisons
        if size[axis] < amount:
            return False
    return True


class DomainSupply:
    """Where pods can go, while a solution stands as it does."""

    def __init__(self, problem: SchedulingProblem, solution: PartialSolution, filling: NodeFilling) -> None:
        """Offerings whose NodePool may still plan a node of the type, and existing nodes as they are filled."""
        self._problem = problem
        self._filling = filling
        self._ceilings = solution.ceilings
        self._allowed = [headroom.allows() for headroom in solution.headroom]
        self._offers: dict[object, _DomainOffers] = {}
        self._offers_of_row: dict[tuple[int, tuple[str, ...]], _DomainOffers] = {}
        self._requests: list[list[int]] = problem.requests.tolist()
        self._needs_company = frozenset(np.flatnonzero(problem.host_constraints.follows.any(axis=1)).tolist())

    def takes(self, row: int) -> bool:
        """Whether some node, existing or new, can take a pod of the row, whatever its domains."""
        if self._offers_for(row, (), frozenset()).holding(self._asked(row), self._problem.requests[row]):
            return True
        return bool(self._filling.existing.nodes) and bool(self._filling.open_to(row).any())

    def reach(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> int:
        """Of how many cells a row could think, if all of them had capacity."""
        found = {offer.pins for offer in self._offers_for(row, keys, needed).all}
        if self._filling.existing.nodes:
            suits = self._filling.suits(row)
            found.update(pins for pins, nodes in self._filling.existing.columns.cells(keys) if (suits & nodes).any())
        return len(found)

    def cells(self, row: int, keys: tuple[str, ...], needed: frozenset[str], pods: int) -> list[DomainCell]:
        """The cells that can take a pod of the row now, by their pins.

        Args:
            row: Whose pods.
            keys: The labels whose domains matter, sorted.
            needed: Those of them that a node must have.
            pods: How many there are; capacity for more is not computed.
        """
        asked = self._asked(row)
        offers = self._offers_for(row, keys, needed)
        found = [self._cell(row, offer, asked) for offer in offers.holding(asked, self._problem.requests[row])]
        if offers.distinct and not self._filling.existing.nodes:
            return found
        cells: dict[Pins, DomainCell] = {}
        for cell in found:
            known = cells.get(cell.pins)
            if known is None or (cell.order, cell.price) < (known.order, known.price):
                cells[cell.pins] = cell
        if self._filling.existing.nodes:
            self._add_existing(row, keys, needed, pods, cells)
        return [cells[pins] for pins in sorted(cells)]

    def fleet_price(
        self, row: int, keys: tuple[str, ...], needed: frozenset[str], domain: tuple[str, str], total: Ints
    ) -> float:
        """What new nodes that hold so much together cost in one domain, estimated with whole nodes of one type."""
        key, value = domain
        offers = (offer for offer in self._offers_for(row, keys, needed).all if offer.values.get(key) == value)
        return min((offer.fleet_price(total) for offer in offers), default=np.inf)

    def _cell(self, row: int, offer: _DomainOffer, asked: _Asked) -> DomainCell:
        more = self._ceilings.get((row, offer.pins), UNLIMITED) if self._ceilings else UNLIMITED
        return DomainCell(offer.pins, offer.values, 0, more, offer.order, offer.price(asked))

    def _asked(self, row: int) -> _Asked:
        return [(axis, n) for axis, n in enumerate(self._requests[row]) if n]

    def _add_existing(
        self, row: int, keys: tuple[str, ...], needed: Iterable[str], pods: int, cells: dict[Pins, DomainCell]
    ) -> None:
        """Add to each cell the capacity of the existing nodes."""
        found = self._filling.open_to(row)
        if not found.any():
            return
        for pins, members in self._filling.existing.columns.cells(keys):
            nodes = np.flatnonzero(found & members)[:pods].tolist()  # each takes one at least
            values = dict(pins)
            if nodes and all(key in values for key in needed):
                cell = cells.setdefault(pins, DomainCell(pins, values))
                cell.nodes = list(zip(nodes, self._filling.free_pods(row, nodes), strict=True))
                cell.free_pods = sum(pods for _, pods in cell.nodes)

    # --- offerings

    def _offers_for(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> _DomainOffers:
        known = self._offers_of_row.get((row, keys))
        if known is None:
            known = self._offers_of_row[row, keys] = self._find_offers(row, keys, needed)
        return known

    def _find_offers(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> _DomainOffers:
        """Offers for the row, the same for all of its shape; none if it needs company, which a new node has not."""
        if row in self._needs_company:
            return _NO_OFFERS
        number, ports = self._problem.shape_of_row[row], self._problem.rows[row].ports
        shape = self._problem.shapes[number]
        case = (number, keys, needed, ports)
        if case not in self._offers:
            self._offers[case] = _DomainOffers.of(
                offer
                for pool, allowed in zip(self._problem.pools, self._allowed, strict=True)
                if pool.serves(NodeDemand(shape))
                for offer in _offers_in(pool, allowed & _free_of(pool, ports), shape, keys, needed)
            )
        return self._offers[case]


def _offers_in(
    pool: NodePoolOptions, allowed: Bools, shape: NodeConstraints, keys: tuple[str, ...], needed: frozenset[str]
) -> Iterable[_DomainOffer]:
    """What a NodePool offers such pods, by domains."""
    table = pool.template.table
    rows = pool.rows(NodeDemand(shape)) & allowed[table.row_type]
    if not rows.any():
        return
    for pins, where in _by_domains(pool, shape, keys, needed, np.flatnonzero(rows)):
        yield _offer(pool, pins, where)


def _free_of(pool: NodePoolOptions, ports: Sequence[HostPort]) -> Bools:
    """By type, whether its daemons leave these host ports alone."""
    free = [not any(port.conflicts(used) for port in ports for used in taken) for taken in pool.daemon_ports]
    found: Bools = np.array(free, dtype=bool)[pool.daemon_group]
    return found


def _by_domains(
    pool: NodePoolOptions, shape: NodeConstraints, keys: tuple[str, ...], needed: frozenset[str], rows: Ints
) -> Iterable[tuple[Pins, Ints]]:
    """The rows by the values that they and the NodePool list for these labels; every such combination they can have.

    A label that they leave open is left out, unless it is needed.
    """
    for own, where in pool.template.table.by_labels(keys, rows):
        listed = {key: _values(pool, key, r) for key, r in zip(keys, own, strict=True)}
        known = {key: values for key, values in listed.items() if values or key in needed}
        is_open = any(len(values) > 1 for values in known.values())
        for chosen in product(*known.values()):
            pins = tuple(zip(known, chosen, strict=True))
            suiting = where[pool.rows(NodeDemand(shape, pins=pins))[where]] if is_open else where
            if len(suiting):
                yield pins, suiting


def _values(pool: NodePoolOptions, key: str, own: Requirement | None) -> tuple[str, ...]:
    """The values that NodePool and offering list for a label, sorted; none if they leave it open."""
    offered_requirement = pool.template.requirements.get(key)
    merged = (
        own.intersection(offered_requirement)
        if own is not None and offered_requirement is not None
        else own or offered_requirement
    )
    return () if merged is None or merged.complement else tuple(sorted(merged.values))


def _offer(pool: NodePoolOptions, pins: Pins, rows: Ints) -> _DomainOffer:
    table = pool.template.table
    of_row = table.row_type[rows]
    types = distinct(of_row)
    sizes = pool.sizes[types]
    prices = table.prices[rows] + pool.template.node_surcharge
    cheapest: Floats = np.full(len(table.types), np.inf)
    np.minimum.at(cheapest, of_row, prices)
    per_unit = prices[:, None] / np.maximum(pool.sizes[of_row], 1)
    return _DomainOffer(
        pins=pins,
        values=dict(pins),
        order=pool.template.order,
        sizes=sizes,
        prices=cheapest[types],
        largest=tuple(dict.fromkeys(map(tuple, sizes[np.argmax(sizes, axis=0)].tolist()))),
        rates=tuple(per_unit.min(axis=0).tolist()),
    )
