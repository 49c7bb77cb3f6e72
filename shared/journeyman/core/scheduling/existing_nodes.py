"""Holds the existing nodes: their labels and taints as columns, what is free on them, and the running pods.

`NodeInventory` is made once per snapshot and keeps what it finds out; consolidation asks about the same nodes hundreds
of times, without some of them and with some of their pods moved. `ExistingNodes` is what one problem sees.

Order: initialized nodes first, then by name. Many nodes share few label values, so a requirement is compared with each
value once and the verdict looked up for every node.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `NewExistingNode`, scheduler.go
`calculateExistingNodeClaims`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Object, Pod, Taint, Toleration
from journeyman.core.api.resources import add, subtract, to_resources, total_requests
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.daemon_overhead import Daemon, missing_daemon_overhead
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.pod_classes import HostPort, PodClass, host_ports
from journeyman.core.scheduling.requirements import Requirement, Requirements, from_labels
from journeyman.core.scheduling.topology import (
    InverseAntiAffinity,
    Pins,
    RunningAntiAffinity,
    RunningPodCounts,
    TopologyGroup,
    domain_of,
    inverse_anti_affinities,
    running_anti_affinities,
)
from journeyman.core.scheduling.volumes import StorageObjects, VolumeUsage, volume_usage
from journeyman.core.state.pod_predicates import is_active
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode
from journeyman.core.state.taints import has_untolerated_preference, untolerated

T = TypeVar("T", bound=Hashable)


class NodeColumns:
    """Nodes in a fixed order. The arrays it gives have an entry per node, and are not to be changed."""

    def __init__(self, nodes: Sequence[StateNode]) -> None:
        self._nodes = nodes
        self._labels: dict[str, tuple[Ints, tuple[str | None, ...]]] = {}
        self._cells: dict[tuple[str, ...], tuple[tuple[Pins, Bools], ...]] = {}
        self._of: tuple[NodeColumns, Ints] | None = None

    def only(self, places: Ints) -> NodeColumns:
        """Some of the nodes, in the order given; what is found out about a label is found out for all."""
        chosen = NodeColumns([self._nodes[place] for place in places.tolist()])
        chosen._of = self, places
        return chosen

    def label(self, key: str) -> tuple[Ints, tuple[str | None, ...]]:
        """A label as (codes, value per code); None where a node does not have it. Not every code need occur."""
        if key not in self._labels:
            if self._of is not None:
                whole, places = self._of
                codes, values = whole.label(key)
                self._labels[key] = codes[places], values
            else:
                self._labels[key] = _numbered([node.labels.get(key) for node in self._nodes])
        return self._labels[key]

    @cached_property
    def taints(self) -> tuple[Ints, tuple[tuple[Taint, ...], ...]]:
        """The taints, a cordon among them, as (codes, taints per code)."""
        if self._of is not None:
            whole, places = self._of
            codes, taints = whole.taints
            return codes[places], taints
        return _numbered([(*node.taints, *_cordon(node)) for node in self._nodes])

    def cells(self, keys: tuple[str, ...]) -> tuple[tuple[Pins, Bools], ...]:
        """The combinations of values of these labels that nodes have, each with its nodes; those one lacks are left out."""
        if keys not in self._cells:
            self._cells[keys] = self._find_cells(keys)
        return self._cells[keys]

    def _find_cells(self, keys: tuple[str, ...]) -> tuple[tuple[Pins, Bools], ...]:
        if self._of is not None:
            whole, places = self._of
            found = ((pins, nodes[places]) for pins, nodes in whole.cells(keys))
            return tuple((pins, nodes) for pins, nodes in found if nodes.any())
        values = [tuple((key, node.labels[key]) for key in keys if key in node.labels) for node in self._nodes]
        codes, pins_of = _numbered(values)
        return tuple((pins, codes == code) for code, pins in enumerate(pins_of))

    def accepted(self, tolerations: Sequence[Toleration], *, avoids_prefer_no_schedule: bool) -> Bools:
        """On which nodes no taint (a cordon is one) keeps these tolerations away."""
        codes, taints = self.taints
        verdicts = [
            untolerated(t, tolerations) is None
            and not (avoids_prefer_no_schedule and has_untolerated_preference(t, tolerations))
            for t in taints
        ]
        return _looked_up(verdicts, codes)

    def meeting(self, terms: Sequence[Requirements]) -> Bools:
        """Which nodes suit one of these terms, strictly: an undefined label suits no demand."""
        found: Bools = np.zeros(len(self._nodes), dtype=bool)
        for term in terms:
            suits: Bools = np.ones(len(self._nodes), dtype=bool)
            for key, wanted in term.items():
                codes, values = self.label(key)
                suits &= _looked_up([_meets(wanted, value) for value in values], codes)
            found |= suits
        return found

    def pinned(self, pins: Pins) -> Bools:
        """Which nodes have all these labels."""
        found: Bools = np.ones(len(self._nodes), dtype=bool)
        for key, wanted in pins:
            codes, values = self.label(key)
            found &= _looked_up([value == wanted for value in values], codes)
        return found


def _meets(wanted: Requirement, value: str | None) -> bool:
    if wanted.impossible:
        return False
    return wanted.allows_absence if value is None else wanted.has(value)


def _cordon(node: StateNode) -> tuple[Taint, ...]:
    """What a cordon means to kube-scheduler, whether the node has its taint yet or not."""
    if node.node is None or not node.node.spec.unschedulable:
        return ()
    return (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)


def _looked_up(verdicts: Sequence[bool], codes: Ints) -> Bools:
    found: Bools = np.array(verdicts, dtype=bool)[codes]
    return found


def _numbered(entries: Sequence[T]) -> tuple[Ints, tuple[T, ...]]:
    """Entries as numbers, and what each number stands for, in order of appearance."""
    numbers: dict[T, int] = {}
    codes = [numbers.setdefault(entry, len(numbers)) for entry in entries]
    return np.array(codes, dtype=np.int64), tuple(numbers)


def allocatable_of(node: StateNode) -> dict[str, int]:
    """What pods and daemons may use: the node's word, gaps filled by its claim's; before launch what the claim asked for."""
    return _amounts(node, "allocatable")


def capacity_of(node: StateNode) -> dict[str, int]:
    """The node's whole size, from the same sources."""
    return _amounts(node, "capacity")


def _amounts(node: StateNode, field: str) -> dict[str, int]:
    said = to_resources(getattr(node.node.status, field), round_up=False) if node.node is not None else {}
    if node.claim is None or (node.initialized and said):
        return said
    promised = to_resources(getattr(node.claim.status, field), round_up=False)
    if not promised and not said:
        return to_resources(node.claim.spec.resources.requests, round_up=True)
    return {**promised, **{name: amount for name, amount in said.items() if amount}}


class ExistingNodes(Struct, frozen=True, kw_only=True, eq=False):
    """Nodes that can take pods, in filling order, and all nodes whose pods count, `standing`.

    `free` has a row per node and a column per axis (resources, then the caps' axes). `counted` and `bound` say by node
    and conflict of the caps how many running pods are of either kind, `company` by node and group followed how many are
    there. `volume_usages` are what the nodes can attach (none if nothing limits that), `columns` their labels and taints
    (`standing_columns`: of all standing nodes, of which those marked for deletion are not `staying`), `pod_counts` counts
    the running pods.
    """

    nodes: tuple[StateNode, ...]
    free: Ints
    standing: tuple[StateNode, ...] = ()
    staying: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    pod_counts: RunningPodCounts = field(default_factory=lambda: RunningPodCounts((), (), ()))
    columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    standing_columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    counted: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    bound: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    company: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    volume_usages: tuple[VolumeUsage, ...] = ()


class NodeSelection(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that count in one problem, by name, with the pods that will stay or come for sure.

    `places` are their positions in the inventory; `gone` are the names of those assumed gone. `asking` are the pods to
    place, `leaving` their keys. `touched` are the positions of nodes on which other pods count than in the snapshot.
    """

    nodes: tuple[StateNode, ...]
    places: Ints
    gone: Collection[str]
    asking: Sequence[Pod]
    leaving: frozenset[str]
    touched: frozenset[int]


class NodeInventory:
    """All nodes of one snapshot, by name, each with the unbound pods nominated to it."""

    def __init__(self, snapshot: Snapshot, daemons: Sequence[Daemon], storage: StorageObjects) -> None:
        """Nothing is looked at before it is asked for.

        Args:
            snapshot: The cluster.
            daemons: What else will run on the nodes.
            storage: What volumes there are.
        """
        self._snapshot = snapshot
        self._daemons = daemons
        self._storage = storage
        self._free: dict[tuple[str, ...], tuple[Ints, Bools]] = {}
        self._censuses: dict[tuple[str, ...], RunningPodCounts] = {}
        self._ports: dict[int, frozenset[HostPort]] = {}
        self._attachable: dict[int, VolumeUsage] = {}

    # --- the nodes

    @cached_property
    def nodes(self) -> tuple[StateNode, ...]:
        """All of them."""
        nominated: dict[str, list[Pod]] = {}
        for pod in self._snapshot.pods:
            if pod.status.nominated_node_name and not pod.spec.node_name and is_active(pod):
                nominated.setdefault(pod.status.nominated_node_name, []).append(pod)
        return tuple(
            replace(node, pods=(*node.pods, *nominated[node.name])) if node.name in nominated else node
            for node in self._snapshot.state_nodes
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @cached_property
    def _staying(self) -> Bools:
        """Which are not marked for deletion, and may come to run pods at all."""
        found: Bools = np.array([not (node.is_being_disrupted or node.is_unusable) for node in self.nodes], dtype=bool)
        return found

    @cached_property
    def _filling_order(self) -> Ints:
        """Initialized ones first, then by name."""
        initialized = np.array([node.initialized for node in self.nodes], dtype=bool)
        order: Ints = np.argsort(~initialized, kind="stable")
        return order

    @cached_property
    def _columns(self) -> NodeColumns:
        return NodeColumns(self.nodes)

    @cached_property
    def _place_of(self) -> Mapping[str, int]:
        """Where each pod is, by key."""
        return {pod.key: place for place, node in enumerate(self.nodes) for pod in node.pods}

    def standing(self, pods: Sequence[Pod], without: Collection[str]) -> NodeSelection:
        """What a problem is about.

        Args:
            pods: Pods to place, wherever they are now.
            without: Names of nodes to be assumed gone, with the pods on them.
        """
        kept = np.array([name not in without for name in self._names], dtype=bool)
        places = np.flatnonzero(kept)
        leaving = frozenset(pod.key for pod in pods)
        moved = (self._place_of.get(key) for key in leaving)
        return NodeSelection(
            nodes=tuple(self.nodes[place] for place in places.tolist()),
            places=places,
            gone=without,
            asking=pods,
            leaving=leaving,
            touched=frozenset(place for place in moved if place is not None and kept[place]),
        )

    # --- the pods on them

    @cached_property
    def _repulsions(self) -> Mapping[int, tuple[RunningAntiAffinity, ...]]:
        """By node whom its pods keep away; only where some do."""
        found = ((place, running_anti_affinities(node, self._namespaces)) for place, node in enumerate(self.nodes))
        return {place: entries for place, entries in found if entries}

    @cached_property
    def _namespaces(self) -> Mapping[str, Object]:
        return {n.metadata.name: n for n in self._snapshot.namespaces}

    def repelled(self, standing: NodeSelection) -> tuple[InverseAntiAffinity, ...]:
        """From where the required anti-affinity of pods that stay keeps others away."""
        gone = standing.gone
        known = (
            entry
            for place, entries in self._repulsions.items()
            if place not in standing.touched and self._names[place] not in gone
            for entry in entries
        )
        fresh = (e for node in self._touched(standing) for e in running_anti_affinities(node, self._namespaces))
        return inverse_anti_affinities((*known, *fresh), standing.leaving)

    def used_ports(self, standing: NodeSelection) -> frozenset[HostPort]:
        """The host ports in use by running pods, and by daemons wherever they run."""
        running = (host_ports(pod) for node in standing.nodes for pod in node.pods)
        return frozenset().union(*running, *(daemon.ports for daemon in self._daemons))

    def pod_counts(self, standing: NodeSelection, watched: Iterable[str]) -> RunningPodCounts:
        """The pods that are counted; `watched` are the labels that any group asked about looks at."""
        keys = tuple(sorted(set(watched)))
        if standing.touched:
            return RunningPodCounts(standing.nodes, standing.leaving, keys)
        if keys not in self._censuses:
            self._censuses[keys] = RunningPodCounts(self.nodes, (), keys)
        return self._censuses[keys].without(standing.gone)

    def _touched(self, standing: NodeSelection) -> list[StateNode]:
        at = {place: n for n, place in enumerate(standing.places.tolist())} if standing.touched else {}
        return [standing.nodes[at[place]] for place in sorted(standing.touched)]

    # --- what is free on them

    def survey(
        self, standing: NodeSelection, rows: Sequence[PodClass], *, axes: tuple[str, ...], caps: HostConstraints
    ) -> ExistingNodes:
        """The nodes not marked for deletion, and what is free on them once their daemons are all there.

        Args:
            standing: The nodes that count.
            rows: The rows of the problem, for what they count.
            axes: Resources.
            caps: The rows' rules about one node.
        """
        here: Bools = np.zeros(len(self.nodes), dtype=bool)
        here[standing.places] = self._staying[standing.places]
        order = self._filling_order[here[self._filling_order]]
        at = dict(zip(standing.places.tolist(), standing.nodes, strict=True))
        nodes = tuple(at[place] for place in order.tolist())
        pod_counts = self.pod_counts(standing, _watched(rows))
        free = np.concatenate(
            (self._resources(standing, order, nodes, axes), self._rules(standing, order, nodes, caps)), axis=1
        )
        for a, axis in enumerate(caps.axes):
            free[:, len(axes) + a] -= _counts(pod_counts, axis.group, nodes)
        hostnames = [domain_of(node, labels.HOSTNAME) for node in nodes] if caps.conflicts else []
        return ExistingNodes(
            nodes=nodes,
            free=free,
            standing=standing.nodes,
            staying=self._staying[standing.places],
            pod_counts=pod_counts,
            columns=self._columns.only(order),
            standing_columns=self._columns.only(standing.places),
            counted=_table([_counts(pod_counts, c.group, nodes) for c in caps.conflicts], len(nodes)),
            bound=_table(
                [np.array([h in c.domains for h in hostnames], dtype=np.int64) for c in caps.conflicts], len(nodes)
            ),
            company=_table([_counts(pod_counts, group, nodes) for group in caps.followed], len(nodes)),
            volume_usages=self._volume_usages(standing, order, nodes) if self._storage.nodes else (),
        )

    def _resources(
        self, standing: NodeSelection, order: Ints, nodes: Sequence[StateNode], axes: tuple[str, ...]
    ) -> Ints:
        """What is free on these nodes (given by position, and as they stand), along the axes."""
        if axes not in self._free:
            size = len(self.nodes)
            self._free[axes] = np.zeros((size, len(axes)), dtype=np.int64), np.zeros(size, dtype=bool)
        table, known = self._free[axes]
        for place in order[~known[order]].tolist():
            if place not in standing.touched:
                table[place], known[place] = _free_on(self.nodes[place], (), self._daemons, axes), True
        free: Ints = table[order]
        for n, place in enumerate(order.tolist()) if standing.touched else ():
            if place in standing.touched:
                free[n] = _free_on(nodes[n], standing.leaving, self._daemons, axes)
        return free

    def _rules(self, standing: NodeSelection, order: Ints, nodes: Sequence[StateNode], caps: HostConstraints) -> Ints:
        """What is free on these nodes along the axes of rules, pods that these count aside."""
        free: Ints = np.tile(caps.caps, (len(nodes), 1))
        if any(axis.ports for axis in caps.axes):
            for n, (place, node) in enumerate(zip(order.tolist(), nodes, strict=True)):
                if place in standing.touched:
                    used = _used_on(node, standing.leaving, self._daemons)
                else:
                    used = self._used_on(place)
                free[n] = caps.beside(used)
        return free

    def _volume_usages(
        self, standing: NodeSelection, order: Ints, nodes: Sequence[StateNode]
    ) -> tuple[VolumeUsage, ...]:
        """What these nodes can attach."""
        return tuple(
            volume_usage(node, self._storage, standing.leaving) if place in standing.touched else self._room_of(place)
            for place, node in zip(order.tolist(), nodes, strict=True)
        )

    def _room_of(self, place: int) -> VolumeUsage:
        if place not in self._attachable:
            self._attachable[place] = volume_usage(self.nodes[place], self._storage, ())
        return self._attachable[place]

    def _used_on(self, place: int) -> frozenset[HostPort]:
        if place not in self._ports:
            self._ports[place] = _used_on(self.nodes[place], (), self._daemons)
        return self._ports[place]


def _free_on(node: StateNode, leaving: Collection[str], daemons: Sequence[Daemon], axes: Sequence[str]) -> list[int]:
    """What is free along the axes; nothing where any resource is overdrawn."""
    staying = [p for p in node.pods if p.key not in leaving]
    taken = add(total_requests(staying), missing_daemon_overhead(node, daemons))
    available = subtract(allocatable_of(node), taken)
    overdrawn = any(amount < 0 for amount in available.values())
    return [0 if overdrawn else available.get(axis, 0) for axis in axes]


def _used_on(node: StateNode, leaving: Collection[str], daemons: Iterable[Daemon]) -> frozenset[HostPort]:
    """The host ports of the pods that stay, and of the daemons that belong on the node whether they run yet or not."""
    offered = from_labels(node.labels)
    expected = (
        daemon.ports
        for daemon in daemons
        if daemon.ports
        and untolerated(node.taints, daemon.tolerations) is None
        and any(offered.compatible(term) is None for term in daemon.terms)
    )
    staying = (host_ports(pod) for pod in node.pods if pod.key not in leaving)
    return frozenset(port for ports in (*staying, *expected) for port in ports)


def _watched(rows: Iterable[PodClass]) -> set[str]:
    """The pod labels that any rule of theirs looks at."""
    groups = {g.id: g for row in rows for g in (*(s.group for s in row.spreads), *row.affinities, *row.anti_affinities)}
    return {key for group in groups.values() for key in group.label_keys}


def _counts(pod_counts: RunningPodCounts, group: TopologyGroup | None, nodes: Sequence[StateNode]) -> Ints:
    """The running pods that the group counts, by node."""
    by_node = pod_counts.by_node(group) if group is not None else {}
    if not by_node:
        return np.zeros(len(nodes), dtype=np.int64)
    return np.array([by_node.get(node.name, 0) for node in nodes], dtype=np.int64)


def _table(columns: Sequence[Ints], height: int) -> Ints:
    found: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), height).T
    return found
