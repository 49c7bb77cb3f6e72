"""Fills existing nodes in Karpenter's order: initialized nodes first, then by name.

All nodes are judged at once, along columns: resources, rules about one node, and volumes their CSI drivers can attach.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `CanAdd`, scheduler.go `addToExistingNode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.existing_nodes import ExistingNodes
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.pod_classes import PodClass
from journeyman.core.scheduling.topology import Pins

_ANY_NUMBER: Final = 1 << 40

Taken = dict[int, list[tuple[int, int]]]
"""By existing node the (row, pods) put there, in order."""


class _RowDemand(Struct, frozen=True, kw_only=True):
    """What a row looks for: (column, amount) of `free` per pod, and its part in the rules about one node.

    `shared` are the columns of its drivers with the claims, by number, that all of its pods share.
    """

    amounts: tuple[tuple[int, int], ...]
    counted: tuple[int, ...]
    bound: tuple[int, ...]
    lasting: tuple[int, ...]
    follows: tuple[int, ...]
    leads: tuple[int, ...]
    shared: tuple[tuple[int, tuple[int, ...]], ...]


class NodeFilling:
    """What is still free on existing nodes, and what went where.

    Rules that are only preferred bind a row when it is placed, and no other pods afterwards.
    """

    def __init__(
        self,
        existing: ExistingNodes,
        rows: Sequence[PodClass],
        requests: Ints,
        caps: HostConstraints,
        taken: Mapping[int, Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        """Nodes as they are found.

        Args:
            existing: The nodes.
            rows: The rows of the problem.
            requests: Amounts by row and resource.
            caps: The rows' rules about one node, with which `existing` was surveyed.
            taken: What was placed there before.
        """
        self.existing = existing
        self.taken: Taken = {}
        self._rows = rows
        self._demands = np.concatenate((requests, caps.takes), axis=1)
        self._caps = caps
        self._resources = requests.shape[1]
        self._drivers = {
            d: n for n, d in enumerate(sorted({d for usage in existing.volume_usages for d in usage.limits}))
        }
        self._claims = self._claims_of(rows)
        self._free = np.ascontiguousarray(np.concatenate((existing.free.T, self._attachable())))
        self._attached = self._attached_now()
        self._counted = existing.counted.T.copy(order="C")
        self._bound = existing.bound.T.copy(order="C")
        self._company = existing.company.T.copy(order="C")
        self._asks: dict[int, _RowDemand] = {}
        self._suitable: dict[object, Bools] = {}
        self._suitable_by_row: dict[int, Bools] = {}
        self._pinned: dict[Pins, Bools] = {}
        for node, entries in sorted((taken or {}).items()):
            for row, count in entries:
                self.put(row, node, count)

    def _claims_of(self, rows: Sequence[PodClass]) -> dict[tuple[str, str], int]:
        found = sorted({claim for row in rows for claim in row.shared_volumes if claim[0] in self._drivers})
        return {claim: n for n, claim in enumerate(found)}

    def _attachable(self) -> Ints:
        """How many more volumes each node takes, by driver."""
        free = [[usage.free(driver) for usage in self.existing.volume_usages] for driver in self._drivers]
        known = [[_ANY_NUMBER if n is None else n for n in by_node] for by_node in free]
        return np.array(known, dtype=np.int64).reshape(len(self._drivers), len(self.existing.nodes))

    def _attached_now(self) -> Ints:
        """By claim that may be shared and node, how many pods use it there."""
        usages = self.existing.volume_usages
        found = [[int(key in usage.attached.get(driver, ())) for usage in usages] for driver, key in self._claims]
        return np.array(found, dtype=np.int64).reshape(len(self._claims), len(self.existing.nodes))

    # --- problems

    def open_to(self, row: int) -> Bools:
        """Which nodes can take one more pod of the row now."""
        return self.suits(row) & self.has_room(row)

    def has_room(self, row: int) -> Bools:
        """The same whatever their labels and taints: resources, rules about one node, and volumes."""
        ask = self._ask(row)
        found: Bools = np.ones(len(self.existing.nodes), dtype=bool)
        for column, amount in ask.amounts:
            found &= self._free[column] >= amount
        for conflict in ask.counted:
            found &= self._bound[conflict] == 0
        for conflict in ask.bound:
            found &= self._counted[conflict] == 0
        for group in ask.follows:
            found &= self._company[group] > 0
        for column, claims in ask.shared:
            found &= self._free[column] >= self._demand(row, column) + self._newly(claims)
        return found

    def free_pods(self, row: int, nodes: Sequence[int]) -> list[int]:
        """How many pods of the row each of these nodes can take now; each of them is open to it."""
        ask = self._ask(row)
        shared = dict(ask.shared)
        most = [_ANY_NUMBER] * len(nodes)
        for column, amount in ask.amounts:
            if amount:
                free = self._free[column]
                if column in shared:
                    free = free - self._newly(shared[column])
                most = list(map(min, most, [n // amount for n in free[nodes].tolist()]))
        return most

    def suits(self, row: int) -> Bools:
        """Which nodes the row tolerates and whose labels suit it. Not to be changed by the caller."""
        known = self._suitable_by_row.get(row)
        if known is None:
            known = self._suitable_by_row[row] = self._find_suitable(row)
        return known

    def accepts(self, row: int) -> Bools:
        """Which nodes the row tolerates, whatever their labels."""
        wanted = self._rows[row]
        return self.existing.columns.accepted(
            wanted.tolerations, avoids_prefer_no_schedule=wanted.avoids_prefer_no_schedule
        )

    def _find_suitable(self, row: int) -> Bools:
        wanted = self._rows[row]
        shape = (wanted.node_terms, wanted.tolerations, wanted.avoids_prefer_no_schedule)
        if shape not in self._suitable:
            self._suitable[shape] = self.accepts(row) & self.existing.columns.meeting(wanted.node_terms)
        return self._suitable[shape]

    # --- placing

    def fill(self, row: int, count: int, pins: Pins = ()) -> int:
        """Place as many pods of the row as nodes with these labels take, first nodes first; how many are left."""
        return count - sum(n for _, n in self.place(row, count, pins))

    def place(self, row: int, count: int, pins: Pins = ()) -> list[tuple[int, int]]:
        """The same; where they went, as (node, pods)."""
        if not self.existing.nodes or count <= 0:
            return []
        found = self.open_to(row)
        if pins:
            found &= self._with_labels(pins)
        nodes = np.flatnonzero(found)[:count].tolist()  # each takes one at least
        return self.put_first(row, count, list(zip(nodes, self.free_pods(row, nodes), strict=True)))

    def put_first(self, row: int, count: int, capacities: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Place pods of the row on nodes with so much capacity, first nodes first; where they went, as (node, pods)."""
        placed: list[tuple[int, int]] = []
        for node, most in capacities:
            if count <= 0:
                break
            placed.append((node, min(count, most)))
            self.put(row, *placed[-1])
            count -= most
        return placed

    def put(self, row: int, node: int, count: int) -> None:
        """Place pods of the row on a node, whether it takes them or not."""
        self._move(row, node, count)
        self.taken.setdefault(node, []).append((row, count))

    def take_back(self, row: int, node: int, count: int) -> None:
        """Undo one `put`."""
        self._move(row, node, -count)
        self.taken[node].remove((row, count))
        if not self.taken[node]:
            del self.taken[node]

    def _move(self, row: int, node: int, count: int) -> None:
        ask = self._ask(row)
        for column, amount in ask.amounts:
            self._free[column, node] -= amount * count
        for conflict in ask.counted:
            self._counted[conflict, node] += count
        for conflict in ask.lasting:
            self._bound[conflict, node] += count
        for group in ask.leads:
            self._company[group, node] += count
        for column, claims in ask.shared:
            for claim in claims:
                users = self._attached[claim, node]
                self._free[column, node] -= int(users + count > 0) - int(users > 0)
                self._attached[claim, node] = users + count

    # --- lookups

    @cached_property
    def _within_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.within)

    @cached_property
    def _counted_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.counted)

    @cached_property
    def _bound_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.bound)

    @cached_property
    def _lasting_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.lasting)

    @cached_property
    def _follows_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.follows)

    @cached_property
    def _leads_of_row(self) -> list[tuple[int, ...]]:
        return _columns_set(self._caps.leads)

    def _with_labels(self, pins: Pins) -> Bools:
        if pins not in self._pinned:
            self._pinned[pins] = self.existing.columns.pinned(pins)
        return self._pinned[pins]

    def _newly(self, claims: tuple[int, ...]) -> Ints:
        """By node, how many of these claims would have to be attached."""
        missing: Ints = (self._attached[list(claims)] == 0).sum(axis=0)
        return missing

    def _demand(self, row: int, column: int) -> int:
        return next((amount for c, amount in self._ask(row).amounts if c == column), 0)

    def _ask(self, row: int) -> _RowDemand:
        if row not in self._asks:
            self._asks[row] = self._make_ask(row)
        return self._asks[row]

    def _make_ask(self, row: int) -> _RowDemand:
        wanted = self._rows[row]
        demand = self._demands[row].tolist()
        amounts = {column: amount for column, amount in enumerate(demand) if amount}
        for axis in self._within_of_row[row]:
            amounts.setdefault(self._resources + axis, 0)
        for driver, count in wanted.volume_counts.items():
            if driver in self._drivers and count:
                amounts[len(demand) + self._drivers[driver]] = count
        shared: dict[int, list[int]] = {}
        for claim in wanted.shared_volumes:
            if claim in self._claims:
                shared.setdefault(len(demand) + self._drivers[claim[0]], []).append(self._claims[claim])
        return _RowDemand(
            amounts=tuple(amounts.items()),
            counted=self._counted_of_row[row],
            bound=self._bound_of_row[row],
            lasting=self._lasting_of_row[row],
            follows=self._follows_of_row[row],
            leads=self._leads_of_row[row],
            shared=tuple((column, tuple(claims)) for column, claims in sorted(shared.items())),
        )


def _columns_set(flags: Bools) -> list[tuple[int, ...]]:
    """Return, by row, the columns that are set."""
    found: list[list[int]] = [[] for _ in flags]
    for row, column in zip(*(axis.tolist() for axis in np.nonzero(flags)), strict=True):
        found[row].append(column)
    return [tuple(columns) for columns in found]
