"""Holds the existing nodes: their labels and taints as columns, their free capacity, and the running pods.

`NodeInventory` is built once per snapshot and caches its results, because consolidation simulates hundreds of problems
over the same nodes, each without some nodes and with some pods moved. `ExistingNodes` is the input of one problem.

Initialized nodes come first, then nodes are ordered by name. Many nodes share few label values, so a requirement is
compared with each distinct value once, and the result is then looked up for every node.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `NewExistingNode`, scheduler.go
`calculateExistingNodeClaims`.
Differs: the host ports of daemons that have not started yet are in use, like their resources; Karpenter counts only the
ports of running pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, Taint, Toleration
from journeyman.core.api.resources import PODS, Resources, add, pod_requests, resize_of, subtract, to_resources
from journeyman.core.scheduling.arrays import Bools, Ints, read_only
from journeyman.core.scheduling.daemon_overhead import Daemon, daemons_of, missing_daemon_overhead
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.pod_classes import HostPort, PodClass, encode, host_ports
from journeyman.core.scheduling.requirements import Requirement, Requirements
from journeyman.core.scheduling.topology import (
    ABSENT,
    InverseAntiAffinity,
    InverseAntiAffinityCounts,
    NamespaceIndex,
    Pin,
    Pins,
    RunningAntiAffinity,
    RunningPodCounts,
    TopologyGroup,
    domain_of,
    required_anti_affinities,
    running_anti_affinities,
)
from journeyman.core.scheduling.volumes import ANY_NUMBER, StorageObjects, VolumeUsage, volume_usage
from journeyman.core.state.machine_size import believable
from journeyman.core.state.pod_predicates import is_active, is_terminating
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode
from journeyman.core.state.taints import has_untolerated_preference, untolerated

H = TypeVar("H", bound=Hashable)
T = TypeVar("T")


class NodesInDomains(NamedTuple):
    """The nodes in one combination of domains: True for each node that has all labels in `pins`."""

    pins: Pins
    nodes: Bools


class NodeColumns:
    """Labels and taints of nodes in a fixed order; returned arrays have one entry per node."""

    def __init__(self, nodes: Sequence[StateNode]) -> None:
        self._nodes = nodes
        self._labels: dict[str, tuple[Ints, tuple[str | None, ...]]] = {}
        self._cells: dict[tuple[str, ...], tuple[NodesInDomains, ...]] = {}
        self._source: tuple[NodeColumns, Ints] | None = None

    def only(self, positions: Ints) -> NodeColumns:
        """Return the columns of the nodes at these positions, in the order given; they share the cache of all nodes."""
        chosen = NodeColumns([self._nodes[position] for position in positions.tolist()])
        chosen._source = self, positions
        return chosen

    def label(self, key: str) -> tuple[Ints, tuple[str | None, ...]]:
        """Return a label as (code per node, value per code), None for nodes without it; some codes may not occur."""
        if key not in self._labels:
            if self._source is not None:
                all_columns, positions = self._source
                codes, values = all_columns.label(key)
                self._labels[key] = codes[positions], values
            else:
                self._labels[key] = _numbered([node.labels.get(key) for node in self._nodes])
        return self._labels[key]

    @cached_property
    def taints(self) -> tuple[Ints, tuple[tuple[Taint, ...], ...]]:
        """Return the taints as (code per node, taints per code); a cordon counts as a taint."""
        if self._source is not None:
            all_columns, positions = self._source
            codes, taints = all_columns.taints
            return codes[positions], taints
        return _numbered([(*node.taints, *_cordon(node)) for node in self._nodes])

    def cells(self, keys: tuple[str, ...]) -> tuple[NodesInDomains, ...]:
        """Return the combinations of these labels' values that occur, each with its nodes; absent labels are omitted."""
        if keys not in self._cells:
            self._cells[keys] = self._find_cells(keys)
        return self._cells[keys]

    def _find_cells(self, keys: tuple[str, ...]) -> tuple[NodesInDomains, ...]:
        if self._source is not None:
            all_columns, positions = self._source
            cells = (NodesInDomains(cell.pins, cell.nodes[positions]) for cell in all_columns.cells(keys))
            return tuple(cell for cell in cells if cell.nodes.any())
        values = [tuple(Pin(key, node.labels[key]) for key in keys if key in node.labels) for node in self._nodes]
        codes, pins_of = _numbered(values)
        return tuple(NodesInDomains(pins, read_only(codes == code)) for code, pins in enumerate(pins_of))

    def accepted(self, tolerations: Sequence[Toleration], *, avoids_prefer_no_schedule: bool) -> Bools:
        """Return for each node whether these tolerations tolerate all of its taints; a cordon counts as a taint."""
        codes, taints = self.taints
        verdicts = [
            untolerated(t, tolerations) is None
            and not (avoids_prefer_no_schedule and has_untolerated_preference(t, tolerations))
            for t in taints
        ]
        return _take_by_code(verdicts, codes)

    def meeting(self, terms: Sequence[Requirements]) -> Bools:
        """Return for each node whether it meets one of these terms; an absent label does not meet `In`, even if well-known."""
        meets_any: Bools = np.zeros(len(self._nodes), dtype=bool)
        for term in terms:
            meets_all: Bools = np.ones(len(self._nodes), dtype=bool)
            for key, requirement in term.items():
                codes, values = self.label(key)
                meets_all &= _take_by_code([_meets(requirement, value) for value in values], codes)
            meets_any |= meets_all
        return meets_any

    def pinned(self, pins: Pins) -> Bools:
        """Return for each node whether its labels match these pins."""
        has_all: Bools = np.ones(len(self._nodes), dtype=bool)
        for key, pinned_value in pins:
            codes, values = self.label(key)
            has_all &= _take_by_code([(ABSENT if value is None else value) == pinned_value for value in values], codes)
        return has_all


def _meets(requirement: Requirement, value: str | None) -> bool:
    if requirement.impossible:
        return False
    return requirement.allows_absence if value is None else requirement.has(value)


def _cordon(node: StateNode) -> tuple[Taint, ...]:
    """Return the taint of a cordoned node, even if the node does not have it yet: kube-scheduler honours both."""
    if node.node is None or not node.node.spec.unschedulable:
        return ()
    return (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)


def _take_by_code(verdicts: Sequence[bool], codes: Ints) -> Bools:
    by_node: Bools = np.array(verdicts, dtype=bool)[codes]
    return by_node


def _numbered(entries: Sequence[H]) -> tuple[Ints, tuple[H, ...]]:
    """Return a number for each entry, equal for equal entries, and the distinct entries by number."""
    numbers: dict[H, int] = {}
    codes = [numbers.setdefault(entry, len(numbers)) for entry in entries]
    return np.array(codes, dtype=np.int64), tuple(numbers)


def allocatable_of(node: StateNode) -> dict[str, int]:
    """Return what pods and daemons may use: the node's status, completed by its claim's; before launch, the claim's requests.

    What the node's machine cannot have does not count (`machine_size`).
    """
    return _amounts(node, "allocatable")


def capacity_of(node: StateNode) -> dict[str, int]:
    """Return the capacity of the node, from the same sources as `allocatable_of`."""
    return _amounts(node, "capacity")


def _amounts(node: StateNode, field: str) -> dict[str, int]:
    of_node = to_resources(getattr(node.node.status, field), round_up=False) if node.node is not None else {}
    if node.claim is None:
        return believable(of_node, {}, node.node) if node.node is not None else {}
    of_claim = to_resources(getattr(node.claim.status, field), round_up=False)
    of_node = believable(of_node, of_claim, node.claim)
    if node.initialized and of_node:
        return of_node
    if not of_claim and not of_node:
        return to_resources(node.claim.spec.resources.requests, round_up=True)
    return {**of_claim, **{name: amount for name, amount in of_node.items() if amount}}


class ExistingNodes(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that can take pods, and the nodes whose running pods count.

    Attributes:
        nodes: The nodes that can take pods, in the order in which they are filled.
        free: The free amounts, a row per node and a column per axis: resources, then the axes of the host constraints.
        all_nodes: All nodes whose running pods count, including those marked for deletion.
        remaining: For each of `all_nodes`, whether it is not marked for deletion.
        pod_counts: Counts the running pods by topology group, for topology spread.
        expected_counts: Counts them and the DaemonSets' pods that are still to come, for pod affinity and anti-affinity.
        columns: Labels and taints of `nodes`.
        all_columns: Labels and taints of `all_nodes`.
        counted: Running pods of the first kind, by node and conflict of the host constraints.
        bound: Running pods of the second kind, by node and conflict.
        followed_counts: Running pods that a hostname affinity selects, by node and group.
        used_ports: The host ports in use on each node, by running pods and by all daemons that belong there, running or
            not; no ports if no pod of the problem requests one.
        volume_usages: The volumes that each node can attach; empty if no node limits them.
    """

    nodes: tuple[StateNode, ...]
    free: Ints
    all_nodes: tuple[StateNode, ...] = ()
    remaining: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    pod_counts: RunningPodCounts = field(default_factory=lambda: RunningPodCounts((), (), ()))
    expected_counts: RunningPodCounts = field(default_factory=lambda: RunningPodCounts((), (), ()))
    columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    all_columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    counted: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    bound: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    followed_counts: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    used_ports: tuple[frozenset[HostPort], ...] = ()
    volume_usages: tuple[VolumeUsage, ...] = ()


class NodeSelection(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes of one problem, without those that are assumed to be removed.

    Attributes:
        nodes: The nodes, in the order of the inventory, with their running and nominated pods.
        positions: Their positions in the inventory.
        removed_nodes: The names of the removed nodes.
        pods: The pods to place.
        rescheduled: The keys of these pods.
        losing_pods: The positions of nodes that run some of these pods; cached results are invalid for them.
    """

    nodes: tuple[StateNode, ...]
    positions: Ints
    removed_nodes: Collection[str]
    pods: Sequence[Pod]
    rescheduled: frozenset[str]
    losing_pods: frozenset[int]


class NodeInventory:
    """All nodes of one snapshot, by name, each with the unbound pods nominated to it."""

    def __init__(self, snapshot: Snapshot, daemons: Sequence[Daemon], storage: StorageObjects) -> None:
        """Prepare an inventory; everything is computed on first use.

        Args:
            snapshot: The state of the cluster.
            daemons: The DaemonSets' pods.
            storage: The storage objects that limit attached volumes.
        """
        self._snapshot = snapshot
        self._daemons = daemons
        self._storage = storage
        self.skipped: dict[str, SkippedObject] = {}
        """Nodes that cannot be evaluated, by name: no pod is planned onto them."""
        self._free: dict[tuple[str, ...], tuple[Ints, Bools]] = {}
        self._pod_counts: RunningPodCounts | None = None
        self._expected: dict[tuple[str, ...], RunningPodCounts] = {}
        self._counted_labels: set[str] = set()
        self._requests: dict[bytes, Resources] = {}
        self._ports: dict[int, frozenset[HostPort]] = {}
        self._attachable: dict[int, VolumeUsage] = {}

    # --- the nodes

    @cached_property
    def nodes(self) -> tuple[StateNode, ...]:
        """Return all nodes of the snapshot, each with the unbound pods nominated to it."""
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
    def _remaining(self) -> Bools:
        """Return for each node whether it is neither marked for deletion nor unusable."""
        remaining: Bools = np.array(
            [not (node.is_being_disrupted or node.is_unusable) for node in self.nodes], dtype=bool
        )
        return remaining

    @cached_property
    def _filling_order(self) -> Ints:
        """Return the positions of the nodes: initialized ones first, then by name."""
        initialized = np.array([node.initialized for node in self.nodes], dtype=bool)
        order: Ints = np.argsort(~initialized, kind="stable")
        return order

    @cached_property
    def _columns(self) -> NodeColumns:
        return NodeColumns(self.nodes)

    @cached_property
    def _node_position(self) -> Mapping[str, int]:
        """Return the position of each pod's node, by pod key."""
        return {pod.key: position for position, node in enumerate(self.nodes) for pod in node.pods}

    def select(self, pods: Sequence[Pod], without: Collection[str]) -> NodeSelection:
        """Return the nodes of a problem.

        Args:
            pods: The pods to place, which may be pending or running.
            without: The names of nodes that are assumed to be removed, with their pods.
        """
        is_selected = np.array([name not in without for name in self._names], dtype=bool)
        positions = np.flatnonzero(is_selected)
        rescheduled = frozenset(pod.key for pod in pods)
        losing_pods = (self._node_position[key] for key in self._node_position.keys() & rescheduled)
        return NodeSelection(
            nodes=tuple(self.nodes[position] for position in positions.tolist()),
            positions=positions,
            removed_nodes=without,
            pods=pods,
            rescheduled=rescheduled,
            losing_pods=frozenset(position for position in losing_pods if is_selected[position]),
        )

    # --- the pods on them

    @cached_property
    def _anti_affinities(self) -> Mapping[int, tuple[RunningAntiAffinity, ...]]:
        """Return the required anti-affinity of running pods, by position of their node; nodes without any are omitted."""
        by_position = ((position, self._anti_affinities_on(node)) for position, node in enumerate(self.nodes))
        return {position: entries for position, entries in by_position if entries}

    def _anti_affinities_on(self, node: StateNode) -> tuple[RunningAntiAffinity, ...]:
        expected = self._expected_on(node, self._daemons_with_anti_affinity)
        return self._evaluate((), node, running_anti_affinities, expected, self.namespaces)

    @cached_property
    def _daemons_with_anti_affinity(self) -> tuple[Daemon, ...]:
        return tuple(d for d in self._daemons if any(required_anti_affinities(d.pod, self.namespaces)))

    @cached_property
    def namespaces(self) -> NamespaceIndex:
        """Return the namespaces of the snapshot."""
        return NamespaceIndex({n.metadata.name: n for n in self._snapshot.namespaces})

    def inverse_anti_affinities(self, selection: NodeSelection) -> tuple[InverseAntiAffinity, ...]:
        """Return the domains that the required anti-affinity of the other running pods forbids to matching pods."""
        if not self._anti_affinities:
            return ()
        removed = (self._positions[name] for name in selection.removed_nodes if name in self._positions)
        return self._inverse.without(
            (
                entry
                for position in (*removed, *selection.losing_pods)
                for entry in self._anti_affinities.get(position, ())
            ),
            (
                entry
                for position in selection.losing_pods
                for entry in self._anti_affinities.get(position, ())
                if entry.pod not in selection.rescheduled
            ),
        )

    @cached_property
    def _inverse(self) -> InverseAntiAffinityCounts:
        return InverseAntiAffinityCounts(entry for entries in self._anti_affinities.values() for entry in entries)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self._names)}

    def anti_affinities(self, selection: NodeSelection) -> Mapping[str, tuple[RunningAntiAffinity, ...]]:
        """Return the required anti-affinity of running pods by the name of their node, for the nodes of a selection."""
        names = {self._names[position] for position in selection.positions.tolist()}
        by_name = ((self._names[position], entries) for position, entries in self._anti_affinities.items())
        return {name: entries for name, entries in by_name if name in names}

    def used_ports(self, selection: NodeSelection) -> frozenset[HostPort]:
        """Return the host ports that running pods and any daemons use."""
        running = (host_ports(pod) for node in selection.nodes for pod in node.pods)
        return frozenset().union(*running, *(daemon.ports for daemon in self._daemons))

    def pod_counts(self, selection: NodeSelection, rows: Iterable[PodClass]) -> RunningPodCounts:
        """Return the counts of running pods for the topology groups of these rows."""
        keys = _selected_labels(rows)
        if selection.losing_pods:
            return RunningPodCounts(selection.nodes, selection.rescheduled, keys)
        if self._pod_counts is None or not keys <= self._counted_labels:
            self._counted_labels |= keys
            self._pod_counts = RunningPodCounts(self.nodes, (), self._counted_labels)
        return self._pod_counts.without(selection.removed_nodes)

    def expected_counts(
        self, selection: NodeSelection, rows: Iterable[PodClass], counted: Sequence[Daemon], running: RunningPodCounts
    ) -> RunningPodCounts:
        """Return the counts of running pods and of those that DaemonSets will run.

        Args:
            selection: The nodes of the problem.
            rows: The rows whose pod affinity and anti-affinity count them.
            counted: The DaemonSets of which a group of these rows counts the pods.
            running: The counts of running pods; they are returned if none is counted.
        """
        if not counted:
            return running
        keys = tuple(sorted(_selected_labels(rows)))
        if selection.losing_pods:
            nodes = [self._expected_on(node, counted) for node in selection.nodes]
            return RunningPodCounts(nodes, selection.rescheduled, keys)
        case = (*(f"{daemon.namespace}/{daemon.name}" for daemon in counted), "", *keys)
        if case not in self._expected:
            nodes = [self._expected_on(node, counted) for node in self.nodes]
            self._expected[case] = RunningPodCounts(nodes, (), keys)
        return self._expected[case].without(selection.removed_nodes)

    def _expected_on(self, node: StateNode, daemons: Sequence[Daemon]) -> StateNode:
        """Return the node with the pods of these DaemonSets that are still to come.

        None come to a node that leaves, nor to one that is too small for all DaemonSets' pods beside those that run there.
        """
        if not daemons or node.is_being_disrupted or node.is_unusable:
            return node
        missing: tuple[Daemon, ...] = self._evaluate((), node, _missing_daemons, node, daemons)
        if not missing or self._evaluate(True, node, self._is_overcommitted, node):
            return node
        return replace(node, pods=(*node.pods, *(daemon.pod for daemon in missing)))

    def _is_overcommitted(self, node: StateNode) -> bool:
        return any(amount < 0 for amount in self._available(node, ()).values())

    # --- free capacity

    def survey(
        self,
        selection: NodeSelection,
        pod_counts: RunningPodCounts,
        expected_counts: RunningPodCounts,
        *,
        axes: tuple[str, ...],
        caps: HostConstraints,
        has_ports: bool,
    ) -> ExistingNodes:
        """Return the nodes with their free capacity, after all daemons that belong on them are subtracted.

        Args:
            selection: The nodes of the problem.
            pod_counts: Counts the running pods by topology group of the problem.
            expected_counts: Counts the DaemonSets' pods that are still to come, too.
            axes: The names of resources.
            caps: The rows' host constraints.
            has_ports: Whether a row has host ports.
        """
        can_take_pods: Bools = np.zeros(len(self.nodes), dtype=bool)
        can_take_pods[selection.positions] = self._remaining[selection.positions]
        order = self._filling_order[can_take_pods[self._filling_order]]
        node_at = dict(zip(selection.positions.tolist(), selection.nodes, strict=True))
        nodes = tuple(node_at[position] for position in order.tolist())
        used_ports = self._used_ports(selection, order, nodes) if has_ports else (frozenset[HostPort](),) * len(nodes)
        free = np.concatenate(
            (self._resources(selection, order, nodes, axes), _host_capacity(used_ports, caps)), axis=1
        )
        for a, axis in enumerate(caps.axes):
            counts = expected_counts if axis.awaits_daemons else pod_counts
            free[:, len(axes) + a] -= self._count_by_node(counts, axis.group, order)
        volume_usages = self._volume_usages(selection, order, nodes) if self._storage.nodes else ()
        if self.skipped:
            free[[node.name in self.skipped for node in nodes]] = 0
        return ExistingNodes(
            nodes=nodes,
            free=free,
            all_nodes=selection.nodes,
            remaining=self._remaining[selection.positions],
            pod_counts=pod_counts,
            expected_counts=expected_counts,
            columns=self._columns.only(order),
            all_columns=self._columns.only(selection.positions),
            counted=_as_table(
                [self._count_by_node(expected_counts, c.group, order) for c in caps.conflicts], len(nodes)
            ),
            bound=_as_table([self._has_hostname(c.domains)[order] for c in caps.conflicts], len(nodes)),
            followed_counts=_as_table(
                [self._count_by_node(expected_counts, group, order) for group in caps.followed], len(nodes)
            ),
            used_ports=used_ports,
            volume_usages=volume_usages,
        )

    def _count_by_node(self, pod_counts: RunningPodCounts, group: TopologyGroup | None, order: Ints) -> Ints:
        """Return the number of running pods that the group counts, for each node (`order`: their positions)."""
        counts: Ints = np.zeros(len(self.nodes), dtype=np.int64)
        for name, pods in pod_counts.by_node(group).items() if group is not None else ():
            counts[self._positions[name]] = pods
        return counts[order]

    def _has_hostname(self, hostnames: Collection[str]) -> Ints:
        """Return for each node of the inventory 1 if it has one of these hostnames, else 0."""
        found: Ints = np.zeros(len(self.nodes), dtype=np.int64)
        for hostname in hostnames:
            found[self._positions_by_hostname.get(hostname, [])] = 1
        return found

    @cached_property
    def _positions_by_hostname(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for position, node in enumerate(self.nodes):
            found.setdefault(domain_of(node, labels.HOSTNAME) or "", []).append(position)
        return found

    def _resources(
        self, selection: NodeSelection, order: Ints, nodes: Sequence[StateNode], axes: tuple[str, ...]
    ) -> Ints:
        """Return the free resources of these nodes (`order`: their positions), a row per node and a column per axis."""
        if axes not in self._free:
            size = len(self.nodes)
            self._free[axes] = np.zeros((size, len(axes)), dtype=np.int64), np.zeros(size, dtype=bool)
        table, is_computed = self._free[axes]
        for position in order[~is_computed[order]].tolist():
            if position not in selection.losing_pods:
                table[position], is_computed[position] = self._free_on(self.nodes[position], (), axes), True
        free: Ints = table[order]
        for n, position in enumerate(order.tolist()) if selection.losing_pods else ():
            if position in selection.losing_pods:
                free[n] = self._free_on(nodes[n], selection.rescheduled, axes)
        return free

    def _free_on(self, node: StateNode, rescheduled: Collection[str], axes: Sequence[str]) -> Sequence[int]:
        return self._evaluate([0] * len(axes), node, self._free_amounts, node, rescheduled, axes)

    def _free_amounts(self, node: StateNode, rescheduled: Collection[str], axes: Sequence[str]) -> list[int]:
        """Return the free amount on each axis; 0 on all axes if any resource is overcommitted."""
        available = self._available(node, rescheduled)
        overcommitted = any(amount < 0 for amount in available.values())
        return [0 if overcommitted else available.get(axis, 0) for axis in axes]

    def _available(self, node: StateNode, rescheduled: Collection[str]) -> dict[str, int]:
        remaining = (self._requests_of(pod) for pod in node.pods if pod.key not in rescheduled)
        used = add({PODS: 0}, *remaining, missing_daemon_overhead(node, self._daemons))
        return subtract(allocatable_of(node), used)

    def _requests_of(self, pod: Pod) -> Resources:
        """Return `pod_requests`, computed once for pods with equal containers and resizes."""
        spec = pod.spec
        key = encode((spec.containers, spec.init_containers, spec.overhead, spec.resources, resize_of(pod)))
        requests = self._requests.get(key)
        if requests is None:
            requests = self._requests[key] = pod_requests(pod)
        return requests

    def _evaluate(self, otherwise: T, node: StateNode, function: Callable[..., T], *args: Any) -> T:
        """Return what the function returns for a node, or `otherwise` if that cannot be evaluated."""
        found = evaluate(node, function, *args)
        if isinstance(found, SkippedObject):
            self.skipped.setdefault(node.name, found)
            return otherwise
        return found

    def _used_ports(
        self, selection: NodeSelection, order: Ints, nodes: Sequence[StateNode]
    ) -> tuple[frozenset[HostPort], ...]:
        """Return the host ports in use on each of these nodes (`order`: their positions)."""
        return tuple(
            self._evaluate(frozenset(), node, _used_ports_on, node, selection.rescheduled, self._daemons)
            if position in selection.losing_pods
            else self._used_ports_of(position)
            for position, node in zip(order.tolist(), nodes, strict=True)
        )

    def _volume_usages(
        self, selection: NodeSelection, order: Ints, nodes: Sequence[StateNode]
    ) -> tuple[VolumeUsage, ...]:
        """Return the volumes that each of these nodes can attach."""
        return tuple(
            self._evaluate(ANY_NUMBER, node, volume_usage, node, self._storage, selection.rescheduled)
            if position in selection.losing_pods
            else self._volume_usage_of(position)
            for position, node in zip(order.tolist(), nodes, strict=True)
        )

    def _volume_usage_of(self, position: int) -> VolumeUsage:
        if position not in self._attachable:
            node = self.nodes[position]
            self._attachable[position] = self._evaluate(ANY_NUMBER, node, volume_usage, node, self._storage, ())
        return self._attachable[position]

    def _used_ports_of(self, position: int) -> frozenset[HostPort]:
        if position not in self._ports:
            node = self.nodes[position]
            self._ports[position] = self._evaluate(frozenset(), node, _used_ports_on, node, (), self._daemons)
        return self._ports[position]


def _host_capacity(used_ports: Sequence[frozenset[HostPort]], caps: HostConstraints) -> Ints:
    """Return the free amounts on the axes of host constraints, before the counted running pods are subtracted."""
    free: Ints = np.tile(caps.caps, (len(used_ports), 1))
    for n, ports in enumerate(used_ports):
        if ports:
            free[n] = caps.caps_with_used_ports(ports)
    return free


def _missing_daemons(node: StateNode, daemons: Iterable[Daemon]) -> tuple[Daemon, ...]:
    """Return the daemons that belong on the node and do not run there."""
    running = {
        owner.uid
        for pod in node.pods
        if not is_terminating(pod)
        for owner in pod.metadata.owner_references
        if owner.controller and owner.kind == "DaemonSet"
    }
    return tuple(daemon for daemon in daemons_of(node, daemons) if daemon.uid not in running)


def _used_ports_on(node: StateNode, rescheduled: Collection[str], daemons: Iterable[Daemon]) -> frozenset[HostPort]:
    """Return the host ports of the pods that stay and of all daemons that belong on the node, running or not."""
    of_daemons = (daemon.ports for daemon in daemons_of(node, (daemon for daemon in daemons if daemon.ports)))
    of_pods = (host_ports(pod) for pod in node.pods if pod.key not in rescheduled)
    return frozenset(port for ports in (*of_pods, *of_daemons) for port in ports)


def _selected_labels(rows: Iterable[PodClass]) -> set[str]:
    """Return the pod labels that the topology groups of these rows select on."""
    groups = {g.id: g for row in rows for g in row.groups}
    return {key for group in groups.values() for key in group.label_keys}


def _as_table(columns: Sequence[Ints], height: int) -> Ints:
    table: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), height).T
    return table
