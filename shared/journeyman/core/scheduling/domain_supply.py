"""What a row of pods finds: the combinations of domains it can go to, on nodes that exist and on nodes to be opened.

Offerings are gathered once for all rows that want the same of their node; a row then only asks where one of its pods
fits, and what it would cost there at the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Floats, Ints, distinct, every
from journeyman.core.scheduling.demand.host_ports import HostPort
from journeyman.core.scheduling.demand.topology import Pins
from journeyman.core.scheduling.domain_distribution import UNLIMITED, Cell
from journeyman.core.scheduling.node_filling import Filling
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.offering.wishes import Shape, Wish
from journeyman.core.scheduling.problem import Draft, Question
from journeyman.core.scheduling.requirements import Requirement

_Asked = list[tuple[int, int]]
"""What a pod asks for, as (axis, amount)."""

_DECIMALS: Final = 12  # of a price; what differs beyond is rounding


class _Spot(Struct, frozen=True, eq=False):
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


class _Spots(Struct, frozen=True, eq=False):
    """All of a shape's spots, by their pins; `sure` is held by every one of them. `distinct`: no two have equal pins."""

    all: tuple[_Spot, ...]
    sure: tuple[int, ...]
    distinct: bool = True

    @classmethod
    def of(cls, spots: Iterable[_Spot]) -> _Spots:
        """Put spots together."""
        found = tuple(sorted(spots, key=lambda spot: spot.pins))
        sure = tuple(min(sizes) for sizes in zip(*(spot.largest[0] for spot in found), strict=True))
        return cls(found, sure, len({spot.pins for spot in found}) == len(found))

    def holding(self, asked: _Asked, amounts: Ints) -> Sequence[_Spot]:
        """Those in which a pod fits."""
        if not self.all or _covers(self.sure, asked):
            return self.all
        return [spot for spot in self.all if spot.holds(asked, amounts)]


_NOWHERE: Final = _Spots((), ())


def _covers(size: Sequence[int], asked: _Asked) -> bool:
    for axis, amount in asked:  # noqa: SIM110 - in a hot path, where a generator costs more than the comparisons
        if size[axis] < amount:
            return False
    return True


class Supply:
    """Where pods can go, while a draft stands as it does."""

    def __init__(self, question: Question, draft: Draft, filling: Filling) -> None:
        """Offerings whose NodePool may still open a node of the type, and existing nodes as they are filled."""
        self._question = question
        self._filling = filling
        self._ceilings = draft.ceilings
        self._allowed = [headroom.allows() for headroom in draft.headroom]
        self._spots: dict[object, _Spots] = {}
        self._spots_of_row: dict[tuple[int, tuple[str, ...]], _Spots] = {}
        self._shapes: dict[object, Shape] = {}
        self._requests: list[list[int]] = question.requests.tolist()
        self._needs_company = frozenset(np.flatnonzero(question.caps.follows.any(axis=1)).tolist())

    def takes(self, row: int) -> bool:
        """Whether some node, existing or new, can take a pod of the row, whatever its domains."""
        if self._spots_for(row, (), frozenset()).holding(self._asked(row), self._question.requests[row]):
            return True
        return bool(self._filling.existing.nodes) and bool(self._filling.open_to(row).any())

    def reach(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> int:
        """Of how many cells a row could think, were there room in all of them."""
        found = {spot.pins for spot in self._spots_for(row, keys, needed).all}
        if self._filling.existing.nodes:
            suits = self._filling.suits(row)
            found.update(pins for pins, nodes in self._filling.existing.columns.cells(keys) if (suits & nodes).any())
        return len(found)

    def cells(self, row: int, keys: tuple[str, ...], needed: frozenset[str], pods: int) -> list[Cell]:
        """The cells that can take a pod of the row now, by their pins.

        Args:
            row: Whose pods.
            keys: The labels whose domains matter, sorted.
            needed: Those of them that a node must have.
            pods: How many there are; room for more is not looked for.
        """
        asked = self._asked(row)
        spots = self._spots_for(row, keys, needed)
        found = [self._cell(row, spot, asked) for spot in spots.holding(asked, self._question.requests[row])]
        if spots.distinct and not self._filling.existing.nodes:
            return found
        cells: dict[Pins, Cell] = {}
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
        """What new nodes that hold so much together cost in one domain, as far as whole nodes of one type can tell."""
        key, value = domain
        spots = (spot for spot in self._spots_for(row, keys, needed).all if spot.values.get(key) == value)
        return min((spot.fleet_price(total) for spot in spots), default=np.inf)

    def _cell(self, row: int, spot: _Spot, asked: _Asked) -> Cell:
        more = self._ceilings.get((row, spot.pins), UNLIMITED) if self._ceilings else UNLIMITED
        return Cell(spot.pins, spot.values, 0, more, spot.order, spot.price(asked))

    def _asked(self, row: int) -> _Asked:
        return [(axis, n) for axis, n in enumerate(self._requests[row]) if n]

    def _add_existing(
        self, row: int, keys: tuple[str, ...], needed: Iterable[str], pods: int, cells: dict[Pins, Cell]
    ) -> None:
        """Room on existing nodes, by cell."""
        found = self._filling.open_to(row)
        if not found.any():
            return
        for pins, members in self._filling.existing.columns.cells(keys):
            nodes = np.flatnonzero(found & members)[:pods].tolist()  # each takes one at least
            values = dict(pins)
            if nodes and all(key in values for key in needed):
                cell = cells.setdefault(pins, Cell(pins, values))
                cell.nodes = list(zip(nodes, self._filling.room(row, nodes), strict=True))
                cell.room = sum(room for _, room in cell.nodes)

    # --- offerings

    def _spots_for(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> _Spots:
        known = self._spots_of_row.get((row, keys))
        if known is None:
            known = self._spots_of_row[row, keys] = self._find_spots(row, keys, needed)
        return known

    def _find_spots(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> _Spots:
        """Spots for the row, the same for all of its shape; none if it needs company, which a new node has not."""
        if row in self._needs_company:
            return _NOWHERE
        shape = self._shape(row)
        ports = self._question.rows[row].ports
        case = (id(shape), keys, needed, ports)
        if case not in self._spots:
            self._spots[case] = _Spots.of(
                spot
                for stall, allowed in zip(self._question.stalls, self._allowed, strict=True)
                if stall.serves(Wish(shape))
                for spot in _spots_in(stall, allowed & _free_of(stall, ports), shape, keys, needed)
            )
        return self._spots[case]

    def _shape(self, row: int) -> Shape:
        """The row's shape, one object for all that are equal; rows that share their parts are not compared."""
        pods = self._question.rows[row]
        parts = (id(pods.terms), id(pods.volume_terms), id(pods.tolerations), pods.heeds_preferences)
        found = self._shapes.get(parts)
        if found is None:
            shape = Shape.of(pods)
            found = self._shapes[parts] = self._shapes.setdefault(shape, shape)
        return found


def _spots_in(
    stall: Stall, allowed: Bools, shape: Shape, keys: tuple[str, ...], needed: frozenset[str]
) -> Iterable[_Spot]:
    """What a NodePool offers such pods, by domains."""
    table = stall.template.table
    rows = stall.rows(Wish(shape)) & allowed[table.row_type]
    if not rows.any():
        return
    for pins, where in _by_domains(stall, shape, keys, needed, np.flatnonzero(rows)):
        yield _spot(stall, pins, where)


def _free_of(stall: Stall, ports: Sequence[HostPort]) -> Bools:
    """By type, whether its daemons leave these host ports alone."""
    free = [not any(port.conflicts(used) for port in ports for used in taken) for taken in stall.daemon_ports]
    found: Bools = np.array(free, dtype=bool)[stall.daemon_group]
    return found


def _by_domains(
    stall: Stall, shape: Shape, keys: tuple[str, ...], needed: frozenset[str], rows: Ints
) -> Iterable[tuple[Pins, Ints]]:
    """The rows by the values that they and the NodePool list for these labels; every such combination they can have.

    A label that they leave open is left out, unless it is needed.
    """
    for own, where in stall.template.table.by_labels(keys, rows):
        listed = {key: _values(stall, key, r) for key, r in zip(keys, own, strict=True)}
        known = {key: values for key, values in listed.items() if values or key in needed}
        is_open = any(len(values) > 1 for values in known.values())
        for chosen in product(*known.values()):
            pins = tuple(zip(known, chosen, strict=True))
            suiting = where[stall.rows(Wish(shape, pins=pins))[where]] if is_open else where
            if len(suiting):
                yield pins, suiting


def _values(stall: Stall, key: str, own: Requirement | None) -> tuple[str, ...]:
    """The values that NodePool and offering list for a label, sorted; none if they leave it open."""
    pool = stall.template.requirements.get(key)
    merged = own.intersection(pool) if own is not None and pool is not None else own or pool
    return () if merged is None or merged.complement else tuple(sorted(merged.values))


def _spot(stall: Stall, pins: Pins, rows: Ints) -> _Spot:
    table = stall.template.table
    of_row = table.row_type[rows]
    types = distinct(of_row)
    sizes = stall.sizes[types]
    prices = table.prices[rows] + stall.template.node_surcharge
    cheapest: Floats = np.full(len(table.types), np.inf)
    np.minimum.at(cheapest, of_row, prices)
    per_unit = prices[:, None] / np.maximum(stall.sizes[of_row], 1)
    return _Spot(
        pins=pins,
        values=dict(pins),
        order=stall.template.order,
        sizes=sizes,
        prices=cheapest[types],
        largest=tuple(dict.fromkeys(map(tuple, sizes[np.argmax(sizes, axis=0)].tolist()))),
        rates=tuple(per_unit.min(axis=0).tolist()),
    )
