"""Candidates: nodes that may be disrupted now, with their price and the cost of moving their pods.

Restates: karpenter pkg/controllers/disruption/types.go `Candidate`, `NewCandidate`, pkg/controllers/state/statenode.go
`ValidateNodeDisruptable`, `ValidatePodsDisruptable`, pkg/utils/disruption/disruption.go `EvictionCost`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NewType

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.duration import parse_nillable_duration
from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue, price_of
from journeyman.core.plan import Event
from journeyman.core.scheduling.nodeclaim_templates import PlannedPod, parse_planned_pods
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.pod_predicates import (
    is_active,
    is_disruptable,
    is_reschedulable,
    preventing_pdbs,
)
from journeyman.core.state.pod_workload import MovedWorkload, movable_workloads
from journeyman.core.state.skipped_objects import SkippedObject, evaluate

# pkg/utils/disruption/disruption.go: scales that bring both into about ±16
DELETION_COST_SCALE: Final = 2.0**27
PRIORITY_SCALE: Final = 2.0**25
MAX_EVICTION_COST: Final = 10.0
_INT32: Final = re.compile(r"[+-]?0*[0-9]{1,10}", re.ASCII)
BASE_DISRUPTION_COST: Final = 1.0
"""The cost of disrupting a node without pods (karpenter pkg/utils/disruption `ReschedulingCost`)."""
BLOCKED: Final = "DisruptionBlocked"
"""Event reason for nodes and NodePools that may not be disrupted at the moment."""

NodePoolName = NewType("NodePoolName", str)
NodeClaimName = NewType("NodeClaimName", str)


class DisruptionReason(str, Enum):
    """Why a node is disrupted; the value is used in conditions, budgets and manifests."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"
    DRIFTED = "Drifted"
    INTERRUPTED = "Interrupted"  # budgets cannot name it
    HIBERNATED = "Hibernated"  # nor this one


class Candidate(Struct, frozen=True, kw_only=True):
    """One node that may be disrupted now.

    `price` is the price of its offering per hour, 0.0 if unknown. `reschedulable_pods` are keys (`namespace/name`),
    sorted, and `workloads` those that they belong to. `disruption_cost` is 1.0 plus the cost of moving those pods (never below 1.0). `consolidatable` is true once
    consolidateAfter has passed; `hosts_buffer_pods` if capacity of a CapacityBuffer is reserved on the node.
    """

    nodeclaim: NodeClaimName
    nodeclaim_uid: str
    node: str
    node_uid: str
    nodepool: NodePoolName
    instance_type: str
    zone: str
    capacity_type: str
    price: float
    reschedulable_pods: tuple[str, ...] = ()
    workloads: tuple[MovedWorkload, ...] = ()
    disruption_cost: float = BASE_DISRUPTION_COST
    consolidatable: bool = True
    hosts_buffer_pods: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has neither buffer pods nor pods with a positive eviction cost."""
        return self.disruption_cost <= BASE_DISRUPTION_COST and not self.hosts_buffer_pods

    @property
    def savings_ratio(self) -> float:
        """Price per hour that deleting the node saves, per unit of disruption cost."""
        return self.price / self.disruption_cost


class Blocked(Struct, frozen=True, kw_only=True):
    """Why a node stays.

    Attributes:
        reason: One word, such as PodDisruptionBudget.
        why: The reason in a sentence, with the objects concerned.
        change: The smallest change that would free the node; empty if it only has to wait.
        is_brief: Whether the reason usually passes by itself within minutes.
    """

    reason: str
    why: str
    change: str = ""
    is_brief: bool = False


class CandidateList(Struct, frozen=True, kw_only=True):
    """Candidates by NodeClaim name, and why the other nodes are none, with `DisruptionBlocked` events."""

    candidates: tuple[Candidate, ...]
    events: tuple[Event, ...]
    blocked: Mapping[NodeClaimName, Blocked] = {}


def by_savings(candidate: Candidate) -> tuple[float, str]:
    """Return the sort key: highest savings ratio first, ties by name.

    Restates: karpenter pkg/controllers/disruption/consolidation.go `sortCandidates`.
    Differs: ties are sorted by name, so that a replayed run decides the same.
    """
    return (-candidate.savings_ratio, candidate.nodeclaim)


def within_budgets(
    candidates: Iterable[Candidate], allowed_disruptions: Mapping[NodePoolName, int]
) -> tuple[Candidate, ...]:
    """Return the first candidates of each NodePool, as many as its budgets allow, in their order.

    Args:
        candidates: Nodes to disrupt together.
        allowed_disruptions: Nodes each NodePool may still lose; missing means 0.
    """
    spent: Counter[NodePoolName] = Counter()
    chosen = []
    for candidate in candidates:
        if spent[candidate.nodepool] < allowed_disruptions.get(candidate.nodepool, 0):
            spent[candidate.nodepool] += 1
            chosen.append(candidate)
    return tuple(chosen)


def find_candidates(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    consolidatable: frozenset[str],
    in_commands: frozenset[str],
    nodes_hosting_buffers: frozenset[str] = frozenset(),
    eventual: bool = False,
) -> CandidateList:
    """Return every node that may be disrupted now.

    Args:
        snapshot: The cluster.
        catalogue: Instance types and prices per NodePool.
        consolidatable: Names of NodeClaims whose consolidateAfter has passed.
        in_commands: Names of NodeClaims in unfinished commands; they are skipped without an event.
        nodes_hosting_buffers: Names of nodes on which capacity of CapacityBuffers is reserved.
        eventual: Whether a node may be disrupted although its pods block that, if its NodeClaim has a terminationGracePeriod,
            after which its drain ends in any case. Otherwise the disruption is graceful.
    """
    nominated = _nominated_nodes(snapshot)
    candidates: list[Candidate] = []
    events: list[Event] = []
    blocked: dict[NodeClaimName, Blocked] = {}

    def decide(node: StateNode) -> Candidate | Blocked:
        """Return the candidate, or why the node is none."""
        return _blocked(node, snapshot, catalogue, nominated, eventual=eventual) or _candidate(
            node,
            catalogue,
            consolidatable=node.claim is not None and node.claim.metadata.name in consolidatable,
            hosts_buffer_pods=node.name in nodes_hosting_buffers,
        )

    for node in snapshot.state_nodes:
        if node.claim is None or node.claim.metadata.name in in_commands:
            continue
        found = evaluate(node, decide, node)
        if isinstance(found, Candidate):
            candidates.append(found)
            continue
        if isinstance(found, SkippedObject):
            why = f"Node or one of its pods cannot be evaluated: {found.why}"
            found = Blocked(reason="Invalid", why=why, change="Correct the value")
        blocked[NodeClaimName(node.claim.metadata.name)] = found
        events += [Event(ref=ref, reason=BLOCKED, message=found.why) for ref in node.object_refs]
    ordered = tuple(sorted(candidates, key=lambda c: c.nodeclaim))
    return CandidateList(candidates=ordered, events=tuple(events), blocked=blocked)


def _nominated_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the nodes that pending pods, or pods of nodes that terminate or expire, will be bound to.

    Restates: karpenter pkg/controllers/disruption/queue.go `StartCommand`, which nominates them.
    Differs: of the nodes that take the pods of a command, only its replacements are nominated, but until the command has ended. What was
    launched for the pods of another node that terminates is nominated until these have left it: their budgets may delay that for hours.
    """
    pods = (p.status.nominated_node_name for p in snapshot.pods if not p.spec.node_name)
    unfinished = (d for d in snapshot.node_disruptions if not d.finished)
    launched = (snapshot.state_nodes_by_claim.get(r.name) for d in unfinished for r in d.spec.replacements)
    return frozenset(pods) | {node.name for node in launched if node is not None} | _launched_for_moving_pods(snapshot)


def _launched_for_moving_pods(snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the nodes that were planned for pods which still run on nodes that terminate or expire."""
    leaving = (node for node in snapshot.state_nodes if node.is_terminating or node.is_expiring)
    moving = {pod.key: pod for node in leaving for pod in node.pods}
    if not moving:
        return frozenset()
    managed = ((n.name, n.claim) for n in snapshot.state_nodes if n.claim is not None)
    planned = ((name, parse_planned_pods(claim.metadata.annotations)) for name, claim in managed)
    return frozenset(name for name, entries in planned if any(_means_one_of(moving, entry) for entry in entries))


def _means_one_of(pods: Mapping[str, Pod], entry: PlannedPod) -> bool:
    pod = pods.get(entry.key)
    return pod is not None and entry.means(pod)


def eviction_cost(pod: Pod) -> float:
    """Return the cost of evicting a pod: 1 plus its disruption cost and priority, scaled, within ±10.

    Its deletion cost counts instead if it has no disruption cost, and if Journeyman did not write it. A cost that is not a number
    of 32 bits is ignored.

    Restates: karpenter pkg/utils/disruption/disruption.go `EvictionCost`, with the disruption cost of Karpenter 1.15.
    Differs: with the gate PodDeletionCostManagement, Karpenter ignores all deletion costs, because it overwrites them.
    """
    annotations = pod.metadata.annotations
    text = annotations.get(labels.DISRUPTION_COST)
    if text is None and annotations.get(labels.POD_DELETION_COST) != annotations.get(labels.OWN_POD_DELETION_COST):
        text = annotations.get(labels.POD_DELETION_COST)
    cost = 1.0 + (pod.spec.priority or 0) / PRIORITY_SCALE
    if text is not None and _INT32.fullmatch(text) and -(2**31) <= int(text) < 2**31:
        cost += int(text) / DELETION_COST_SCALE
    return min(max(cost, -MAX_EVICTION_COST), MAX_EVICTION_COST)


def rescheduling_cost(pods: Iterable[Pod]) -> float:
    """Return 1.0 plus the cost of evicting the pods; negative eviction costs count as 0.

    Restates: karpenter pkg/utils/disruption/disruption.go `ReschedulingCost`.
    """
    return BASE_DISRUPTION_COST + sum(max(eviction_cost(pod), 0.0) for pod in pods)


def _candidate(node: StateNode, catalogue: Catalogue, *, consolidatable: bool, hosts_buffer_pods: bool) -> Candidate:
    assert node.claim is not None  # noqa: S101 - unmanaged nodes are skipped
    assert node.node is not None  # noqa: S101 - blocked without a Node
    instance_type, zone, capacity_type = (
        node.labels.get(key, "") for key in (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)
    )
    own_type = tuple(t for t in catalogue.instance_types(node.node_pool) if t.name == instance_type)
    pods = [pod for pod in node.pods if is_reschedulable(pod)]
    return Candidate(
        nodeclaim=NodeClaimName(node.claim.metadata.name),
        nodeclaim_uid=node.claim.metadata.uid,
        node=node.node.metadata.name,
        node_uid=node.node.metadata.uid,
        nodepool=NodePoolName(node.node_pool),
        instance_type=instance_type if own_type else "",
        zone=zone,
        capacity_type=capacity_type,
        price=price_of(own_type, instance_type, zone, capacity_type),
        reschedulable_pods=tuple(sorted(pod.key for pod in pods)),
        workloads=movable_workloads(pods),
        disruption_cost=rescheduling_cost(pods),
        consolidatable=consolidatable,
        hosts_buffer_pods=hosts_buffer_pods,
    )


def _blocked(
    node: StateNode, snapshot: Snapshot, catalogue: Catalogue, nominated: frozenset[str], *, eventual: bool
) -> Blocked | None:
    """Return why a managed node may not be disrupted, None if it may; reasons in Karpenter's order."""
    blocked = _node_blocked(node, nominated) or _pool_blocked(node, snapshot, catalogue)
    if blocked or (eventual and _drain_ends(node)):
        return blocked
    return _pods_blocked(node.pods, snapshot) or _pods_on_twins(node, snapshot)


def _pods_on_twins(node: StateNode, snapshot: Snapshot) -> Blocked | None:
    """Return whether pods run on the node's instance under the name of another Node: they would go with it."""
    for name, pods in snapshot.pods_of_twins(node):
        for pod in pods:
            if is_reschedulable(pod) or (is_active(pod) and not is_disruptable(pod, snapshot.now)):
                why = f"Pod is bound to another Node with the same provider id (Node={name}, Pod={pod.key})"
                return Blocked(
                    reason="MultipleNodes", why=why, change=f"Delete Node {name}, if it is not the instance's"
                )
    return None


def _drain_ends(node: StateNode) -> bool:
    """Whether pods that block their eviction delay the drain only for the NodeClaim's terminationGracePeriod.

    Restates: karpenter pkg/controllers/disruption/types.go `NewCandidate`, its part about eventual disruption.
    """
    period = node.claim.spec.termination_grace_period if node.claim is not None else None
    return period is not None and parse_nillable_duration(period) is not None


def _node_blocked(node: StateNode, nominated: frozenset[str]) -> Blocked | None:
    if node.node is None:
        return Blocked(reason="NodeMissing", why="NodeClaim does not have an associated node", is_brief=True)
    if not node.initialized:
        return Blocked(reason="NotInitialized", why="Node isn't initialized", is_brief=True)
    if node.is_terminating:
        return Blocked(reason="Deleting", why="Node is deleting or marked for deletion")
    if node.is_expiring:
        return Blocked(reason="Expiring", why="Node expires soon and is replaced")
    if node.name in nominated:
        return Blocked(reason="Nominated", why="Node is nominated for a pending pod", is_brief=True)
    if node.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        why = f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'
        change = f"Remove annotation {labels.DO_NOT_DISRUPT} of Node {node.name}"
        return Blocked(reason="DoNotDisrupt", why=why, change=change)
    if not node.node_pool:
        why = f'Node doesn\'t have required label "{labels.NODEPOOL}"'
        return Blocked(reason="NodePoolMissing", why=why, change=f"Add label {labels.NODEPOOL} to Node {node.name}")
    return None


def _pool_blocked(node: StateNode, snapshot: Snapshot, catalogue: Catalogue) -> Blocked | None:
    pool = node.node_pool
    if pool not in snapshot.node_pools_by_name:
        why = f"NodePool not found (NodePool={pool})"
        return Blocked(reason="NodePoolMissing", why=why, change=f"Create NodePool {pool}, or delete the NodeClaim")
    if not catalogue.instance_types(pool):
        why = f"NodePool has no instance types (NodePool={pool})"
        return Blocked(
            reason="NoInstanceTypes", why=why, change=f"Check the status of NodePool {pool} and its NodeClass"
        )
    return None


def _pods_blocked(pods: Sequence[Pod], snapshot: Snapshot) -> Blocked | None:
    for pod in pods:
        if is_active(pod) and not is_disruptable(pod, snapshot.now):
            why = f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={pod.key})'
            change = f"Remove annotation {labels.DO_NOT_DISRUPT} of Pod {pod.key}"
            return Blocked(reason="PodDoNotDisrupt", why=why, change=change)
    for pod in pods:
        if names := preventing_pdbs(pod, snapshot.pdbs, snapshot.now):
            why = f"Pdb prevents pod evictions (PodDisruptionBudget=[{' '.join(names)}], Pod={pod.key})"
            return Blocked(reason="PodDisruptionBudget", why=why, change=_pdb_change(pod, names, snapshot))
    return None


def _pdb_change(pod: Pod, names: Sequence[str], snapshot: Snapshot) -> str:
    """Return how these PodDisruptionBudgets (`namespace/name`) would let the pod be evicted."""
    if len(names) > 1:
        return f"Let only one of PodDisruptionBudgets {', '.join(names)} select Pod {pod.key}: the Eviction API refuses several"
    pdb = next(p for p in snapshot.pdbs if f"{p.metadata.namespace}/{p.metadata.name}" == names[0])
    field, value = ("maxUnavailable", pdb.spec.max_unavailable)
    if value is None:
        field, value = "minAvailable", pdb.spec.min_available
    verb = "Raise maxUnavailable" if field == "maxUnavailable" else "Lower minAvailable"
    return f"{verb} ({value} now) of PodDisruptionBudget {names[0]}, or wait until more of its pods are healthy"
