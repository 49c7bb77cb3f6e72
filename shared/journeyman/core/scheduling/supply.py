"""What a row of pods finds: the combinations of domains it can go to, on nodes that exist and on nodes to be opened.

Offerings are gathered once for all rows that want the same of their node; a row then only asks where one of its pods
fits, and what it would cost there at the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from journeyman.core.scheduling.dealing import UNLIMITED, Cell
from journeyman.core.scheduling.draft import Draft, Question
from journeyman.core.scheduling.filling import Filling
from journeyman.core.scheduling.market import Shape, Stall, Wish
from journeyman.core.scheduling.offers import Bools, Ints, distinct, every
from journeyman.core.scheduling.requirements import Requirement
from journeyman.core.scheduling.topology import Pins

_DECIMALS = 12  # of a price; what differs beyond is rounding


@dataclass(frozen=True, slots=True, eq=False)
class _Spot:
    """What one NodePool offers in one combination of domains: its types' sizes and, by axis, its best price of a unit."""

    pins: Pins
    order: tuple[int, bool]
    sizes: Ints
    largest: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]

    def holds(self, request: Sequence[int], amounts: Ints) -> bool:
        """Whether one of its types is large enough."""
        for size in self.largest:
            if all(has >= asked for has, asked in zip(size, request, strict=True)):
                return True
        return len(self.largest) > 1 and bool(every(self.sizes >= amounts).any())

    def price(self, asked: Sequence[tuple[int, int]]) -> float:
        """What a pod costs at the least, as a share of the best offering for what it asks most of."""
        return round(max((amount * self.rates[axis] for axis, amount in asked), default=0.0), _DECIMALS)


class Supply:
    """Where pods can go, while a draft stands as it does."""

    def __init__(self, question: Question, draft: Draft, filling: Filling) -> None:
        """Offerings whose NodePool may still open a node of the type, and existing nodes as they are filled."""
        self._question = question
        self._filling = filling
        self._ceilings = draft.ceilings
        self._allowed = [headroom.allows() for headroom in draft.headroom]
        self._spots: dict[object, tuple[_Spot, ...]] = {}
        self._shapes: dict[int, Shape] = {}
        self._requests: list[list[int]] = question.requests.tolist()

    def takes(self, row: int) -> bool:
        """Whether some node, existing or new, can take a pod of the row, whatever its domains."""
        request = self._requests[row]
        if any(spot.holds(request, self._question.requests[row]) for spot in self._spots_of(row, (), ())):
            return True
        return bool(self._filling.existing.nodes) and bool(self._filling.open_to(row).any())

    def cells(self, row: int, keys: tuple[str, ...], needed: frozenset[str]) -> list[Cell]:
        """The cells that can take a pod of the row now, by their pins.

        Args:
            row: Whose pods.
            keys: The labels whose domains matter, sorted.
            needed: Those of them that a node must have.
        """
        cells: dict[Pins, Cell] = {}
        request, amounts = self._requests[row], self._question.requests[row]
        asked = [(axis, n) for axis, n in enumerate(request) if n]
        for spot in self._spots_of(row, keys, needed):
            known = cells.get(spot.pins)
            if (known is None or spot.order <= known.order) and spot.holds(request, amounts):
                price = spot.price(asked)
                if known is None or (spot.order, price) < (known.order, known.price):
                    more = self._ceilings.get((row, spot.pins), UNLIMITED)
                    cells[spot.pins] = Cell(
                        pins=spot.pins, values=dict(spot.pins), more=more, order=spot.order, price=price
                    )
        self._add_existing(row, keys, needed, cells)
        return [cells[pins] for pins in sorted(cells)]

    def _add_existing(self, row: int, keys: tuple[str, ...], needed: Iterable[str], cells: dict[Pins, Cell]) -> None:
        """Room on existing nodes, by cell."""
        if not self._filling.existing.nodes:
            return
        nodes = np.flatnonzero(self._filling.open_to(row))
        if not len(nodes):
            return
        codes, places = self._filling.existing.columns.cells(keys)
        room = np.bincount(codes[nodes], weights=self._filling.room(row, nodes), minlength=len(places))
        for code in np.flatnonzero(room).tolist():
            pins, values = places[code], dict(places[code])
            if all(key in values for key in needed):
                cell = cells.setdefault(pins, Cell(pins=pins, values=values))
                cell.room = int(room[code])

    # --- offerings

    def _spots_of(self, row: int, keys: tuple[str, ...], needed: Iterable[str]) -> tuple[_Spot, ...]:
        shape = self._shape(row)
        wanted = tuple(sorted(needed))
        known = self._spots.get((shape, keys, wanted))
        if known is None:
            if self._filling.needs_company(row):
                return ()  # a new node is empty
            known = tuple(
                spot
                for stall, allowed in zip(self._question.stalls, self._allowed, strict=True)
                for spot in _spots_in(stall, allowed, shape, keys, wanted)
            )
            self._spots[shape, keys, wanted] = known
        return known if not self._filling.needs_company(row) else ()

    def _shape(self, row: int) -> Shape:
        found = self._shapes.get(row)
        if found is None:
            found = self._shapes[row] = Shape.of(self._question.rows[row])
        return found


def _spots_in(
    stall: Stall, allowed: Bools, shape: Shape, keys: tuple[str, ...], needed: tuple[str, ...]
) -> Iterable[_Spot]:
    """What a NodePool offers such pods, by domains; where it leaves one open that need not be known, without that."""
    table = stall.template.table
    rows = stall.rows(Wish(shape)) & allowed[table.row_type]
    if not rows.any():
        return
    found = False
    for pins, where in _by_domains(stall, shape, keys, np.flatnonzero(rows)):
        found = True
        yield _spot(stall, pins, where)
    if not found and needed != keys:
        for pins, where in _by_domains(stall, shape, needed, np.flatnonzero(rows)):
            yield _spot(stall, pins, where)


def _by_domains(stall: Stall, shape: Shape, keys: tuple[str, ...], rows: Ints) -> Iterable[tuple[Pins, Ints]]:
    """The rows by the values that they and the NodePool list for these labels; every such combination they can have."""
    columns = [stall.template.table.row_requirements(key) for key in keys]
    codes = np.zeros(len(rows), dtype=np.int64)
    for column, entries in columns:
        codes = codes * len(entries) + column[rows]
    for code in distinct(codes):
        where = rows[codes == code]
        values = [_values(stall, key, e[int(c[where[0]])]) for key, (c, e) in zip(keys, columns, strict=True)]
        is_open = any(len(listed) > 1 for listed in values)
        for chosen in product(*values):
            pins = tuple(zip(keys, chosen, strict=True))
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
    prices = table.prices[rows] + stall.template.node_price
    per_unit = prices[:, None] / np.maximum(stall.sizes[of_row], 1)
    return _Spot(
        pins=pins,
        order=stall.template.order,
        sizes=sizes,
        largest=tuple(dict.fromkeys(map(tuple, sizes[np.argmax(sizes, axis=0)].tolist()))),
        rates=tuple(per_unit.min(axis=0).tolist()),
    )
