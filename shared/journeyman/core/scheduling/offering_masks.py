"""Represents offerings as bit masks and requirements as IDs.

Bit 0 is the cheapest available offering, so the lowest bit of a mask is the cheapest of its offerings, and one `&`
combines two conditions for all offerings. Requirements have IDs, so that equal ones are merged and compared once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from journeyman.core.api import labels
from journeyman.core.catalogue import InstanceType
from journeyman.core.scheduling.arrays import Bools, Ints, distinct
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.pod_classes import HostPort
from journeyman.core.scheduling.requirements import Requirement, Requirements, requirement


def lowest(mask: int) -> int:
    """The position of the lowest bit of a mask that is not 0."""
    return (mask & -mask).bit_length() - 1


def as_mask(bits: Bools) -> int:
    """Return booleans by offering as a mask."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


class OfferingMasks:
    """One NodePool. `rows[b]` is the offering (a row of its table) that bit b stands for.

    `ordinary` are the offerings without a reservation, `reserved` the others by reservation, each as (name, offerings).
    """

    def __init__(self, index: int, pool: NodePoolOptions, interner: RequirementsInterner) -> None:
        """`index` is the NodePool's position among the NodePools of the pass."""
        table = pool.template.table
        self.index = index
        self.pool = pool
        self.offer = interner.id_of(pool.template.requirements)
        self._interner = interner
        usable = pool.template.rows & pool.usable[table.row_type]
        self.rows: Ints = table.by_price[usable[table.by_price]]
        self._types: Ints = table.row_type[self.rows]
        self._prices: list[float] = table.prices[self.rows].tolist()
        reservation = table.row_reservation[self.rows]
        self.ordinary = as_mask(reservation < 0)
        self.reserved = [
            (table.reservations[n], as_mask(reservation == n)) for n in distinct(reservation[reservation >= 0]).tolist()
        ]
        sizes = pool.sizes[self._types]
        self._sizes: list[Ints] = [np.ascontiguousarray(sizes[:, axis]) for axis in range(sizes.shape[1])]
        self._levels: list[list[int]] = [sorted(set(column.tolist())) for column in self._sizes]
        self._at_least: list[dict[int, int]] = [{} for _ in self._levels]
        self._largest: list[dict[int, int]] = [{} for _ in self._levels]
        self._meeting: dict[int, int] = {}
        self._with_free_ports: dict[tuple[HostPort, ...], int] = {}
        self._cheapest_for: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        self._by_value: dict[str, tuple[dict[str, int], int]] = {}

    def of_types(self, types: Bools) -> int:
        """Return the offerings of these instance types."""
        return as_mask(types[self._types])

    def types_of(self, offerings: int) -> list[int]:
        """Return the instance types of these offerings as indices, the cheapest first."""
        return list(dict.fromkeys(self._types[self._offering_indices(offerings)].tolist()))

    def _offering_indices(self, mask: int) -> Ints:
        packed = np.frombuffer(mask.to_bytes((len(self.rows) + 7) // 8, "little"), dtype=np.uint8)
        found: Ints = np.flatnonzero(np.unpackbits(packed, bitorder="little", count=len(self.rows)))
        return found

    def instance_types(self, offerings: int) -> list[InstanceType]:
        """Return the instance types of these offerings, the cheapest first."""
        return [self.pool.template.table.types[index] for index in self.types_of(offerings)]

    def type_names(self, offerings: int) -> list[str]:
        """Return the names of these offerings' instance types, the cheapest first."""
        return [found.name for found in self.instance_types(offerings)]

    def type_of(self, offerings: int) -> int:
        """The instance type of the cheapest of these offerings."""
        return int(self._types[lowest(offerings)])

    def price(self, offerings: int) -> float:
        """Return the price of the cheapest of these offerings plus the NodePool's surcharge per node."""
        return self._prices[lowest(offerings)] + self.pool.template.node_surcharge

    def cheaper_than(self, price: float) -> int:
        """Return the offerings whose own price, without the NodePool's surcharge, is lower."""
        return (1 << bisect_left(self._prices, price)) - 1

    def lowest_price(self, offerings: int) -> float:
        """Return the price of the cheapest of these offerings, without the NodePool's surcharge."""
        return self._prices[lowest(offerings)]

    def meeting(self, requirements_id: int) -> int:
        """Return the offerings that meet the requirements with this ID."""
        found = self._meeting.get(requirements_id)
        if found is None:
            rows = self.pool.template.table.rows_meeting(self._interner[requirements_id])
            found = self._meeting[requirements_id] = as_mask(rows[self.rows])
        return found

    def with_free_ports(self, ports: tuple[HostPort, ...]) -> int:
        """Return the offerings whose daemons leave these host ports free."""
        if not ports:
            return -1
        found = self._with_free_ports.get(ports)
        if found is None:
            found = self._with_free_ports[ports] = as_mask(self.pool.types_with_free_ports(ports)[self._types])
        return found

    def holding(self, axis: int, amount: int) -> int:
        """Return the offerings with at least this capacity along an axis, less daemon overhead."""
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
        """Return the largest capacity of these offerings along an axis; the mask must not be 0."""
        known = self._largest[axis]
        if mask not in known:
            low, high = 0, len(self._levels[axis]) - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._with_level(axis, middle) & mask else (low, middle - 1)
            known[mask] = self._levels[axis][low]
        return known[mask]

    def by_value(self, key: str) -> tuple[dict[str, int], int]:
        """Return the offerings by their value of a label, and the offerings that leave it open."""
        found = self._by_value.get(key)
        if found is None:
            codes, values = self.pool.template.table.row_values(key)
            row_codes = codes[self.rows]
            masks: dict[str, int] = {}
            undecided = 0
            for code in distinct(row_codes).tolist():
                bits = as_mask(row_codes == code)
                value = values[code]
                if value is None:
                    undecided |= bits
                else:
                    masks[value] = masks.get(value, 0) | bits
            found = self._by_value[key] = (masks, undecided)
        return found

    def cheapest_for(self, domains: Mapping[str, int]) -> Mapping[str, int]:
        """Return by domain the number of instance types whose cheapest offering is there."""
        case = tuple(domains.items())
        found = self._cheapest_for.get(case)
        if found is None:
            found = self._cheapest_for[case] = dict.fromkeys(domains, 0)
            in_any = 0
            for offerings in domains.values():
                in_any |= offerings
            firsts = self._cheapest_of_each_type(in_any)
            for domain, offerings in domains.items():
                found[domain] = (offerings & firsts).bit_count()
        return found

    def _cheapest_of_each_type(self, mask: int) -> int:
        """Return the cheapest of these offerings for each instance type."""
        rows = self._offering_indices(mask)
        first = dict(zip(self._types[rows][::-1].tolist(), rows[::-1].tolist(), strict=True))
        chosen = np.zeros(len(self.rows), dtype=bool)
        chosen[list(first.values())] = True
        return as_mask(chosen)

    def domains(self, key: str, mask: int, requirements_id: int) -> dict[str, int]:
        """Return the possible values of a label on a node, each with the offerings in `mask` that allow it.

        A label that offerings leave open can have any value that the node's requirements list.
        """
        rule: Requirement | None = self._interner[requirements_id].get(key)
        masks, undecided = self.by_value(key)
        found = {v: m & mask for v, m in masks.items() if m & mask and (rule is None or rule.has(v))}
        if undecided & mask and rule is not None and not rule.complement:
            for value in rule.values:
                found[value] = found.get(value, 0) | (undecided & mask)
        return found


CONFLICT: Final = -1
"""The ID of requirements that contradict each other."""


class RequirementsInterner:
    """Assigns IDs to requirements; equal requirements have the same ID."""

    def __init__(self) -> None:
        self._entries: list[Requirements] = []
        self._numbers: dict[Requirements, int] = {}
        self._narrowed: dict[tuple[int, int], int] = {}
        self._one_of: dict[tuple[str, tuple[str, ...]], int] = {}

    def __getitem__(self, number: int) -> Requirements:
        return self._entries[number]

    def id_of(self, requirements: Requirements) -> int:
        """Return the ID of these requirements."""
        found = self._numbers.get(requirements)
        if found is None:
            found = self._numbers[requirements] = len(self._entries)
            self._entries.append(requirements)
        return found

    def one_of(self, key: str, values: Iterable[str]) -> int:
        """Return the ID of the requirement `key In values`."""
        case = (key, tuple(sorted(values)))
        found = self._one_of.get(case)
        if found is None:
            found = self._one_of[case] = self.id_of(Requirements({key: requirement(key, "In", case[1])}))
        return found

    def narrowed(self, offer: int, alternative: int) -> int:
        """Return the ID of both combined, `CONFLICT` if none; `offer` need not define well-known labels."""
        case = (offer, alternative)
        found = self._narrowed.get(case)
        if found is None:
            offered, required = self._entries[offer], self._entries[alternative]
            meets = offered.is_compatible(required, allow_undefined=labels.WELL_KNOWN)
            found = self._narrowed[case] = self.id_of(offered & required) if meets else CONFLICT
        return found
