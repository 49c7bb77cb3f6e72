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
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, Taint, Toleration
from journeyman.core.api.resources import PODS, Resources, add, pod_requests, resize_of, subtract
from journeyman.core.scheduling.arrays import Bools, Ints, read_only
from journeyman.core.scheduling.daemon_overhead import Daemon, daemons_of, missing_daemon_overhead
from journeyman.core.scheduling.host_constraints import HostConstraints
from journeyman.core.scheduling.pod_classes import HostPort, PodClass, encode, host_ports
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.topology import (
    ABSENT,
    DecidedLabel,
    DecidedLabels,
    InverseAntiAffinity,
    InverseAntiAffinityCounts,
    NamespaceIndex,
    RunningAntiAffinity,
    RunningPodCounts,
    TopologyGroup,
    domain_of,
    required_anti_affinities,
    running_anti_affinities,
)
from journeyman.core.scheduling.volumes import ANY_NUMBER, StorageObjects, VolumeUsage, volume_usage
from journeyman.core.state.pod_predicates import is_active, is_terminating
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode
from journeyman.core.state.taints import has_untolerated_preference, untolerated

H = TypeVar("H", bound=Hashable)
T = TypeVar("T")


class NodesInDomains(NamedTuple):
    """The nodes in one combination of domains: True for each node that has all labels in `decided`."""

    decided: DecidedLabels
    nodes: Bools


class NodeColumns:
    """Labels and taints of nodes in a fixed order; returned arrays have one entry per node."""

    def __init__(self, nodes: Sequence[StateNode], source: tuple[NodeColumns, Ints] | None = None) -> None:
        """Hold columns of these nodes; `source`: they are at these positions of other columns, which read each once."""
        self._nodes = nodes
        self._source = source
        self._codes: dict[Hashable, tuple[Ints, tuple[Any, ...]]] = {}
        self._combinations: dict[tuple[str, ...], tuple[NodesInDomains, ...]] = {}

    def label(self, key: str) -> tuple[Ints, tuple[str | None, ...]]:
        """Return a label as (code per node, value per code), None for nodes without it; some codes may not occur."""
        return self.coded(key, lambda node: node.labels.get(key))

    def coded(self, kind: Hashable, value_of: Callable[[StateNode], H]) -> tuple[Ints, tuple[H, ...]]:
        """Return a value of each node as (code per node, value per code); kept under `kind`."""
        found = self._codes.get(kind)
        if found is None:
            if self._source is not None:
                all_columns, positions = self._source
                of_all, values = all_columns.coded(kind, value_of)
                found = of_all[positions], values
            else:
                numbers: dict[H, int] = {}
                codes = [numbers.setdefault(value_of(node), len(numbers)) for node in self._nodes]
                found = np.array(codes, dtype=np.int64), tuple(numbers)
            self._codes[kind] = found
        return found

    def combinations(self, keys: tuple[str, ...]) -> tuple[NodesInDomains, ...]:
        """Return the combinations of these labels' values that occur, with their nodes; absent labels are omitted."""
        if keys not in self._combinations:
            codes, decided_of = self.coded(
                keys, lambda node: tuple(DecidedLabel(key, node.labels[key]) for key in keys if key in node.labels)
            )
            combinations = (
                NodesInDomains(decided, read_only(codes == code)) for code, decided in enumerate(decided_of)
            )
            self._combinations[keys] = tuple(combination for combination in combinations if combination.nodes.any())
        return self._combinations[keys]

    def accepted(self, tolerations: Sequence[Toleration], *, avoids_prefer_no_schedule: bool) -> Bools:
        """Return for each node whether these tolerations tolerate all of its taints; a cordon counts as a taint."""
        codes, taints = self.coded(_taints_of, _taints_of)
        verdicts = [
            untolerated(t, tolerations) is None
            and not (avoids_prefer_no_schedule and has_untolerated_preference(t, tolerations))
            for t in taints
        ]
        accepted: Bools = np.array(verdicts, dtype=bool)[codes]
        return accepted

    def meeting(self, terms: Sequence[Requirements]) -> Bools:
        """Return for each node whether it meets one of these terms; an absent label never meets `In`."""
        meets_any: Bools = np.zeros(len(self._nodes), dtype=bool)
        for term in terms:
            meets_all: Bools = np.ones(len(self._nodes), dtype=bool)
            for key, wanted in term.items():
                codes, values = self.label(key)
                meets = [wanted.allows_absence if value is None else wanted.has(value) for value in values]
                meets_all &= np.array(meets, dtype=bool)[codes]
            meets_any |= meets_all
        return meets_any

    def with_labels(self, decided: DecidedLabels) -> Bools:
        """Return for each node whether its labels match these."""
        has_all: Bools = np.ones(len(self._nodes), dtype=bool)
        for key, decided_value in decided:
            codes, values = self.label(key)
            has_value = [(ABSENT if value is None else value) == decided_value for value in values]
            has_all &= np.array(has_value, dtype=bool)[codes]
        return has_all


_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def _taints_of(node: StateNode) -> tuple[Taint, ...]:
    """Return the node's taints, and that of a cordon even before it is set: kube-scheduler honours both."""
    is_cordoned = node.node is not None and node.node.spec.unschedulable
    return (*node.taints, _CORDON) if is_cordoned else tuple(node.taints)


class ColumnAmount(NamedTuple):
    """The amount that a pod uses of a column of free capacity."""

    column: int
    amount: int


class SharedClaims(NamedTuple):
    """The volume claims of one CSI driver, by number, that all pods of a row share; `column` is that of the driver."""

    column: int
    claims: tuple[int, ...]


class RowDemand(Struct, frozen=True, kw_only=True):
    """What one pod of a row uses, what it needs, and the conflicts, groups and shared volumes that concern the row.

    It needs `amounts`; of a few columns, it uses more than it needs (`unlimited`): those of rules of other pods that
    count it.
    """

    amounts: tuple[ColumnAmount, ...]
    unlimited: tuple[ColumnAmount, ...]
    counted: tuple[int, ...]
    owning: tuple[int, ...]
    lasting: tuple[int, ...]
    follows: tuple[int, ...]
    leads: tuple[int, ...]
    shared: tuple[SharedClaims, ...]


class ExistingNodes(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that can take pods, and the nodes whose running pods count.

    Attributes:
        nodes: The nodes that can take pods, in the order in which they are filled.
        free: The free amounts, a row per node and a column per axis: resources, then the axes of the host constraints.
        all_nodes: All nodes whose running pods count, including those marked for deletion.
        remaining: For each of `all_nodes`, whether it is not marked for deletion.
        pod_counts: Counts the running pods by topology group, for topology spread.
        expected_counts: Counts them and the DaemonSets' pods that are still to come, for pod (anti-)affinity.
        columns: Labels and taints of `nodes`.
        all_columns: Labels and taints of `all_nodes`.
        counted: Running pods of the first kind, by conflict of the host constraints and node.
        owning: Running pods of the second kind, by conflict and node.
        followed_counts: Running pods that a hostname affinity selects, by group and node.
        volume_usages: The volumes that each node can attach; empty if no node limits them.
        demands: What `NodeFilling` read of each row so far, for all plans of the problem.
        suitable: The nodes that suit it, by row and by what decides that.
    """

    nodes: tuple[StateNode, ...]
    free: Ints
    all_nodes: tuple[StateNode, ...]
    remaining: Bools
    pod_counts: RunningPodCounts
    expected_counts: RunningPodCounts
    columns: NodeColumns
    all_columns: NodeColumns
    counted: Ints
    owning: Ints
    followed_counts: Ints
    volume_usages: tuple[VolumeUsage, ...]
    demands: dict[int, RowDemand] = field(default_factory=dict)
    suitable: dict[object, Bools] = field(default_factory=dict)


class NodeSelection(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes of one problem, without those that are assumed to be removed.

    Attributes:
        nodes: The nodes, in the order of the inventory, with their running and nominated pods.
        positions: Their positions in the inventory.
        removed_nodes: The names of the removed nodes.
        rescheduled: The keys of the pods to place.
        losing_pods: The positions of nodes that run some of these pods; cached results are invalid for them.
    """

    nodes: tuple[StateNode, ...]
    positions: Ints
    removed_nodes: Collection[str]
    rescheduled: frozenset[str]
    losing_pods: frozenset[int]


class NodeInventory:
    """All nodes of one snapshot, by name, each with the unbound pods nominated to it."""

    def __init__(self, snapshot: Snapshot, daemons: Sequence[Daemon], storage: StorageObjects) -> None:
        """Prepare an inventory; everything about nodes is computed on first use.

        Args:
            snapshot: The state of the cluster.
            daemons: The DaemonSets' pods.
            storage: The storage objects that limit attached volumes.
        """
        self._snapshot = snapshot
        self._daemons = daemons
        self._storage = storage
        self.namespaces = NamespaceIndex({n.metadata.name: n for n in snapshot.namespaces})
        """The namespaces of the snapshot."""
        self.skipped: dict[str, SkippedObject] = {}
        """Nodes that cannot be evaluated, by name: no pod is planned onto them."""
        self._free: dict[tuple[str, ...], tuple[Ints, Bools]] = {}
        self._pod_counts: RunningPodCounts | None = None
        self._expected: dict[tuple[str, ...], RunningPodCounts] = {}
        self._counted_labels: set[str] = set()
        self._requests: dict[bytes, Resources] = {}
        self._ports: dict[int, frozenset[HostPort]] = {}
        self._volumes: dict[int, VolumeUsage] = {}

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
    def _positions(self) -> Mapping[str, int]:
        return {node.name: position for position, node in enumerate(self.nodes)}

    @cached_property
    def _remaining(self) -> Bools:
        """Return for each node whether it is neither marked for deletion nor unusable."""
        return np.array([not (node.is_being_disrupted or node.is_unusable) for node in self.nodes], dtype=bool)

    @cached_property
    def _filling_order(self) -> Ints:
        """Return the positions of the remaining nodes: initialized ones first, then by name."""
        order = np.argsort([not node.initialized for node in self.nodes], kind="stable")
        remaining: Ints = order[self._remaining[order]]
        return remaining

    @cached_property
    def _columns(self) -> NodeColumns:
        return NodeColumns(self.nodes)

    @cached_property
    def _node_position(self) -> Mapping[str, int]:
        """Return the position of each pod's node, by pod key."""
        return {pod.key: position for position, node in enumerate(self.nodes) for pod in node.pods}

    def select(self, pods: Iterable[Pod], without: Collection[str]) -> NodeSelection:
        """Return the nodes of a problem.

        Args:
            pods: The pods to place, which may be pending or running.
            without: The names of nodes that are assumed to be removed, with their pods.
        """
        is_selected = np.array([node.name not in without for node in self.nodes], dtype=bool)
        positions = np.flatnonzero(is_selected)
        rescheduled = frozenset(pod.key for pod in pods)
        losing_pods = (self._node_position[key] for key in self._node_position.keys() & rescheduled)
        return NodeSelection(
            nodes=tuple(self.nodes[position] for position in positions.tolist()),
            positions=positions,
            removed_nodes=without,
            rescheduled=rescheduled,
            losing_pods=frozenset(position for position in losing_pods if is_selected[position]),
        )

    # --- the pods on them

    @cached_property
    def _anti_affinities(self) -> Mapping[int, tuple[RunningAntiAffinity, ...]]:
        """Return the required anti-affinity of running pods, by position of their node; without empty entries."""
        daemons = tuple(d for d in self._daemons if any(required_anti_affinities(d.pod, self.namespaces)))
        found: dict[int, tuple[RunningAntiAffinity, ...]] = {}
        for position, node in enumerate(self.nodes):
            entries: tuple[RunningAntiAffinity, ...] = self._evaluate(
                (), node, running_anti_affinities, self._expected_on(node, daemons), self.namespaces
            )
            if entries:
                found[position] = entries
        return found

    @cached_property
    def _inverse(self) -> InverseAntiAffinityCounts:
        return InverseAntiAffinityCounts(entry for entries in self._anti_affinities.values() for entry in entries)

    def inverse_anti_affinities(self, selection: NodeSelection) -> tuple[InverseAntiAffinity, ...]:
        """Return the domains that the required anti-affinity of the other running pods forbids to matching pods."""
        by_position = self._anti_affinities
        if not by_position:
            return ()
        removed = (self._positions[name] for name in selection.removed_nodes if name in self._positions)
        losing = [entry for position in selection.losing_pods for entry in by_position.get(position, ())]
        return self._inverse.without(
            (*(entry for position in removed for entry in by_position.get(position, ())), *losing),
            (entry for entry in losing if entry.pod not in selection.rescheduled),
        )

    def anti_affinities(self, selection: NodeSelection) -> Mapping[str, tuple[RunningAntiAffinity, ...]]:
        """Return the required anti-affinity of running pods by the name of their node, for the nodes of a selection."""
        names = {node.name for node in selection.nodes}
        by_name = ((self.nodes[position].name, entries) for position, entries in self._anti_affinities.items())
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

        None come to a node that leaves, nor to one that is too small for all DaemonSets' pods beside those that run
        there.
        """
        if not daemons or node.is_being_disrupted or node.is_unusable:
            return node
        missing: tuple[Daemon, ...] = self._evaluate((), node, _missing_daemons, node, daemons)
        if not missing or not self._free_on(node, ()):
            return node
        return replace(node, pods=(*node.pods, *(daemon.pod for daemon in missing)))

    # --- free capacity

    def survey(
        self,
        selection: NodeSelection,
        pod_counts: RunningPodCounts,
        expected_counts: RunningPodCounts,
        *,
        axes: tuple[str, ...],
        host_constraints: HostConstraints,
        has_ports: bool,
    ) -> ExistingNodes:
        """Return the nodes with their free capacity, after all daemons that belong on them are subtracted.

        Args:
            selection: The nodes of the problem.
            pod_counts: Counts the running pods by topology group of the problem.
            expected_counts: Counts the DaemonSets' pods that are still to come, too.
            axes: The names of resources.
            host_constraints: The rows' host constraints.
            has_ports: Whether a row has host ports.
        """
        is_selected: Bools = np.zeros(len(self.nodes), dtype=bool)
        is_selected[selection.positions] = True
        order = self._filling_order[is_selected[self._filling_order]]
        nodes = tuple(self.nodes[position] for position in order.tolist())
        on_axes: Ints = np.tile(host_constraints.capacities, (len(nodes), 1))
        for n, ports in enumerate(self._used_ports(selection, order) if has_ports else ()):
            on_axes[n] = host_constraints.capacities_with_used_ports(ports)
        for a, axis in enumerate(host_constraints.axes):
            counts = expected_counts if axis.awaits_daemons else pod_counts
            on_axes[:, a] -= self._counts_on(order, counts, (axis.group,))[0]
        free = np.concatenate((self._resources(selection, order, axes), on_axes), axis=1)
        volume_usages = self._volume_usages(selection, order) if self._storage.nodes else ()
        if self.skipped:
            free[[node.name in self.skipped for node in nodes]] = 0
        return ExistingNodes(
            nodes=nodes,
            free=free,
            all_nodes=selection.nodes,
            remaining=self._remaining[selection.positions],
            pod_counts=pod_counts,
            expected_counts=expected_counts,
            columns=NodeColumns(nodes, (self._columns, order)),
            all_columns=NodeColumns(selection.nodes, (self._columns, selection.positions)),
            counted=self._counts_on(
                order, expected_counts, [conflict.group for conflict in host_constraints.conflicts]
            ),
            owning=self._owning_on(order, host_constraints),
            followed_counts=self._counts_on(order, expected_counts, host_constraints.followed),
            volume_usages=volume_usages,
        )

    def _counts_on(self, order: Ints, counts: RunningPodCounts, groups: Sequence[TopologyGroup | None]) -> Ints:
        """Return the number of pods that each group counts on each of these nodes (`order`: their positions)."""
        by_position: Ints = np.zeros((len(groups), len(self.nodes)), dtype=np.int64)
        for g, group in enumerate(groups):
            for name, pods in counts.by_node(group).items() if group is not None else ():
                by_position[g, self._positions[name]] = pods
        return by_position[:, order]

    def _owning_on(self, order: Ints, host_constraints: HostConstraints) -> Ints:
        """Return by conflict, for each of these nodes, 1 if its hostname is one of the conflict's domains, else 0."""
        by_position: Ints = np.zeros((len(host_constraints.conflicts), len(self.nodes)), dtype=np.int64)
        for c, conflict in enumerate(host_constraints.conflicts):
            for hostname in conflict.domains:
                by_position[c, self._positions_by_hostname.get(hostname, [])] = 1
        return by_position[:, order]

    @cached_property
    def _positions_by_hostname(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for position, node in enumerate(self.nodes):
            found.setdefault(domain_of(node, labels.HOSTNAME) or "", []).append(position)
        return found

    def _resources(self, selection: NodeSelection, order: Ints, axes: tuple[str, ...]) -> Ints:
        """Return the free resources of these nodes (`order`: their positions), a row per node and a column per axis."""
        if axes not in self._free:
            size = len(self.nodes)
            self._free[axes] = np.zeros((size, len(axes)), dtype=np.int64), np.zeros(size, dtype=bool)
        table, is_computed = self._free[axes]
        for position in order[~is_computed[order]].tolist():
            if position not in selection.losing_pods:
                available = self._free_on(self.nodes[position], ())
                table[position], is_computed[position] = [available.get(axis, 0) for axis in axes], True
        free: Ints = table[order]
        for n, position in enumerate(order.tolist()) if selection.losing_pods else ():
            if position in selection.losing_pods:
                available = self._free_on(self.nodes[position], selection.rescheduled)
                free[n] = [available.get(axis, 0) for axis in axes]
        return free

    def _free_on(self, node: StateNode, rescheduled: Collection[str]) -> Resources:
        """Return the free resources; none if one is overcommitted, or if the node cannot be evaluated."""
        available: Resources = self._evaluate({}, node, self._available, node, rescheduled)
        return available if min(available.values(), default=0) >= 0 else {}

    def _available(self, node: StateNode, rescheduled: Collection[str]) -> dict[str, int]:
        remaining = (self._requests_of(pod) for pod in node.pods if pod.key not in rescheduled)
        used = add({PODS: 0}, *remaining, missing_daemon_overhead(node, self._daemons))
        return subtract(node.allocatable(), used)

    def _requests_of(self, pod: Pod) -> Resources:
        """Return `pod_requests`, computed once for pods with equal containers and resizes."""
        spec = pod.spec
        key = encode((spec.containers, spec.init_containers, spec.overhead, spec.resources, resize_of(pod)))
        requests = self._requests.get(key)
        if requests is None:
            requests = self._requests[key] = pod_requests(pod)
        return requests

    def _used_ports(self, selection: NodeSelection, order: Ints) -> tuple[frozenset[HostPort], ...]:
        """Return the host ports in use on each of these nodes, by pods that stay and daemons that belong there."""

        def of_node(node: StateNode, rescheduled: Collection[str]) -> frozenset[HostPort]:
            daemons = daemons_of(node, (daemon for daemon in self._daemons if daemon.ports))
            of_pods = (host_ports(pod) for pod in node.pods if pod.key not in rescheduled)
            return frozenset().union(*of_pods, *(daemon.ports for daemon in daemons))

        return self._of_each(self._ports, of_node, frozenset(), selection, order)

    def _volume_usages(self, selection: NodeSelection, order: Ints) -> tuple[VolumeUsage, ...]:
        """Return the volumes that each of these nodes can attach."""

        def of_node(node: StateNode, rescheduled: Collection[str]) -> VolumeUsage:
            return volume_usage(node, self._storage, rescheduled)

        return self._of_each(self._volumes, of_node, ANY_NUMBER, selection, order)

    def _of_each(
        self,
        known: dict[int, T],
        of_node: Callable[[StateNode, Collection[str]], T],
        otherwise: T,
        selection: NodeSelection,
        order: Ints,
    ) -> tuple[T, ...]:
        """Return what a function returns for each of these nodes and the keys of rescheduled pods.

        `known` keeps it by position for nodes that lose no pods; `otherwise` is for nodes that cannot be evaluated.
        """
        found: list[T] = []
        for position in order.tolist():
            node = self.nodes[position]
            if position in selection.losing_pods:
                found.append(self._evaluate(otherwise, node, of_node, node, selection.rescheduled))
                continue
            if position not in known:
                known[position] = self._evaluate(otherwise, node, of_node, node, ())
            found.append(known[position])
        return tuple(found)

    def _evaluate(self, otherwise: T, node: StateNode, function: Callable[..., T], *args: Any) -> T:
        """Return what the function returns for a node, or `otherwise` if that cannot be evaluated."""
        found = evaluate(node, function, *args)
        if isinstance(found, SkippedObject):
            self.skipped.setdefault(node.name, found)
            return otherwise
        return found


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


def _selected_labels(rows: Iterable[PodClass]) -> set[str]:
    """Return the pod labels that the topology groups of these rows select on."""
    groups = {g.id: g for row in rows for g in row.groups}
    return {key for group in groups.values() for key in group.label_keys}
