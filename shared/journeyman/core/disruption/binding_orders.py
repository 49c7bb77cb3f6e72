"""Binding orders: whether evicted pods find their capacity in whatever order kube-scheduler binds their successors.

A simulation says where evicted pods fit. kube-scheduler does not know that: it binds each new pod at once to the node with
the best score, in the order in which the controllers create them. A small pod may take the capacity of a large one, for which a
node would then be launched again. So a removal is proposed only if every pod is bound in each of several orders:

::

    free capacity of the remaining nodes and of the replacements
       ─► pods in the order of eviction, by size class; in each class largest first, smallest first, by name, and in shuffled orders
            ─► each pod to the node with the best score that can take it (`node_scores`)
                 ─► a pod without a node: the removal is not proposed

Consolidation evicts large pods before small ones (`eviction_order`). A PodDisruptionBudget may delay some of them: then the
orders in which these come last are checked as well, and those in which pods that wait already come first, if there are any.
Pods of other commands that wait for a replacement are not bound here: they are evicted when it has started.
Candidates of NodePools with packing `fewest-nodes` are removed as Karpenter removes them, without this check.

Pods with rules about other pods, volumes or host ports are bound where the simulation placed them: kube-scheduler has
few choices for those. Nothing here knows the simulation's solver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from typing import Final

import numpy as np

from journeyman.core.api import labels
from journeyman.core.api.objects import POD, Pod, Toleration
from journeyman.core.api.resources import pod_requests, subtract, total_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.commands import Command
from journeyman.core.disruption.node_scores import (
    NO_WORKLOAD,
    SCORED_AXES,
    UNBOUND,
    PodsToBind,
    SchedulableNodes,
    bind,
)
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.existing_nodes import NodeColumns
from journeyman.core.scheduling.nodeclaim_templates import FEWEST_NODES
from journeyman.core.scheduling.pod_classes import host_ports, requirement_terms
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot
from journeyman.core.state.eviction_order import drain_group, pods_evicted_late, size_class
from journeyman.core.state.pod_predicates import is_terminating
from journeyman.core.state.pod_workload import WorkloadKey, workload_of

SHUFFLED_ORDERS: Final = 3


def unbound_pod(
    command: Command, snapshot: Snapshot, catalogue: Catalogue, *, closed: Collection[str] = frozenset()
) -> str:
    """Return the key of a pod that has no node in one of the orders; empty if there is none, or if no order is checked.

    Args:
        command: A command with its simulation.
        snapshot: The cluster in which it was simulated.
        catalogue: The sizes of the replacements.
        closed: Names of nodes that should take none of the pods, although they could.
    """
    return next((keys[0] for keys in _unbound_by_order(command, snapshot, catalogue, closed) if keys), "")


def unbound_pods(
    command: Command,
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    closed: Collection[str] = frozenset(),
    later: Collection[str] = frozenset(),
) -> list[str]:
    """Return the keys of the pods that have no node in the worst of the orders.

    The arguments are those of `unbound_pod`. Pods with the keys `later` are evicted once the replacements have started, after the
    others, which then cannot use the replacements.
    """
    return max(_unbound_by_order(command, snapshot, catalogue, closed, later), key=len, default=[])


def _unbound_by_order(
    command: Command,
    snapshot: Snapshot,
    catalogue: Catalogue,
    closed: Collection[str],
    later: Collection[str] = frozenset(),
) -> Iterator[list[str]]:
    """Yield for each order the keys of the pods without a node, in that order."""
    simulated = command.simulation_result
    if simulated is None or all(
        snapshot.node_pools_by_name[c.nodepool].packing == FEWEST_NODES for c in command.candidates
    ):
        return
    results = simulated.results
    planned: dict[str, str | int] = {pod: node for node, pods in results.existing.items() for pod in pods}
    planned |= {pod: number for number, claim in enumerate(results.new_claims) for pod in claim.pods}
    starting = {n.name for n in snapshot.state_nodes if not n.initialized} - simulated.excluded_nodes
    own = {key for candidate in command.candidates for key in candidate.reschedulable_pods}
    pods = [p for p in simulated.pods if p.key in planned and (p.key in own or planned[p.key] not in starting)]
    workloads = _workloads(pods)
    excluded = simulated.excluded_nodes | frozenset(closed)
    nodes = _schedulable_nodes(pods, command.replacements, excluded, snapshot, catalogue, workloads=workloads)
    columns = NodeColumns([node for node in snapshot.state_nodes if node.name in nodes.position])
    row = {workload: number for number, workload in enumerate(workloads)}
    to_bind = PodsToBind(
        requests=_table([pod_requests(pod) for pod in pods], nodes.axes),
        workloads=np.array([row.get(workload_of(pod), NO_WORKLOAD) for pod in pods], dtype=np.int64),
        allowed=_allowed_nodes(pods, planned, nodes, columns, later),
        avoided=_avoided_nodes(pods, nodes, columns),
    )
    delayed = pods_evicted_late((p for p in pods if p.key in own), snapshot.pdbs)
    for order in _orders(pods, to_bind.requests, own, delayed, later):
        chosen = bind(order, to_bind, nodes)
        yield [pods[pod].key for pod, node in zip(order, chosen, strict=True) if node == UNBOUND]


def _schedulable_nodes(
    pods: Iterable[Pod],
    replacements: Sequence[PlannedClaim],
    excluded: frozenset[str],
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    workloads: Sequence[WorkloadKey],
) -> SchedulableNodes:
    """Return the remaining nodes that are initialized, and the replacements when their daemons run."""
    moving = {pod.key: pod for pod in pods}
    axes = tuple(
        dict.fromkeys((*SCORED_AXES, *sorted({name for pod in moving.values() for name in pod_requests(pod)})))
    )
    totals: list[Mapping[str, int]] = []
    free: list[Mapping[str, int]] = []
    zones: list[str] = []
    position: dict[str | int, int] = {}
    for node in snapshot.state_nodes:
        if node.name in excluded or node.is_being_disrupted or not node.initialized:
            continue
        position[node.name] = len(totals)
        totals.append(node.allocatable())
        free.append(subtract(totals[-1], total_requests(pod for pod in node.pods if pod.key not in moving)))
        zones.append(node.labels.get(labels.ZONE, ""))
    for number, claim in enumerate(replacements):
        types = {t.name: t for t in catalogue.instance_types(claim.node_pool)}
        daemons = subtract(claim.requests, total_requests(moving[key] for key in claim.pods if key in moving))
        position[number] = len(totals)
        totals.append(types[claim.offering.instance_type].allocatable)
        free.append(subtract(totals[-1], daemons))
        zones.append(claim.offering.zone)
    number_of = {zone: number for number, zone in enumerate(dict.fromkeys(zones))}
    return SchedulableNodes(
        axes=axes,
        free=_table(free, axes),
        total=_table(totals, axes),
        zones=np.array([number_of[zone] for zone in zones], dtype=np.int64),
        running=_running(workloads, position, moving, snapshot),
        position=position,
    )


def _workloads(pods: Iterable[Pod]) -> list[WorkloadKey]:
    """Return the workloads of the pods that have a controller, each once: kube-scheduler spreads their pods."""
    return list(dict.fromkeys(w for pod in pods if (w := workload_of(pod)).kind != POD.kind))


def _running(
    workloads: Sequence[WorkloadKey],
    position: Mapping[str | int, int],
    moving: Collection[str],
    snapshot: Snapshot,
) -> Ints:
    """Return by workload and node how many of its pods run there, without those that move."""
    counts: Ints = np.zeros((len(workloads), len(position)), dtype=np.int64)
    for number, workload in enumerate(workloads):
        for pod in snapshot.pods_by_workload.get(workload, ()):
            if pod.spec.node_name in position and pod.key not in moving and not is_terminating(pod):
                counts[number, position[pod.spec.node_name]] += 1
    return counts


def _table(rows: Sequence[Mapping[str, int]], axes: Sequence[str]) -> Ints:
    return np.array([[row.get(axis, 0) for axis in axes] for row in rows], dtype=np.int64).reshape(len(rows), len(axes))


def _allowed_nodes(
    pods: Sequence[Pod],
    planned: Mapping[str, str | int],
    nodes: SchedulableNodes,
    columns: NodeColumns,
    later: Collection[str],
) -> list[Bools]:
    """Return for each pod which nodes it may be bound to: by labels and taints, or only as planned if it has other rules.

    A replacement may take a pod if a pod with the same selectors and tolerations was planned for it, and only one of `later` if
    there are any.
    """
    kinds = [(requirement_terms(pod), pod.spec.tolerations, not later or pod.key in later) for pod in pods]
    same = {(kind, planned[pod.key]) for kind, pod in zip(kinds, pods, strict=True)}
    replacements = [number for number in nodes.position if isinstance(number, int)]
    by_kind: dict[tuple[tuple[Requirements, ...], tuple[Toleration, ...], bool], Bools] = {}
    for kind in dict.fromkeys(kinds):
        terms, tolerations, uses_replacements = kind
        existing = columns.meeting(terms) & columns.accepted(tolerations, avoids_prefer_no_schedule=False)
        new = [uses_replacements and (kind, number) in same for number in replacements]
        by_kind[kind] = np.concatenate((existing, np.array(new, dtype=bool)))
    return [
        _planned_only(planned[pod.key], nodes) if _has_other_rules(pod) else by_kind[kind]
        for pod, kind in zip(pods, kinds, strict=True)
    ]


def _avoided_nodes(pods: Sequence[Pod], nodes: SchedulableNodes, columns: NodeColumns) -> list[Bools]:
    """Return for each pod which nodes have a PreferNoSchedule taint that it does not tolerate; replacements have none."""
    by_tolerations: dict[tuple[Toleration, ...], Bools] = {}
    for tolerations in {pod.spec.tolerations for pod in pods}:
        accepted = columns.accepted(tolerations, avoids_prefer_no_schedule=False)
        avoided = accepted & ~columns.accepted(tolerations, avoids_prefer_no_schedule=True)
        missing = len(nodes.total) - len(avoided)
        by_tolerations[tolerations] = np.concatenate((avoided, np.zeros(missing, dtype=bool)))
    return [by_tolerations[pod.spec.tolerations] for pod in pods]


def _planned_only(planned: str | int, nodes: SchedulableNodes) -> Bools:
    only: Bools = np.zeros(len(nodes.total), dtype=bool)
    if planned in nodes.position:
        only[nodes.position[planned]] = True
    return only


def _has_other_rules(pod: Pod) -> bool:
    spec = pod.spec
    affinity = spec.affinity
    required = affinity is not None and (
        (affinity.pod_affinity is not None and affinity.pod_affinity.required)
        or (affinity.pod_anti_affinity is not None and affinity.pod_anti_affinity.required)
    )
    spread = any(c.when_unsatisfiable == "DoNotSchedule" for c in spec.topology_spread_constraints)
    volumes = any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes)
    return bool(required or spread or volumes or host_ports(pod))


def _orders(
    pods: Sequence[Pod], requests: Ints, own: Collection[str], delayed: Collection[str], later: Collection[str]
) -> Iterator[list[int]]:
    """Yield the orders in which the pods are bound, as positions.

    Args:
        pods: The pods.
        requests: Their requests by axis.
        own: Keys of those that the command evicts; the others wait for a node already, or are evicted by other commands.
        delayed: Keys of those that a PodDisruptionBudget may delay.
        later: Keys of those that are evicted after the others.
    """
    places = range(len(pods))
    classes = [(drain_group(pod), -size_class(pod), -(pod.spec.priority or 0)) for pod in pods]
    first: list[Callable[[int], bool]] = [lambda i: False]
    if delayed:
        first.append(lambda i: pods[i].key in delayed)
    if len(own) < len(pods):
        first.append(lambda i: pods[i].key in own)
    within: list[Callable[[int], tuple[object, ...]]] = [
        lambda i: (*(-requests[i]).tolist(), pods[i].key),
        lambda i: (*requests[i].tolist(), pods[i].key),
        lambda i: (pods[i].key,),
        *(lambda i, seed=seed: (_hash(pods[i].key, seed),) for seed in range(SHUFFLED_ORDERS)),
    ]
    for comes_later, key in product(first, within):
        yield sorted(places, key=lambda i: (pods[i].key in later, comes_later(i), classes[i], key(i)))


def _hash(key: str, seed: int) -> bytes:
    return blake2b(key.encode(), digest_size=8, salt=str(seed).encode()).digest()
