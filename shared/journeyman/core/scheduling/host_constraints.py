"""Turns rules about one node (hostname spread and anti-affinity, host ports) into resources and conflicts.

An *axis* is one more resource beside cpu and memory: a node has so much of it, and each pod takes one. Hostname spread
gives a node `maxSkew`, hostname anti-affinity one, a host port one. A *conflict* keeps two kinds of rows off one node:
those that a rule counts but that do not have it, and those that have it.

A new node is always an empty domain, so these rules need nothing more there. What runs on existing nodes is described
by `Axis.group`, `Axis.ports` and `Conflict`, and measured by `NodeInventory.survey`.

Restates: karpenter pkg/controllers/provisioning/scheduling/topologygroup.go (the cases of kubernetes.io/hostname),
pkg/scheduling/hostportusage.go.
Differs: rules are symmetric here even where they are only preferred; existing nodes make that exception (`lasting`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.topology import InverseAntiAffinity, LabelIndex, TopologyGroup


class Axis(Struct, frozen=True, kw_only=True):
    """Something of which a node has `cap`.

    Running pods that `group` counts have taken one each; a node on which one of `ports` is in use has nothing left.
    """

    name: str
    cap: int
    group: TopologyGroup | None = None
    ports: frozenset[HostPort] = frozenset()


class Conflict(Struct, frozen=True, kw_only=True):
    """Two kinds of rows that never share a node.

    On nodes that exist the running pods that `group` counts are of the first kind; on those named in `domains` runs one
    of the second.
    """

    group: TopologyGroup | None = None
    domains: frozenset[str] = frozenset()


class HostConstraints(Struct, frozen=True, kw_only=True, eq=False):
    """All rules about one node. Arrays have a row per row of the problem, and a column per axis or conflict.

    `caps[a]` is what a node has of axis a, `takes` what a pod of the row takes of it. `within`: the row wants the axis
    not overdrawn, be it that its own pods take nothing. Of conflict c the rows `counted` never share a node with those
    `bound`; no row is both. `lasting`: the row is bound, and not merely by preference. `follows`: the row's pods go
    only where a pod is that the group counts (`leads`: theirs are).
    """

    axes: tuple[Axis, ...]
    conflicts: tuple[Conflict, ...]
    followed: tuple[TopologyGroup, ...]
    caps: Ints
    takes: Ints
    within: Bools
    counted: Bools
    bound: Bools
    lasting: Bools
    follows: Bools
    leads: Bools

    @property
    def names(self) -> tuple[str, ...]:
        """The axes, as text."""
        return tuple(axis.name for axis in self.axes)

    def beside(self, ports: Collection[HostPort]) -> Ints:
        """What a node has of each axis on which these host ports are in use (a new node: by its daemons)."""
        if not ports:
            return self.caps
        used = np.array([not axis.ports.isdisjoint(ports) for axis in self.axes], dtype=bool)
        return np.where(used, 0, self.caps)

    def for_new_nodes(self, counts: Ints) -> HostConstraints:
        """The same without what cannot matter on nodes yet to be opened, equal axes merged.

        Args:
            counts: How many pods of each row may have to go to new nodes.
        """
        asked = counts > 0
        total = counts @ self.takes
        ported = np.array([bool(axis.ports) for axis in self.axes], dtype=bool)
        axes = np.flatnonzero((total > self.caps) | (ported & (total > 0)))
        both = (self.counted & asked[:, None]).any(axis=0) & (self.bound & asked[:, None]).any(axis=0)
        conflicts = np.flatnonzero(both)
        merged = self._merged(axes)
        return HostConstraints(
            axes=tuple(axis for axis, _ in merged),
            conflicts=tuple(self.conflicts[c] for c in conflicts),
            followed=self.followed,
            caps=np.array([axis.cap for axis, _ in merged], dtype=np.int64),
            takes=self.takes[:, [column for _, column in merged]],
            within=self.within[:, [column for _, column in merged]],
            counted=self.counted[:, conflicts],
            bound=self.bound[:, conflicts],
            lasting=self.lasting[:, conflicts],
            follows=self.follows,
            leads=self.leads,
        )

    def _merged(self, columns: Iterable[int]) -> list[tuple[Axis, int]]:
        """Axes of which the same rows take the same become one, with the least cap and all ports."""
        found: dict[bytes, tuple[Axis, int]] = {}
        for column in map(int, columns):
            key, axis = self.takes[:, column].tobytes(), self.axes[column]
            known, first = found.get(key, (axis, column))
            both = replace(known, cap=min(known.cap, axis.cap), ports=known.ports | axis.ports)
            found[key] = (both, first)
        return list(found.values())


def host_constraints_of(
    rows: Sequence[PodClass], repelled: Iterable[InverseAntiAffinity] = (), used_ports: Iterable[HostPort] = ()
) -> HostConstraints:
    """The rules about one node that these rows have, and those of running pods about them.

    Args:
        rows: The rows of the problem.
        repelled: From where running pods keep others away.
        used_ports: The host ports of daemons and of running pods: each that may stand in a row's way must be here.
    """
    made = _HostConstraintBuilder(rows)
    made.add_spreads()
    made.add_anti_affinities()
    made.add_ports(used_ports)
    for entry in repelled:
        if entry.group.key == labels.HOSTNAME:
            made.conflict(Conflict(domains=entry.domains), made.counted_by(entry.group), (), ())
    return made.caps()


class _HostConstraintBuilder:
    """Axes and conflicts as they are found."""

    def __init__(self, rows: Sequence[PodClass]) -> None:
        self._rows = rows
        self._index = LabelIndex(rows)
        self._axes: list[Axis] = []
        self._conflicts: list[Conflict] = []
        self._takes: list[Ints] = []
        self._within: list[Bools] = []
        self._counted: list[Bools] = []
        self._bound: list[Bools] = []
        self._lasting: list[Bools] = []

    def counted_by(self, group: TopologyGroup) -> tuple[int, ...]:
        """The rows whose pods a group counts."""
        return self._index.counted_by(group)

    def axis(self, axis: Axis, takes: Iterable[int], within: Iterable[int]) -> None:
        """One more axis; of it the rows `takes` take one a pod."""
        self._axes.append(axis)
        self._takes.append(self._flags(takes).astype(np.int64))
        self._within.append(self._flags(within))

    def conflict(
        self, conflict: Conflict, counted: Iterable[int], bound: Iterable[int], lasting: Iterable[int]
    ) -> None:
        """One more conflict between two sets of rows."""
        self._conflicts.append(conflict)
        self._counted.append(self._flags(counted))
        self._bound.append(self._flags(bound))
        self._lasting.append(self._flags(lasting))

    def _flags(self, rows: Iterable[int]) -> Bools:
        found: Bools = np.zeros(len(self._rows), dtype=bool)
        found[list(rows)] = True
        return found

    def add_spreads(self) -> None:
        """An axis per group and skew; rows of one group with different skews keep off each other's nodes."""
        owners: dict[bytes, dict[int, list[int]]] = {}
        groups: dict[bytes, TopologyGroup] = {}
        for r, row in enumerate(self._rows):
            strictest: dict[bytes, int] = {}
            for spread in row.spreads:
                if spread.key == labels.HOSTNAME:
                    groups[spread.group.id] = spread.group
                    known = strictest.get(spread.group.id, spread.max_skew)
                    strictest[spread.group.id] = min(known, spread.max_skew)
            for group_id, skew in strictest.items():
                owners.setdefault(group_id, {}).setdefault(skew, []).append(r)
        for group_id, by_skew in owners.items():
            group = groups[group_id]
            counted = set(self.counted_by(group))
            for skew, own in sorted(by_skew.items()):
                self.axis(Axis(name="spread over hosts", cap=skew, group=group), counted.intersection(own), own)
                others = counted.intersection(r for s, rs in by_skew.items() if s != skew for r in rs)
                if others:
                    self.conflict(Conflict(), others, own, self._hard(own, group_id))

    def add_anti_affinities(self) -> None:
        """An axis of one for rows that keep off their own kind, conflicts for the others."""
        owners: dict[bytes, list[int]] = {}
        groups: dict[bytes, TopologyGroup] = {}
        for r, row in enumerate(self._rows):
            for group in row.anti_affinities:
                if group.key == labels.HOSTNAME:
                    groups[group.id] = group
                    owners.setdefault(group.id, []).append(r)
        for group_id, own in owners.items():
            group = groups[group_id]
            counted = set(self.counted_by(group))
            both = counted.intersection(own)
            apart = [r for r in own if r not in counted]
            self.axis(Axis(name="apart from its own kind", cap=1, group=group), both, ())
            self.conflict(Conflict(group=group), counted.difference(own), own, self._hard(own, group_id))
            if both and apart:
                self.conflict(Conflict(), both, apart, self._hard(apart, group_id))

    def _hard(self, rows: Iterable[int], group_id: bytes) -> list[int]:
        return [r for r in rows if group_id not in self._rows[r].preferred_groups]

    def add_ports(self, used: Iterable[HostPort]) -> None:
        """An axis per port, protocol and address; who takes all addresses takes each of those that are named."""
        wanted: dict[HostPort, list[int]] = {}
        for r, row in enumerate(self._rows):
            for port in row.ports:
                wanted.setdefault(port, []).append(r)
        numbers = {(port.port, port.protocol) for port in wanted}
        for port in used if numbers else ():
            if (port.port, port.protocol) in numbers:
                wanted.setdefault(port, [])
        done: set[frozenset[HostPort]] = set()
        for port in sorted(wanted):
            rivals = frozenset(other for other in wanted if other.conflicts(port))
            narrow = all(a.conflicts(b) for a in rivals for b in rivals)
            if narrow and rivals not in done:
                done.add(rivals)
                takers = {r for rival in rivals for r in wanted[rival]}
                name = f"host port {port.port}/{port.protocol}"
                if takers:
                    self.axis(Axis(name=name, cap=1, ports=rivals), takers, ())

    def caps(self) -> HostConstraints:
        """All of it as arrays."""
        height = len(self._rows)
        followed = {g.id: g for row in self._rows for g in row.affinities if g.key == labels.HOSTNAME}
        numbers = {group_id: f for f, group_id in enumerate(followed)}
        follows = [self._flags(()) for _ in followed]
        for r, row in enumerate(self._rows):
            for group in row.affinities:
                if group.id in numbers:
                    follows[numbers[group.id]][r] = True
        return HostConstraints(
            axes=tuple(self._axes),
            conflicts=tuple(self._conflicts),
            followed=tuple(followed.values()),
            caps=np.array([axis.cap for axis in self._axes], dtype=np.int64),
            takes=_side_by_side(self._takes, height).astype(np.int64),
            within=_side_by_side(self._within, height).astype(bool),
            counted=_side_by_side(self._counted, height).astype(bool),
            bound=_side_by_side(self._bound, height).astype(bool),
            lasting=_side_by_side(self._lasting, height).astype(bool),
            follows=_side_by_side(follows, height).astype(bool),
            leads=_side_by_side([self._flags(self.counted_by(g)) for g in followed.values()], height).astype(bool),
        )


def _side_by_side(columns: Sequence[Ints | Bools], height: int) -> Ints:
    found: Ints = np.array(columns).reshape(len(columns), height).T
    return found
