"""A NodePool at the market: its instance types with what daemons leave of them, and which of its offerings suit a wish.

What is found out about a wish is kept: thousands of classes share a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools, Ints, every, undominated
from journeyman.core.scheduling.demand.host_ports import HostPort
from journeyman.core.scheduling.offering.templates import Template
from journeyman.core.scheduling.offering.wishes import WHOLE, Variant, Wish
from journeyman.core.scheduling.requirements import Requirement, Requirements


class _Spots(Struct, frozen=True, eq=False):
    """Where a wish can be had: by group of domains the sizes on offer there, dominated ones left out."""

    domains: tuple[tuple[tuple[str, ...], ...], ...]
    sizes: Ints
    owners: Ints

    def holding(self, request: Ints | None) -> frozenset[tuple[str, ...]]:
        groups = (
            range(len(self.domains)) if request is None else set(self.owners[every(self.sizes >= request)].tolist())
        )
        return frozenset(domain for group in groups for domain in self.domains[group])


class Stall(Struct, frozen=True, kw_only=True, eq=False):
    """A template with what its nodes have for pods: `sizes` by type and axis, once daemons run.

    `overhead` is what the daemons take; `usable` is False where they alone are too much. Types with equal
    `daemon_group` have the same host ports in use by daemons, `daemon_ports` by group.
    """

    template: Template
    sizes: Ints
    overhead: Ints
    usable: Bools
    daemon_group: Ints
    daemon_ports: tuple[frozenset[HostPort], ...]
    _rows: dict[Wish, tuple[Bools, ...]] = field(default_factory=dict)
    _serves: dict[Wish, bool] = field(default_factory=dict)
    _spots: dict[tuple[Wish, tuple[str, ...]], _Spots] = field(default_factory=dict)
    _largest: dict[bytes, Ints] = field(default_factory=dict)

    @classmethod
    def of(
        cls, template: Template, axes: Sequence[str], overhead: Ints, ports: Sequence[frozenset[HostPort]] = ()
    ) -> Stall:
        """The template's types measured along these axes.

        Args:
            template: Its table has the types.
            axes: Resources.
            overhead: What daemons take, by type and axis.
            ports: The host ports that daemons take, by type; none if not given.
        """
        table = template.table
        allocatable = [table.amounts(axis, allocatable=True) for axis in axes]
        sizes: Ints = np.array(allocatable, dtype=np.int64).reshape(len(axes), len(table.types)).T - overhead
        groups = {used: group for group, used in enumerate(dict.fromkeys(ports))} or {frozenset[HostPort](): 0}
        return cls(
            template=template,
            sizes=sizes,
            overhead=overhead,
            usable=every(sizes >= 0),
            daemon_group=np.array([groups[used] for used in ports] or [0] * len(table.types), dtype=np.int64),
            daemon_ports=tuple(groups),
        )

    def rows(self, wish: Wish, variant: Variant = WHOLE) -> Bools:
        """The offerings that suit a wish in a variant, whatever their size. Not to be changed by the caller."""
        by_term = self.rows_by_term(wish)
        if len(by_term) == 1 and variant.admits(wish.terms[0]):
            return by_term[0]
        found: Bools = np.zeros(len(self.template.table.row_type), dtype=bool)
        for term, rows in zip(wish.terms, by_term, strict=True):
            if variant.admits(term):
                found |= rows
        return found

    def serves(self, wish: Wish) -> bool:
        """Whether any offering suits a wish, whatever its size."""
        found = self._serves.get(wish)
        if found is None:
            accepted = wish.shape.accepts(self.template.pool.spec.template.spec.taints)
            found = self._serves[wish] = accepted and any(rows.any() for rows in self.rows_by_term(wish))
        return found

    def rows_by_term(self, wish: Wish) -> tuple[Bools, ...]:
        """The offerings that suit each of a wish's terms, open labels aside."""
        if wish not in self._rows:
            accepted = wish.shape.accepts(self.template.pool.spec.template.spec.taints)
            self._rows[wish] = tuple(self._rows_for(term if accepted else None) for term in wish.terms)
        return self._rows[wish]

    def _rows_for(self, term: Requirements | None) -> Bools:
        template, table = self.template, self.template.table
        if term is None or template.requirements.compatible(term, allow_undefined=labels.WELL_KNOWN) is not None:
            return np.zeros(len(table.row_type), dtype=bool)
        return table.rows_meeting(template.narrowed(term)) & template.rows & self.usable[table.row_type]

    def domains_for(self, wish: Wish, keys: tuple[str, ...], request: Ints | None = None) -> frozenset[tuple[str, ...]]:
        """The values of labels that a node for the wish can have together, one for each of `keys` in their order.

        Args:
            wish: Its own pins count as well.
            keys: Any node labels; one whose values nobody lists (a pool that merely wants it to exist) has none.
            request: If given, only where one pod that asks for so much fits (amounts along the axes).
        """
        if (wish, keys) not in self._spots:
            self._spots[wish, keys] = self._find_spots(wish, keys)
        return self._spots[wish, keys].holding(request)

    def _find_spots(self, wish: Wish, keys: tuple[str, ...]) -> _Spots:
        found: dict[tuple[tuple[str, ...], ...], Bools] = {}
        for term, rows in zip(wish.terms, self.rows_by_term(wish), strict=True):
            for domains, where in self._combinations(term, keys, np.flatnonzero(rows)):
                types = found.setdefault(domains, np.zeros(len(self.sizes), dtype=bool))
                types[self.template.table.row_type[where]] = True
        sizes = [self._largest_of(types) for types in found.values()]
        return _Spots(
            domains=tuple(found),
            sizes=np.concatenate((*sizes, self.sizes[:0])),
            owners=np.repeat(np.arange(len(sizes)), [len(s) for s in sizes]),
        )

    def _largest_of(self, types: Bools) -> Ints:
        """The sizes of these types, without those that another exceeds everywhere."""
        key = types.tobytes()
        if key not in self._largest:
            sizes = self.sizes[types]
            sizes = sizes[np.argsort(-sizes.sum(axis=1), kind="stable")]
            self._largest[key] = sizes[undominated(sizes)]
        return self._largest[key]

    def _combinations(
        self, term: Requirements, keys: tuple[str, ...], rows: Ints
    ) -> Iterable[tuple[tuple[tuple[str, ...], ...], Ints]]:
        """The rows by the values of the keys that they allow together, as (combinations of values, rows)."""
        for own, where in self.template.table.by_labels(keys, rows):
            domains = tuple(product(*(self._values(key, r, term) for key, r in zip(keys, own, strict=True))))
            if domains:
                yield domains, where

    def _values(self, key: str, own: Requirement | None, term: Requirements) -> tuple[str, ...]:
        """The values that pool, instance type and term leave to a label, sorted; none if they do not list any."""
        parts = [r for r in (own, self.template.requirements.get(key), term.get(key)) if r is not None]
        if not parts:
            return ()
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.intersection(part)
        return () if merged.complement else tuple(sorted(merged.values))
