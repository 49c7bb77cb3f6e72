"""A NodePool's offerings as bit masks: which of them are left for a node is one integer.

Bit 0 is the cheapest offering that can be had, so the lowest bit of a mask is the cheapest of those left, and two
conditions meet by one `&`, however many offerings there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, distinct
from journeyman.core.scheduling.demand.host_ports import HostPort
from journeyman.core.scheduling.offering.stalls import Stall
from journeyman.core.scheduling.one_by_one.book import Book
from journeyman.core.scheduling.requirements import Requirement


def lowest(mask: int) -> int:
    """The position of the lowest bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1


def as_mask(bits: Bools) -> int:
    """Truth by offering as a mask."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


class Shelf:
    """One stall. `rows[b]` is the offering (a row of its table) that bit b stands for.

    `ordinary` are those that draw on no reservation, `reserved` the others by reservation, each as (name, offerings).
    """

    def __init__(self, index: int, stall: Stall, book: Book) -> None:
        """`index` is the stall's position among the stalls of the pass."""
        table = stall.template.table
        self.index = index
        self.stall = stall
        self.offer = book.number(stall.template.requirements)
        self._book = book
        usable = stall.template.rows & stall.usable[table.row_type]
        self.rows: Ints = table.by_price[usable[table.by_price]]
        self._types: Ints = table.row_type[self.rows]
        self._prices: list[float] = table.prices[self.rows].tolist()
        drawn = table.row_reservation[self.rows]
        self.ordinary = as_mask(drawn < 0)
        self.reserved = [(table.reservations[n], as_mask(drawn == n)) for n in distinct(drawn[drawn >= 0]).tolist()]
        sizes = stall.sizes[self._types]
        self._sizes: list[Ints] = [np.ascontiguousarray(sizes[:, axis]) for axis in range(sizes.shape[1])]
        self._levels: list[list[int]] = [sorted(set(column.tolist())) for column in self._sizes]
        self._at_least: list[dict[int, int]] = [{} for _ in self._levels]
        self._largest: list[dict[int, int]] = [{} for _ in self._levels]
        self._suiting: dict[int, int] = {}
        self._free_of: dict[tuple[HostPort, ...], int] = {}
        self._cheapest_for: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self._by_value: dict[str, tuple[dict[str, int], int]] = {}

    def of_types(self, types: Bools) -> int:
        """The offerings of these instance types."""
        return as_mask(types[self._types])

    def types_of(self, offerings: int) -> list[int]:
        """The instance types of these offerings, the cheapest first."""
        return list(dict.fromkeys(self._types[self._positions(offerings)].tolist()))

    def _positions(self, mask: int) -> Ints:
        packed = np.frombuffer(mask.to_bytes((len(self.rows) + 7) // 8, "little"), dtype=np.uint8)
        found: Ints = np.flatnonzero(np.unpackbits(packed, bitorder="little", count=len(self.rows)))
        return found

    def instance_types(self, offerings: int) -> list[InstanceType]:
        """The same as values."""
        return [self.stall.template.table.types[index] for index in self.types_of(offerings)]

    def type_names(self, offerings: int) -> list[str]:
        """Their names."""
        return [found.name for found in self.instance_types(offerings)]

    def type_of(self, offerings: int) -> int:
        """The instance type of the cheapest of these offerings."""
        return int(self._types[lowest(offerings)])

    def price(self, offerings: int) -> float:
        """The price of the cheapest of these offerings, and what the pool charges for a node as such."""
        return self._prices[lowest(offerings)] + self.stall.template.node_surcharge

    def suiting(self, wanted: int) -> int:
        """The offerings that suit requirements, by their number."""
        found = self._suiting.get(wanted)
        if found is None:
            rows = self.stall.template.table.rows_meeting(self._book[wanted])
            found = self._suiting[wanted] = as_mask(rows[self.rows])
        return found

    def free_of(self, ports: tuple[HostPort, ...]) -> int:
        """The offerings whose daemons leave these host ports free."""
        if not ports:
            return -1
        found = self._free_of.get(ports)
        if found is None:
            taken = [any(p.conflicts(q) for p in ports for q in used) for used in self.stall.daemon_ports]
            groups = self.stall.daemon_group[self._types]
            found = self._free_of[ports] = as_mask(~np.array(taken, dtype=bool)[groups])
        return found

    def holding(self, axis: int, amount: int) -> int:
        """The offerings with room for so much along an axis, next to their daemons."""
        level = bisect_left(self._levels[axis], amount)
        return self._with_level(axis, level) if level < len(self._levels[axis]) else 0

    def _with_level(self, axis: int, level: int) -> int:
        known = self._at_least[axis]
        found = known.get(level)
        if found is None:
            large = self._sizes[axis] >= self._levels[axis][level]
            found = known[level] = as_mask(large)
        return found

    def largest(self, axis: int, mask: int) -> int:
        """The most that any of these offerings has along an axis; the mask must not be 0."""
        known = self._largest[axis]
        if mask not in known:
            known[mask] = self._highest_level(axis, mask)
        return known[mask]

    def _highest_level(self, axis: int, mask: int) -> int:
        levels = self._levels[axis]
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._with_level(axis, middle) & mask:
                low = middle
            else:
                high = middle - 1
        return levels[low]

    def by_value(self, key: str) -> tuple[dict[str, int], int]:
        """The offerings by their value of a label, and those that leave it open."""
        found = self._by_value.get(key)
        if found is None:
            codes, values = self.stall.template.table.row_values(key)
            here = codes[self.rows]
            masks: dict[str, int] = {}
            undecided = 0
            for code in distinct(here).tolist():
                bits = as_mask(here == code)
                value = values[code]
                if value is None:
                    undecided |= bits
                else:
                    masks[value] = masks.get(value, 0) | bits
            found = self._by_value[key] = (masks, undecided)
        return found

    def cheapest_for(self, domains: Mapping[str, int]) -> Mapping[str, int]:
        """By domain, given with its offerings, for how many instance types it has the cheapest."""
        case = tuple(domains.items())
        found = self._cheapest_for.get(case)
        if found is None:
            found = self._cheapest_for[case] = dict.fromkeys(domains, 0)
            every = 0
            for offerings in domains.values():
                every |= offerings
            firsts = self._firsts(every)
            for domain, offerings in domains.items():
                found[domain] = (offerings & firsts).bit_count()
        return found

    def _firsts(self, mask: int) -> int:
        """The cheapest offering of each type among these."""
        rows = self._positions(mask)
        first = dict(zip(self._types[rows][::-1].tolist(), rows[::-1].tolist(), strict=True))
        chosen = np.zeros(len(self.rows), dtype=bool)
        chosen[list(first.values())] = True
        return as_mask(chosen)

    def domains(self, key: str, mask: int, wanted: int) -> dict[str, int]:
        """The values of a label that a node may come to have, each with the offerings among `mask` that allow it.

        Labels that offerings leave open can have the values that the node's requirements list.
        """
        rule: Requirement | None = self._book[wanted].get(key)
        masks, undecided = self.by_value(key)
        found = {v: m & mask for v, m in masks.items() if m & mask and (rule is None or rule.has(v))}
        if undecided & mask and rule is not None and not rule.complement:
            for value in rule.values:
                found[value] = found.get(value, 0) | (undecided & mask)
        return found
