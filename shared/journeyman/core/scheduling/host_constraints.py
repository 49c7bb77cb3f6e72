"""Turns rules about one node (hostname spread and anti-affinity, host ports) into resources and conflicts.

An *axis* is a resource in addition to cpu and memory: each node has a capacity on it, and each pod uses one unit. The
capacity is `maxSkew` for hostname spread, and 1 for hostname anti-affinity and for a host port. A *conflict* keeps two
kinds of rows off the same node: rows that a rule counts but that do not have the rule, and rows that have it.

A new node is always an empty domain, so it needs no further checks. `Axis.group`, `Axis.ports` and `Conflict` describe
the running pods that matter on existing nodes; `NodeInventory.survey` counts them.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go (the cases of kubernetes.io/hostname),
pkg/scheduling/hostportusage.go.
Differs: rules are symmetric even if they are only preferred; on existing nodes preferred rules are not (`lasting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.topology import InverseAntiAffinity, LabelIndex, TopologyGroup


class Axis(Struct, frozen=True, kw_only=True):
    """A resource of which each node has `capacity`.

    Each running pod that `group` counts uses one unit; a node on which one of `ports` is in use has none left.
    `awaits_daemons`: DaemonSets' pods that are still to come count, too.
    """

    capacity: int
    group: TopologyGroup | None = None
    awaits_daemons: bool = False
    ports: frozenset[HostPort] = frozenset()


class Conflict(Struct, frozen=True, kw_only=True):
    """Two kinds of rows that never share a node.

    On existing nodes, running pods that `group` counts are of the first kind; the nodes named in `domains` run a pod of
    the second kind. `is_counted`: an axis counts the same pods, so that only packing, which knows no order, needs the
    conflict.
    """

    group: TopologyGroup | None = None
    domains: frozenset[str] = frozenset()
    is_counted: bool = False


class HostConstraints(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """All rules about a single node. Arrays have a row per row of the problem; columns are axes, conflicts or groups.

    Attributes:
        axes: The axes.
        conflicts: The conflicts.
        followed: The groups of hostname affinities.
        capacities: The capacity of a node on each axis.
        uses: What a pod of the row uses of each axis.
        within: Whether the row's rule forbids to exceed the axis, even if its own pods use nothing of it. Pods of other
            rows use it, and may exceed it.
        counted: Whether the row is of a conflict's first kind.
        owning: Whether the row is of a conflict's second kind: its pods have the rule; no row is of both.
        lasting: Whether the row is bound by a required rule, not only by a preference.
        follows: Whether the row's pods need a pod on their node that the group counts.
        leads: Whether the group counts the row's pods.
    """

    axes: tuple[Axis, ...]
    conflicts: tuple[Conflict, ...]
    followed: tuple[TopologyGroup, ...]
    capacities: Ints
    uses: Ints
    within: Bools
    counted: Bools
    owning: Bools
    lasting: Bools
    follows: Bools
    leads: Bools

    @cached_property
    def is_uncounted(self) -> Bools:
        """Return for each conflict whether no axis counts the same pods."""
        return np.array([not conflict.is_counted for conflict in self.conflicts], dtype=bool)

    @property
    def limited_uses(self) -> Ints:
        """What a pod of a row uses of each axis that limits the row."""
        return self.uses * self.within

    def capacities_with_used_ports(self, ports: Collection[HostPort]) -> Ints:
        """Return the capacity on each axis of a node on which these host ports are in use."""
        if not ports:
            return self.capacities
        used = np.array([not axis.ports.isdisjoint(ports) for axis in self.axes], dtype=bool)
        return np.where(used, 0, self.capacities)

    def for_new_nodes(self, counts: Ints) -> HostConstraints:
        """Return the constraints that can matter on new nodes, with equal axes merged.

        Args:
            counts: The number of pods of each row that may need new nodes.
        """
        if not self.axes and not self.conflicts:
            return self
        has_pods = counts > 0
        uses = self.limited_uses
        total = counts @ uses
        ported = np.array([bool(axis.ports) for axis in self.axes], dtype=bool)
        axes = np.flatnonzero((total > self.capacities) | (ported & (total > 0)))
        has_both_kinds = (self.counted & has_pods[:, None]).any(axis=0) & (self.owning & has_pods[:, None]).any(axis=0)
        conflicts = np.flatnonzero(has_both_kinds)
        merged = _merged(self.axes, uses, axes)
        return HostConstraints(
            axes=tuple(axis for axis, _ in merged),
            conflicts=tuple(self.conflicts[c] for c in conflicts),
            followed=self.followed,
            capacities=np.array([axis.capacity for axis, _ in merged], dtype=np.int64),
            uses=uses[:, [column for _, column in merged]],
            within=self.within[:, [column for _, column in merged]],
            counted=self.counted[:, conflicts],
            owning=self.owning[:, conflicts],
            lasting=self.lasting[:, conflicts],
            follows=self.follows,
            leads=self.leads,
        )


def _merged(axes: Sequence[Axis], uses: Ints, columns: Iterable[int]) -> list[tuple[Axis, int]]:
    """Merge axes of which each row uses the same amount; the merged axis has the least capacity and all ports."""
    merged: dict[bytes, tuple[Axis, int]] = {}
    for column in map(int, columns):
        key, axis = uses[:, column].tobytes(), axes[column]
        previous, first = merged.get(key, (axis, column))
        both = replace(previous, capacity=min(previous.capacity, axis.capacity), ports=previous.ports | axis.ports)
        merged[key] = (both, first)
    return list(merged.values())


def host_constraints_of(
    rows: Sequence[PodClass],
    inverse_anti_affinities: Sequence[InverseAntiAffinity],
    used_ports: Iterable[HostPort],
    *,
    row_index: LabelIndex,
    is_running: Callable[[TopologyGroup], bool],
    spend_on_columns: Callable[[int], None],
) -> HostConstraints:
    """Return the rules about a single node that can matter: those of these rows, and those of running pods about them.

    A rule that holds however the pods are placed is left out: with thousands of Deployments, each of which keeps its
    own pods apart, nearly every rule is about one pod.

    Args:
        rows: The rows of the problem.
        inverse_anti_affinities: The domains that the anti-affinity of running pods forbids.
        used_ports: The host ports of daemons and running pods; it must hold every port that can conflict with a row's.
        row_index: Finds the rows that a group counts.
        is_running: Whether a group counts any running pod.
        spend_on_columns: Is called with the number of the tables' columns before they are made.
    """
    found = _HostConstraintBuilder(rows, row_index, is_running)
    if inverse_anti_affinities or any(row.groups or row.ports for row in rows):
        found.add_spreads()
        found.add_anti_affinities()
        found.add_ports(used_ports)
        for entry in inverse_anti_affinities:
            if entry.group.key == labels.HOSTNAME and (counted := row_index.counted_by(entry.group)):
                found.conflicts.append(_ConflictRows(Conflict(domains=entry.domains), counted, (), ()))
        spend_on_columns(2 * len(found.axes) + 3 * len(found.conflicts) + 2 * len(found.followed))
    return found.constraints()


class _AxisRows(NamedTuple):
    """An axis, the rows whose pods use one unit of it each, and the rows that it limits."""

    axis: Axis
    uses: Collection[int]
    within: Collection[int]


class _ConflictRows(NamedTuple):
    """A conflict between the rows `counted` and the rows `owning`; the rule of the rows `lasting` is required."""

    conflict: Conflict
    counted: Collection[int]
    owning: Collection[int]
    lasting: Collection[int]


class _HostConstraintBuilder:
    """Collects axes and conflicts."""

    def __init__(
        self, rows: Sequence[PodClass], row_index: LabelIndex, is_running: Callable[[TopologyGroup], bool]
    ) -> None:
        self._rows = rows
        self._is_running = is_running
        self._index = row_index
        self.axes: list[_AxisRows] = []
        self.conflicts: list[_ConflictRows] = []
        self.followed = {g.id: g for row in rows for g in row.affinities if g.key == labels.HOSTNAME}

    def _pods_of(self, rows: Iterable[int]) -> int:
        """Return the number of pods of these rows; the levels of one class have the same tuple of pods."""
        return sum({id(row.pods): len(row.pods) for row in map(self._rows.__getitem__, rows)}.values())

    def add_spreads(self) -> None:
        """Add an axis per group and maxSkew; rows of one group with different maxSkews conflict."""
        owners: dict[bytes, dict[int, list[int]]] = {}
        groups: dict[bytes, TopologyGroup] = {}
        for r, row in enumerate(self._rows):
            strictest: dict[bytes, int] = {}
            for spread in row.spreads:
                if spread.key == labels.HOSTNAME:
                    groups[spread.group.id] = spread.group
                    least = strictest.get(spread.group.id, spread.max_skew)
                    strictest[spread.group.id] = min(least, spread.max_skew)
            for group_id, skew in strictest.items():
                owners.setdefault(group_id, {}).setdefault(skew, []).append(r)
        for group_id, by_skew in owners.items():
            group = groups[group_id]
            counted = set(self._index.counted_by(group))
            is_running = self._is_running(group)
            for skew, owning in sorted(by_skew.items()):
                if is_running or self._pods_of(counted) > skew:
                    self.axes.append(_AxisRows(Axis(capacity=skew, group=group), counted, owning))
                others = counted.intersection(r for s, rs in by_skew.items() if s != skew for r in rs)
                if others:
                    required = self._with_required_rule(owning, group_id)
                    self.conflicts.append(_ConflictRows(Conflict(is_counted=True), others, owning, required))

    def add_anti_affinities(self) -> None:
        """Add an axis with capacity 1 for rows that their own rule counts, and conflicts with all other rows."""
        owners: dict[bytes, list[int]] = {}
        groups: dict[bytes, TopologyGroup] = {}
        for r, row in enumerate(self._rows):
            for group in row.anti_affinities:
                if group.key == labels.HOSTNAME:
                    groups[group.id] = group
                    owners.setdefault(group.id, []).append(r)
        for group_id, owning in owners.items():
            group = groups[group_id]
            counted = set(self._index.counted_by(group))
            both = counted.intersection(owning)
            not_counted = [r for r in owning if r not in counted]
            others = counted.difference(owning)
            is_running = self._is_running(group)
            if is_running or self._pods_of(both) > 1:
                self.axes.append(_AxisRows(Axis(capacity=1, group=group, awaits_daemons=True), both, both))
            if is_running or (others and self._pods_of(others.union(owning)) > 1):
                self.conflicts.append(
                    _ConflictRows(Conflict(group=group), others, owning, self._with_required_rule(owning, group_id))
                )
            if both and not_counted:
                self.conflicts.append(
                    _ConflictRows(Conflict(), both, not_counted, self._with_required_rule(not_counted, group_id))
                )

    def _with_required_rule(self, rows: Iterable[int], group_id: bytes) -> list[int]:
        return [r for r in rows if group_id not in self._rows[r].preferred_groups]

    def add_ports(self, used: Iterable[HostPort]) -> None:
        """Add an axis per port, protocol and address; a pod on all addresses uses the axis of each address."""
        rows_by_port: dict[HostPort, list[int]] = {}
        for r, row in enumerate(self._rows):
            for port in row.ports:
                rows_by_port.setdefault(port, []).append(r)
        numbers = {(port.port, port.protocol) for port in rows_by_port}
        taken = {port for port in used if (port.port, port.protocol) in numbers} if numbers else set()
        for port in taken:
            rows_by_port.setdefault(port, [])
        by_number: dict[tuple[int, str], list[HostPort]] = {}
        for port in rows_by_port:
            by_number.setdefault((port.port, port.protocol), []).append(port)
        done: set[frozenset[HostPort]] = set()
        for port in sorted(rows_by_port):
            rivals = frozenset(other for other in by_number[port.port, port.protocol] if other.conflicts(port))
            narrow = all(a.conflicts(b) for a in rivals for b in rivals)
            if narrow and rivals not in done:
                done.add(rivals)
                takers = {r for rival in rivals for r in rows_by_port[rival]}
                if takers and (self._pods_of(takers) > 1 or not rivals.isdisjoint(taken)):
                    self.axes.append(_AxisRows(Axis(capacity=1, ports=rivals), takers, takers))

    def constraints(self) -> HostConstraints:
        """Return the collected axes and conflicts as arrays."""
        height = len(self._rows)
        follows: dict[bytes, list[int]] = {group_id: [] for group_id in self.followed}
        for r, row in enumerate(self._rows):
            for group in row.affinities:
                if group.id in follows:
                    follows[group.id].append(r)
        return HostConstraints(
            axes=tuple(found.axis for found in self.axes),
            conflicts=tuple(found.conflict for found in self.conflicts),
            followed=tuple(self.followed.values()),
            capacities=np.array([found.axis.capacity for found in self.axes], dtype=np.int64),
            uses=_table([found.uses for found in self.axes], height).astype(np.int64),
            within=_table([found.within for found in self.axes], height),
            counted=_table([found.counted for found in self.conflicts], height),
            owning=_table([found.owning for found in self.conflicts], height),
            lasting=_table([found.lasting for found in self.conflicts], height),
            follows=_table(list(follows.values()), height),
            leads=_table([self._index.counted_by(group) for group in self.followed.values()], height),
        )


def _table(columns: Sequence[Collection[int]], height: int) -> Bools:
    """Return a table in which each column is set in these rows."""
    table: Bools = np.zeros((height, len(columns)), dtype=bool)
    for column, rows in enumerate(columns):
        table[list(rows), column] = True
    return table
