"""The nodes that are already there, or on their way: what is free on them, once all their daemons run.

Order: initialized nodes first, then by name.

Restates: karpenter pkg/controllers/provisioning/scheduling/existingnode.go `NewExistingNode`, scheduler.go
`calculateExistingNodeClaims`.
Differs: pods that a claim without a node was opened for are kept with it (its annotation and their nomination say so), so
that one burst of pods is never provisioned for twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.api.resources import add, fits, pod_requests, subtract, to_resources, total_requests
from journeyman.core.scheduling.arrays import Ints
from journeyman.core.scheduling.claims import planned_pods
from journeyman.core.scheduling.demand.classes import PodClass
from journeyman.core.scheduling.demand.host_ports import HostPort, host_ports
from journeyman.core.scheduling.demand.topology import Census, Group, domain_of
from journeyman.core.scheduling.demand.volumes import Storage, VolumeRoom, volume_rooms
from journeyman.core.scheduling.offering.daemons import Daemon, missing_daemon_overhead
from journeyman.core.scheduling.pods import is_active
from journeyman.core.scheduling.requirements import from_labels
from journeyman.core.scheduling.standing.caps import HostCaps
from journeyman.core.scheduling.standing.node_columns import NodeColumns
from journeyman.core.scheduling.taints import untolerated
from journeyman.core.state.snapshot import Snapshot, StateNode


def standing_nodes(snapshot: Snapshot, without: Collection[str]) -> tuple[StateNode, ...]:
    """The nodes whose pods count: all but those in `without`, each with the unbound pods nominated to it."""
    nominated: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        if pod.status.nominated_node_name and not pod.spec.node_name and is_active(pod):
            nominated.setdefault(pod.status.nominated_node_name, []).append(pod)
    return tuple(
        replace(node, pods=(*node.pods, *nominated[node.name])) if node.name in nominated else node
        for node in snapshot.state_nodes
        if node.name not in without
    )


def adopt_planned(
    nodes: Sequence[StateNode], pods: Sequence[Pod]
) -> tuple[tuple[StateNode, ...], dict[str, tuple[str, ...]]]:
    """Claims whose node has not registered keep the pods they were opened for, as far as these fit.

    Returns:
        The nodes, such claims with their pods; and by node name the keys of those pods, of `pods` only.
    """
    by_key = {pod.key: pod for pod in pods}
    adopted: dict[str, tuple[str, ...]] = {}
    result: list[StateNode] = []
    for node in nodes:
        kept = () if node.claim is None or node.registered or node.deleting else _planned_on(node, by_key)
        for pod in kept:
            del by_key[pod.key]
        if kept:
            adopted[node.name] = tuple(pod.key for pod in kept)
        result.append(replace(node, pods=(*node.pods, *kept)) if kept else node)
    return tuple(result), adopted


def _planned_on(node: StateNode, by_key: Mapping[str, Pod]) -> tuple[Pod, ...]:
    if node.claim is None:
        return ()
    left = subtract(allocatable_of(node), total_requests(node.pods))
    kept: list[Pod] = []
    for key in planned_pods(node.claim.metadata.annotations):
        pod = by_key.get(key)
        if pod is not None and pod.spec.resource_claims:
            continue  # its devices have to be found anew, so it is asked about like any other
        if pod is None or untolerated(node.taints, pod.spec.tolerations) is not None:
            continue
        requests = pod_requests(pod)
        if fits(requests, left):
            left = subtract(left, requests)
            kept.append(pod)
    return tuple(kept)


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Existing:
    """Nodes that can take pods, in filling order, and all nodes whose pods count, `standing`.

    `free` has a row per node and a column per axis (resources, then the caps' axes). `counted` and `bound` tell by node
    and conflict of the caps how many running pods are of either kind, `company` by node and group followed how many are
    there. `rooms` are what the nodes can attach, `columns` their labels and taints, `census` counts the running pods.
    """

    nodes: tuple[StateNode, ...]
    free: Ints
    standing: tuple[StateNode, ...] = ()
    census: Census = field(default_factory=lambda: Census((), (), ()))
    columns: NodeColumns = field(default_factory=lambda: NodeColumns(()))
    counted: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    bound: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    company: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    rooms: tuple[VolumeRoom, ...] = ()


def survey(
    standing: Iterable[StateNode],
    rows: Sequence[PodClass],
    *,
    axes: Sequence[str],
    caps: HostCaps,
    daemons: Sequence[Daemon],
    leaving: Collection[str],
    storage: Storage | None = None,
) -> Existing:
    """The nodes not marked for deletion, and what is free on them once their daemons are all there.

    Args:
        standing: All nodes whose pods count.
        rows: The rows of the question, for what they count.
        axes: Resources.
        caps: The rows' rules about one node.
        daemons: What else will run there.
        leaving: Keys of the pods that are being placed anew, and so do not count where they are.
        storage: What volumes there are; None if no pod has any.
    """
    standing = tuple(standing)
    nodes = sorted((n for n in standing if not is_leaving(n)), key=lambda n: (not n.initialized, n.name))
    census = Census(standing, leaving, _watched(rows))
    free = np.zeros((len(nodes), len(axes) + len(caps.axes)), dtype=np.int64)
    ported = any(axis.ports for axis in caps.axes)
    for row, node in enumerate(nodes):
        staying = [p for p in node.pods if p.key not in leaving]
        available = subtract(allocatable_of(node), add(total_requests(staying), missing_daemon_overhead(node, daemons)))
        if all(amount >= 0 for amount in available.values()):
            free[row, : len(axes)] = [available.get(axis, 0) for axis in axes]
        free[row, len(axes) :] = caps.beside(_used_ports(node, staying, daemons) if ported else ())
    for a, axis in enumerate(caps.axes):
        free[:, len(axes) + a] -= _counts(census, axis.group, nodes)
    hostnames = [domain_of(node, labels.HOSTNAME) for node in nodes]
    return Existing(
        nodes=tuple(nodes),
        free=free,
        standing=standing,
        census=census,
        columns=NodeColumns(nodes),
        counted=_table([_counts(census, c.group, nodes) for c in caps.conflicts], len(nodes)),
        bound=_table(
            [np.array([h in c.domains for h in hostnames], dtype=np.int64) for c in caps.conflicts], len(nodes)
        ),
        company=_table([_counts(census, group, nodes) for group in caps.followed], len(nodes)),
        rooms=volume_rooms(nodes, storage, leaving) if storage is not None else (),
    )


def _used_ports(node: StateNode, pods: Iterable[Pod], daemons: Iterable[Daemon]) -> set[HostPort]:
    """The host ports of these pods, and of the daemons that belong on the node whether they run yet or not."""
    offered = from_labels(node.labels)
    expected = (
        daemon.ports
        for daemon in daemons
        if daemon.ports
        and untolerated(node.taints, daemon.tolerations) is None
        and any(offered.compatible(term) is None for term in daemon.terms)
    )
    return {port for ports in (*map(host_ports, pods), *expected) for port in ports}


def _watched(rows: Iterable[PodClass]) -> set[str]:
    """The pod labels that any rule of theirs looks at."""
    groups = {g.id: g for row in rows for g in (*(s.group for s in row.spreads), *row.affinities, *row.anti_affinities)}
    return {key for group in groups.values() for key in group.label_keys}


def _counts(census: Census, group: Group | None, nodes: Sequence[StateNode]) -> Ints:
    """The running pods that the group counts, by node."""
    by_node = census.by_node(group) if group is not None else {}
    if not by_node:
        return np.zeros(len(nodes), dtype=np.int64)
    return np.array([by_node.get(node.name, 0) for node in nodes], dtype=np.int64)


def _table(columns: Sequence[Ints], height: int) -> Ints:
    found: Ints = np.array(columns, dtype=np.int64).reshape(len(columns), height).T
    return found


def is_leaving(node: StateNode) -> bool:
    """Whether the node is marked for deletion, so that its pods need another place and it takes none."""
    tainted = node.node is not None and any(t.key == labels.DISRUPTED_TAINT for t in node.node.spec.taints)
    return node.deleting or tainted
