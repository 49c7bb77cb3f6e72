"""Binding orders: whether evicted pods find their capacity in whatever order kube-scheduler binds their successors.

A simulation says where evicted pods fit. kube-scheduler does not know that: it binds each new pod at once to the node with
the best score, in the order in which the controllers create them. A small pod may take the capacity of a large one, for which a
node would then be launched again. So a removal is proposed only if every pod is bound in each of several orders:

::

    free capacity of the remaining nodes and of the replacements
       ─► pods in order: largest first, smallest first, by name, and in shuffled orders
            ─► each pod to the best node that can take it: without untolerated PreferNoSchedule taints if there is one,
               then LeastAllocated + BalancedAllocation
                 ─► a pod without a node: the removal is not proposed

Pods of other commands that wait for a replacement are not bound here: they are evicted when it has started.
Candidates of NodePools with packing `fewest-nodes` are removed as Karpenter removes them, without this check.

Pods with rules about other pods, volumes or host ports are bound where the simulation placed them: kube-scheduler has
few choices for those. Nothing here knows the simulation's solver.

Restates: kubernetes pkg/scheduler/framework/plugins/noderesources `leastResourceScorer`, `balancedResourceScorer`,
tainttoleration `Score`, whose weight exceeds those of both others.
Differs: scores of preferences, image locality and of the pods' spread are left out; equal scores go by name, not at random.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from msgspec import Struct

from journeyman.core.api.objects import Pod, Toleration
from journeyman.core.api.resources import pod_requests, subtract, total_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.commands import Command
from journeyman.core.scheduling.arrays import Bools, Ints
from journeyman.core.scheduling.existing_nodes import NodeColumns, allocatable_of
from journeyman.core.scheduling.nodeclaim_templates import FEWEST_NODES
from journeyman.core.scheduling.pod_classes import host_ports, requirement_terms
from journeyman.core.scheduling.requirements import Requirements
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot

SHUFFLED_ORDERS: Final = 3
_SCORED: Final = ("cpu", "memory")
_MOST_SCORE: Final = 2.0  # of the resources; a preference against the node outweighs it


class FreeCapacity(Struct, frozen=True, kw_only=True, eq=False):
    """The nodes that kube-scheduler may bind pods to, replacements last.

    `free` and `total` are amounts by node and axis (`axes` names them, CPU and memory first), `position` the row of each
    existing node by name and of each replacement by its number.
    """

    axes: tuple[str, ...]
    free: Ints
    total: Ints
    position: Mapping[str | int, int]


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
    command: Command, snapshot: Snapshot, catalogue: Catalogue, *, closed: Collection[str] = frozenset()
) -> list[str]:
    """Return the keys of the pods that have no node in the worst of the orders; the arguments are those of `unbound_pod`."""
    return max(_unbound_by_order(command, snapshot, catalogue, closed), key=len, default=[])


def _unbound_by_order(
    command: Command, snapshot: Snapshot, catalogue: Catalogue, closed: Collection[str]
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
    capacity = _free_capacity(
        pods, command.replacements, simulated.excluded_nodes | frozenset(closed), snapshot, catalogue
    )
    requests = np.array([[pod_requests(pod).get(axis, 0) for axis in capacity.axes] for pod in pods], dtype=np.int64)
    columns = NodeColumns([node for node in snapshot.state_nodes if node.name in capacity.position])
    allowed = _allowed_nodes(pods, planned, capacity, columns)
    avoided = _avoided_nodes(pods, capacity, columns)
    for order in _orders(pods, requests):
        yield [pods[pod].key for pod in _bind(order, requests, allowed, avoided, capacity)]


def _free_capacity(
    pods: Iterable[Pod],
    replacements: Sequence[PlannedClaim],
    excluded: frozenset[str],
    snapshot: Snapshot,
    catalogue: Catalogue,
) -> FreeCapacity:
    """Return the capacity on the remaining nodes that are initialized, and on the replacements when their daemons run."""
    moving = {pod.key: pod for pod in pods}
    axes = tuple(dict.fromkeys((*_SCORED, *sorted({name for pod in moving.values() for name in pod_requests(pod)}))))
    totals: list[Mapping[str, int]] = []
    free: list[Mapping[str, int]] = []
    position: dict[str | int, int] = {}
    for node in snapshot.state_nodes:
        if node.name in excluded or node.is_being_disrupted or not node.initialized:
            continue
        position[node.name] = len(totals)
        totals.append(allocatable_of(node))
        free.append(subtract(totals[-1], total_requests(pod for pod in node.pods if pod.key not in moving)))
    for number, claim in enumerate(replacements):
        types = {t.name: t for t in catalogue.instance_types(claim.node_pool)}
        daemons = subtract(claim.requests, total_requests(moving[key] for key in claim.pods if key in moving))
        position[number] = len(totals)
        totals.append(types[claim.offering.instance_type].allocatable)
        free.append(subtract(totals[-1], daemons))
    return FreeCapacity(axes=axes, free=_table(free, axes), total=_table(totals, axes), position=position)


def _table(rows: Sequence[Mapping[str, int]], axes: Sequence[str]) -> Ints:
    return np.array([[row.get(axis, 0) for axis in axes] for row in rows], dtype=np.int64).reshape(len(rows), len(axes))


def _allowed_nodes(
    pods: Sequence[Pod], planned: Mapping[str, str | int], capacity: FreeCapacity, columns: NodeColumns
) -> list[Bools]:
    """Return for each pod which nodes it may be bound to: by labels and taints, or only as planned if it has other rules.

    A replacement may take a pod if a pod with the same selectors and tolerations was planned for it.
    """
    kinds = [(requirement_terms(pod), pod.spec.tolerations) for pod in pods]
    same = {(kind, planned[pod.key]) for kind, pod in zip(kinds, pods, strict=True)}
    replacements = [number for number in capacity.position if isinstance(number, int)]
    by_kind: dict[tuple[tuple[Requirements, ...], tuple[Toleration, ...]], Bools] = {}
    for terms, tolerations in kinds:
        if (terms, tolerations) not in by_kind:
            existing = columns.meeting(terms) & columns.accepted(tolerations, avoids_prefer_no_schedule=False)
            new = [((terms, tolerations), number) in same for number in replacements]
            by_kind[terms, tolerations] = np.concatenate((existing, np.array(new, dtype=bool)))
    return [
        _planned_only(planned[pod.key], capacity) if _has_other_rules(pod) else by_kind[kind]
        for pod, kind in zip(pods, kinds, strict=True)
    ]


def _avoided_nodes(pods: Sequence[Pod], capacity: FreeCapacity, columns: NodeColumns) -> list[Bools]:
    """Return for each pod which nodes have a PreferNoSchedule taint that it does not tolerate; replacements have none."""
    by_tolerations: dict[tuple[Toleration, ...], Bools] = {}
    for tolerations in {pod.spec.tolerations for pod in pods}:
        accepted = columns.accepted(tolerations, avoids_prefer_no_schedule=False)
        avoided = accepted & ~columns.accepted(tolerations, avoids_prefer_no_schedule=True)
        missing = len(capacity.total) - len(avoided)
        by_tolerations[tolerations] = np.concatenate((avoided, np.zeros(missing, dtype=bool)))
    return [by_tolerations[pod.spec.tolerations] for pod in pods]


def _planned_only(planned: str | int, capacity: FreeCapacity) -> Bools:
    only: Bools = np.zeros(len(capacity.total), dtype=bool)
    if planned in capacity.position:
        only[capacity.position[planned]] = True
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


def _orders(pods: Sequence[Pod], requests: Ints) -> Iterator[list[int]]:
    """Yield the orders in which the pods are bound, as positions; those of a higher priority always come first."""
    places = range(len(pods))
    keys: list[Callable[[int], tuple[object, ...]]] = [
        lambda i: (*(-requests[i]).tolist(), pods[i].key),
        lambda i: (*requests[i].tolist(), pods[i].key),
        lambda i: (pods[i].key,),
        *(lambda i, seed=seed: (_hash(pods[i].key, seed),) for seed in range(SHUFFLED_ORDERS)),
    ]
    for key in keys:
        yield sorted(places, key=lambda i: (-(pods[i].spec.priority or 0), *key(i)))


def _hash(key: str, seed: int) -> bytes:
    return blake2b(key.encode(), digest_size=8, salt=str(seed).encode()).digest()


def _bind(
    order: Iterable[int], requests: Ints, allowed: Sequence[Bools], avoided: Sequence[Bools], capacity: FreeCapacity
) -> list[int]:
    """Bind the pods in this order, and return those that have no node."""
    unbound: list[int] = []
    free = capacity.free.copy()
    scored = np.maximum(capacity.total[:, : len(_SCORED)], 1)
    for pod in order:
        after = free - requests[pod]
        fits = allowed[pod] & ((after >= 0) | (requests[pod] == 0)).all(axis=1)
        if not fits.any():
            unbound.append(pod)
            continue
        shares = after[:, : len(_SCORED)] / scored
        score = shares.mean(axis=1) + (1 - np.abs(shares[:, 0] - shares[:, 1]) / 2)
        best = int(np.argmax(np.where(fits, score - _MOST_SCORE * avoided[pod], -np.inf)))
        free[best] = after[best]
    return unbound
