"""Candidates: the nodes that may be given back now, what each costs and what moving its pods costs.

Restates: karpenter pkg/controllers/disruption/types.go `NewCandidate`, pkg/controllers/state/statenode.go
`ValidateNodeDisruptable`, `ValidatePodsDisruptable`, pkg/utils/disruption/disruption.go `EvictionCost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod, PodDisruptionBudget, is_true
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.disruption import explain
from journeyman.core.disruption.types import BASE_DISRUPTION_COST, Candidate, NodeClaimName, NodePoolName
from journeyman.core.plan import Event
from journeyman.core.scheduling.pods import (
    is_active,
    is_disruptable,
    is_owned_by_daemon_set,
    is_owned_by_node,
    is_reschedulable,
    selects,
)
from journeyman.core.state import Snapshot, StateNode

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
# pkg/utils/disruption/disruption.go: scales that bring both into about ±16
DELETION_COST_SCALE: Final = 2.0**27
PRIORITY_SCALE: Final = 2.0**25
COST_BOUND: Final = 10.0


class Found(Struct, frozen=True, kw_only=True):
    """The candidates, by claim name, and `DisruptionBlocked` events for the nodes that are none."""

    candidates: tuple[Candidate, ...]
    events: tuple[Event, ...]


def find_candidates(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    consolidatable: frozenset[str],
    under_way: frozenset[str],
    keeping_room: frozenset[str] = frozenset(),
) -> Found:
    """Every node that may be disrupted gracefully now.

    Args:
        snapshot: The cluster.
        catalogue: Instance types and prices per NodePool.
        consolidatable: Names of claims whose consolidateAfter has passed.
        under_way: Names of claims in a command that has not ended; they are passed over in silence.
        keeping_room: Names of nodes on which room is kept for CapacityBuffers.
    """
    nominated = frozenset(p.status.nominated_node_name for p in snapshot.pods if not p.spec.node_name)
    found: list[Candidate] = []
    events: list[Event] = []
    for node in snapshot.state_nodes:
        if node.claim is None or node.claim.metadata.name in under_way:
            continue
        why_not = _blocked(node, snapshot, catalogue, nominated)
        if why_not:
            events += [Event(ref=ref, reason="DisruptionBlocked", message=why_not) for ref in explain.refs(node)]
            continue
        quiet, keeps_room = node.claim.metadata.name in consolidatable, node.name in keeping_room
        found.append(_candidate(node, catalogue, consolidatable=quiet, keeps_room=keeps_room))
    return Found(candidates=tuple(sorted(found, key=lambda c: c.nodeclaim)), events=tuple(events))


def eviction_cost(pod: Pod) -> float:
    """What evicting a pod costs: 1 for an ordinary one, more by deletion cost and priority, within ±10.

    A deletion cost that is no number counts as none.
    """
    cost = 1.0 + (pod.spec.priority or 0) / PRIORITY_SCALE
    with suppress(ValueError):
        cost += int(pod.metadata.annotations.get(DELETION_COST, "0")) / DELETION_COST_SCALE
    return min(max(cost, -COST_BOUND), COST_BOUND)


def rescheduling_cost(pods: Iterable[Pod]) -> float:
    """1.0 plus what moving the pods costs; those that would rather go count nothing."""
    return BASE_DISRUPTION_COST + sum(max(eviction_cost(pod), 0.0) for pod in pods)


def _candidate(node: StateNode, catalogue: Catalogue, *, consolidatable: bool, keeps_room: bool) -> Candidate:
    assert node.claim is not None  # noqa: S101 - unmanaged nodes are no candidates
    assert node.node is not None  # noqa: S101 - nor are claims without a node
    instance_type, zone, capacity_type = (
        node.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)
    )
    types = catalogue.instance_types(node.node_pool)
    pods = [pod for pod in node.pods if is_reschedulable(pod)]
    return Candidate(
        nodeclaim=NodeClaimName(node.claim.metadata.name),
        nodeclaim_uid=node.claim.metadata.uid,
        node=node.node.metadata.name,
        node_uid=node.node.metadata.uid,
        nodepool=NodePoolName(node.node_pool),
        instance_type=instance_type if any(t.name == instance_type for t in types) else "",
        zone=zone,
        capacity_type=capacity_type,
        price=price_of(types, instance_type, zone, capacity_type),
        reschedulable_pods=tuple(sorted(pod.key for pod in pods)),
        disruption_cost=rescheduling_cost(pods),
        consolidatable=consolidatable,
        keeps_room=keeps_room,
    )


def _blocked(node: StateNode, snapshot: Snapshot, catalogue: Catalogue, nominated: frozenset[str]) -> str:
    """Why a managed node may not be disrupted, empty if it may; the order of the reasons is Karpenter's."""
    return (
        _node_blocked(node, nominated) or _pool_blocked(node, snapshot, catalogue) or _pods_blocked(node.pods, snapshot)
    )


def _node_blocked(node: StateNode, nominated: frozenset[str]) -> str:
    if node.node is None:
        return "NodeClaim does not have an associated node"
    if not node.initialized:
        return "Node isn't initialized"
    if node.deleting:
        return "Node is deleting or marked for deletion"
    if node.name in nominated:
        return "Node is nominated for a pending pod"
    if node.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        return f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'
    if not node.node_pool:
        return f'Node doesn\'t have required label "{labels.NODEPOOL}"'
    return ""


def _pool_blocked(node: StateNode, snapshot: Snapshot, catalogue: Catalogue) -> str:
    if node.node_pool not in snapshot.node_pools_by_name:
        return f"NodePool not found (NodePool={node.node_pool})"
    if not catalogue.instance_types(node.node_pool):
        return f"NodePool has no instance types (NodePool={node.node_pool})"
    return ""


def _pods_blocked(pods: Sequence[Pod], snapshot: Snapshot) -> str:
    for pod in pods:
        if is_active(pod) and not is_disruptable(pod, snapshot.now):
            return f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={pod.key})'
    for pod in pods:
        if _is_evictable(pod) and (names := _preventing_pdbs(pod, snapshot.pdbs)):
            return f"Pdb prevents pod evictions (PodDisruptionBudget=[{' '.join(names)}], Pod={pod.key})"
    return ""


def _is_evictable(pod: Pod) -> bool:
    return is_active(pod) and not is_owned_by_daemon_set(pod) and not is_owned_by_node(pod)


def _preventing_pdbs(pod: Pod, pdbs: Iterable[PodDisruptionBudget]) -> tuple[str, ...]:
    """The budgets that stand against evicting the pod now: one that allows none, or several at once."""
    matching = [
        pdb
        for pdb in pdbs
        if pdb.metadata.namespace == pod.metadata.namespace and selects(pdb.spec.selector, pod.metadata.labels)
    ]
    names = tuple(f"{pdb.metadata.namespace}/{pdb.metadata.name}" for pdb in matching)
    if len(matching) > 1:
        return names
    unready = not is_true(pod.status.conditions, "Ready")
    if matching and unready and matching[0].spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
        return ()
    return names if matching and matching[0].status.disruptions_allowed == 0 else ()
