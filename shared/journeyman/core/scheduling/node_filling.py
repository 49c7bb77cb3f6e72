"""Fills existing nodes in the order of `existing_nodes`: initialized nodes first, then by name.

Compares a row with all nodes at once, column by column: resources, host constraints, and volumes to attach by CSI
driver.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `CanAdd`, scheduler.go `addToExistingNode`,
pkg/scheduling/volumeusage.go `ExceedsLimits`.
Differs: only CSI drivers that the pod itself uses can reject it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from journeyman.core.scheduling.arrays import Bools, Ints, read_only
from journeyman.core.scheduling.existing_nodes import ColumnAmount, ExistingNodes, RowDemand, SharedClaims
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.pod_classes import PodClass, RowPods
from journeyman.core.scheduling.topology import DecidedLabels
from journeyman.core.scheduling.volumes import SharedVolume

ANY_NUMBER: Final = 1 << 40

Taken = dict[int, list[RowPods]]
"""The pods placed on each existing node, in order."""


class NodePods(NamedTuple):
    """A number of pods on one existing node."""

    node: int
    pods: int


class NodeFilling:
    """Tracks the free capacity of existing nodes, and the pods placed on them.

    A preferred rule restricts the row that has it when its pods are placed, but not pods that are placed later.
    """

    def __init__(
        self,
        existing: ExistingNodes,
        rows: Sequence[PodClass],
        requests: Ints,
        host_constraints: HostConstraints,
        taken: Mapping[int, Sequence[RowPods]] | None = None,
    ) -> None:
        """Start with the free capacity of the nodes, less the pods placed so far.

        Args:
            existing: The nodes.
            rows: The rows of the problem.
            requests: The requests of one pod, by row and resource.
            host_constraints: The host constraints with which `existing` was computed.
            taken: The pods placed so far, by node.
        """
        self.existing = existing
        self.taken: Taken = {}
        self._rows = rows
        self._demands = np.concatenate((requests, host_constraints.uses), axis=1)
        self._host_constraints = host_constraints
        self._resources = requests.shape[1]
        self._drivers = {
            d: n for n, d in enumerate(sorted({d for usage in existing.volume_usages for d in usage.limits}))
        }
        claims = {c for row in rows for c in row.shared_volumes if c.driver in self._drivers} if self._drivers else ()
        self._claims: dict[SharedVolume, int] = {claim: n for n, claim in enumerate(sorted(claims))}
        # by driver, how many more volumes each node can attach; by claim, 1 for nodes where running pods use it
        left = [[usage.free(driver) for usage in existing.volume_usages] for driver in self._drivers]
        attachable = np.array([[ANY_NUMBER if n is None else n for n in by_node] for by_node in left], dtype=np.int64)
        users = [[int(c.claim in u.attached.get(c.driver, ())) for u in existing.volume_usages] for c in self._claims]
        nodes = len(existing.nodes)
        tables = existing.free.T, attachable.reshape(len(left), nodes)
        self._free: Ints = np.ascontiguousarray(np.concatenate(tables))
        self._attached: Ints = np.array(users, dtype=np.int64).reshape(len(users), nodes)
        self._counted = existing.counted.copy(order="C")
        self._owning = existing.owning.copy(order="C")
        self._followed_counts = existing.followed_counts.copy(order="C")
        self._decided: dict[DecidedLabels, Bools] = {}
        for node, entries in sorted((taken or {}).items()):
            for row, count in entries:
                self.put(row, node, count)

    # --- queries

    def open_to(self, row: int) -> Bools:
        """Return for each node whether one more pod of the row fits and meets all constraints."""
        return self.suits(row) & self.has_capacity(row)

    def has_capacity(self, row: int) -> Bools:
        """Return for each node whether one more pod of the row fits, ignoring labels and taints."""
        demand = self._row_demand(row)
        size = self.size
        fits: Bools = np.ones(size, dtype=bool)
        for column, amount in demand.amounts:
            fits &= self._free[column, :size] >= amount
        for conflict in demand.counted:
            fits &= self._owning[conflict, :size] == 0
        for conflict in demand.owning:
            fits &= self._counted[conflict, :size] == 0
        for group in demand.follows:
            fits &= self.has_leader(row, group)
        for column, claims in demand.shared:
            amount = next((n for c, n in demand.amounts if c == column), 0)
            fits &= (self._free[column] >= amount + self._unattached(claims))[:size]
        return fits

    def has_leader(self, _row: int, group: int) -> Bools:
        """Return for each node whether it has a pod of those that an affinity over hostnames counts."""
        found: Bools = self._followed_counts[group, : self.size] > 0
        return found

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.existing.nodes)

    def free_pods(self, row: int, nodes: Sequence[int]) -> list[int]:
        """Return how many pods of the row each of these nodes can take; all of them must be open to the row."""
        pods: list[int] = self._free_pods(row, nodes).tolist()
        return pods

    def _free_pods(self, row: int, nodes: Sequence[int] | Ints) -> Ints:
        demand = self._row_demand(row)
        shared = dict(demand.shared)
        most: Ints = np.full(len(nodes), ANY_NUMBER, dtype=np.int64)
        for column, amount in demand.amounts:
            if amount:
                free = self._free[column]
                if column in shared:
                    free = free - self._unattached(shared[column])
                np.minimum(most, free[nodes] // amount, out=most)
        return most

    def slots(self, row: int) -> Ints:
        """Return how many pods of the row each node takes, if no other pods are placed."""
        slots: Ints = np.zeros(len(self.existing.nodes), dtype=np.int64)
        nodes = np.flatnonzero(self.open_to(row))
        slots[nodes] = self._free_pods(row, nodes)
        return slots

    def suits(self, row: int) -> Bools:
        """Return for each node whether the row tolerates its taints and accepts its labels; the array is read-only."""
        known = self.existing.suitable
        suitable = known.get(row)
        if suitable is None:
            pods = self._rows[row]
            constraints = (pods.node_terms, pods.tolerations, pods.avoids_prefer_no_schedule)
            if constraints not in known:
                known[constraints] = read_only(self.accepts(row) & self.existing.columns.meeting(pods.node_terms))
            suitable = known[row] = known[constraints]
        return suitable

    def accepts(self, row: int) -> Bools:
        """Return for each node whether the row tolerates its taints."""
        pods = self._rows[row]
        return self.existing.columns.accepted(
            pods.tolerations, avoids_prefer_no_schedule=pods.avoids_prefer_no_schedule
        )

    def slots_at(self, row: int, node: int) -> int:
        """Return how many pods of the row a node takes, ignoring labels and taints."""
        demand = self._row_demand(row)
        for conflict in demand.counted:
            if self._owning[conflict, node]:
                return 0
        for conflict in demand.owning:
            if self._counted[conflict, node]:
                return 0
        for group in demand.follows:
            if self._followed_counts[group, node] <= 0:
                return 0
        missing = {column: int((self._attached[list(claims), node] == 0).sum()) for column, claims in demand.shared}
        most = ANY_NUMBER
        for column, amount in demand.amounts:
            free = int(self._free.item(column, node)) - (missing.get(column, 0) if missing else 0)
            if free < amount:
                return 0
            if amount and free < amount * most:
                most = free // amount
        return most

    def missing(self, row: int, resources: Ints) -> Ints:
        """Return what each node lacks of these resources for one more pod: a row per resource; 0 if it has enough."""
        lacking: Ints = np.maximum(self._demands[row, resources, None] - self._free[resources], 0)
        return lacking

    # --- placing

    def close(self, node: int) -> Ints:
        """Let the node take no pods; return what `reopen` needs."""
        free: Ints = self._free[:, node].copy()
        self._free[:, node] = -1
        return free

    def reopen(self, node: int, free: Ints) -> None:
        """Undo `close`."""
        self._free[:, node] = free

    def fill(self, row: int, count: int, decided: DecidedLabels = ()) -> int:
        """Place as many pods of the row as fit on nodes with these labels, in order; return how many are left."""
        return count - sum(placed.pods for placed in self.place(row, count, decided))

    def place(self, row: int, count: int, decided: DecidedLabels = ()) -> list[NodePods]:
        """Place as many pods of the row as fit on nodes with these labels; return the pods per node."""
        is_open = self.open_to(row)
        if decided:
            if decided not in self._decided:
                self._decided[decided] = self.existing.columns.with_labels(decided)
            is_open &= self._decided[decided]
        nodes = np.flatnonzero(is_open)[:count].tolist()  # at least one pod fits on each
        return self.put_first(row, count, list(map(NodePods, nodes, self.free_pods(row, nodes))))

    def put_first(self, row: int, count: int, capacities: Sequence[NodePods]) -> list[NodePods]:
        """Place pods of the row on these nodes in order, at most the given number on each; return the pods per node."""
        placed: list[NodePods] = []
        for node, most in capacities:
            if count <= 0:
                break
            placed.append(NodePods(node, min(count, most)))
            self.put(row, node, placed[-1].pods)
            count -= most
        return placed

    def put(self, row: int, node: int, count: int) -> None:
        """Place pods of the row on a node, without a check that they fit."""
        self._move(row, node, count)
        self.taken.setdefault(node, []).append(RowPods(row, count))

    def take_back(self, row: int, node: int, count: int) -> None:
        """Undo one call of `put`."""
        self._move(row, node, -count)
        self.taken[node].remove(RowPods(row, count))
        if not self.taken[node]:
            del self.taken[node]

    def _move(self, row: int, node: int, count: int) -> None:
        demand = self._row_demand(row)
        for column, amount in (*demand.amounts, *demand.unlimited):
            self._free[column, node] -= amount * count
        for conflict in demand.counted:
            self._counted[conflict, node] += count
        for conflict in demand.lasting:
            self._owning[conflict, node] += count
        for group in demand.leads:
            self._followed_counts[group, node] += count
        for column, claims in demand.shared:
            for claim in claims:
                users = self._attached[claim, node]
                self._free[column, node] -= int(users + count > 0) - int(users > 0)
                self._attached[claim, node] = users + count

    # --- lookups

    def _unattached(self, claims: tuple[int, ...]) -> Ints:
        """Return for each node how many of these claims are not attached to it."""
        missing: Ints = (self._attached[list(claims)] == 0).sum(axis=0)
        return missing

    def _row_demand(self, row: int) -> RowDemand:
        demand = self.existing.demands.get(row)
        if demand is None:
            demand = self.existing.demands[row] = self._make_row_demand(row)
        return demand

    def _make_row_demand(self, row: int) -> RowDemand:
        pods = self._rows[row]
        amounts_by_column = self._demands[row].tolist()
        limits = {self._resources + axis for axis in _columns(self._host_constraints.within[row])}
        used = {column: amount for column, amount in enumerate(amounts_by_column) if amount}
        amounts = {column: n for column, n in used.items() if column < self._resources or column in limits}
        amounts.update((column, 0) for column in sorted(limits - amounts.keys()))
        for driver, count in pods.volume_counts.items():
            if driver in self._drivers and count:
                amounts[len(amounts_by_column) + self._drivers[driver]] = count
        shared: dict[int, list[int]] = {}
        for claim in pods.shared_volumes:
            if claim in self._claims:
                shared.setdefault(len(amounts_by_column) + self._drivers[claim.driver], []).append(self._claims[claim])
        host_constraints, uncounted = self._host_constraints, self._host_constraints.is_uncounted
        return RowDemand(
            amounts=tuple(ColumnAmount(column, amount) for column, amount in amounts.items()),
            unlimited=tuple(ColumnAmount(column, n) for column, n in used.items() if column not in amounts),
            counted=_columns(host_constraints.counted[row] & uncounted),
            owning=_columns(host_constraints.owning[row] & uncounted),
            lasting=_columns(host_constraints.lasting[row] & uncounted),
            follows=_columns(host_constraints.follows[row]),
            leads=_columns(host_constraints.leads[row]),
            shared=tuple(SharedClaims(column, tuple(claims)) for column, claims in sorted(shared.items())),
        )


def _columns(flags: Bools) -> tuple[int, ...]:
    """Return the columns that are set."""
    return tuple(np.flatnonzero(flags).tolist())
