"""Pod deletion costs: which pods a ReplicaSet that scales in deletes first, so that nodes become empty without evictions.

A ReplicaSet that scales in deletes pods of the lowest `controller.kubernetes.io/pod-deletion-cost` first. Without one it deletes
pods that share their node with others of the ReplicaSet, and so leaves the pod that a new node was launched for.

============  =======================================================================  ==================
group         nodes                                                                    cost of their pods
============  =======================================================================  ==================
going away    in a command, deleting, or with the taint of nodes that leave            -2^31
ranked        first those that have drifted, then the others, each by savings ratio,    -n ... -1
              as many of each NodePool as its budgets allow
others        all others                                                               removed
============  =======================================================================  ==================

This is what Karpenter 1.15 does with the gate PodDeletionCostManagement.
Differs: the gate is enabled unless it is disabled. A cost that someone else wrote is left as it is, and counts for consolidation
(`candidates.eviction_cost`); Karpenter overwrites and ignores it. A second annotation says which costs are Journeyman's, so they are
removed once the gate is disabled. Nodes with the taint of nodes that leave are going away, which Karpenter does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.disruption.candidates import Candidate, NodePoolName, by_savings, within_budgets
from journeyman.core.plan import Chain, PatchObject, Plan, Requeue, Step, chain_of, next_requeue, pod_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint, has_leaving_taint

GOING_AWAY: Final = -(2**31)
"""The lowest cost that Kubernetes takes."""
MOST_NODES: Final = 50
"""Nodes whose pods one run writes, those going away not counted: about 1,500 pods."""
_CREATED_AGAIN: Final = frozenset({"ReplicaSet", "Job", "DaemonSet"})
_NAMESPACE_OF_THE_CLUSTER: Final = "kube-system"


def write_deletion_costs(snapshot: Snapshot, costs: Mapping[str, int], poll: timedelta) -> Plan:
    """Return the patches that give the pods of ReplicaSets the cost of their node.

    Args:
        snapshot: The cluster.
        costs: By name of a node; costs that Journeyman wrote to pods on other nodes are removed.
        poll: When to requeue, if more than `MOST_NODES` nodes are due.
    """
    due = [
        (node.name, chains)
        for node in sorted(snapshot.state_nodes, key=lambda n: (costs.get(n.name, 0), n.name))
        if node.managed and (chains := tuple(filter(None, (_written(pod, costs.get(node.name)) for pod in node.pods))))
    ]
    at_once = sum(costs.get(name) == GOING_AWAY for name, _ in due) + MOST_NODES
    plan = Plan(chains=tuple(chain for _, chains in due[:at_once] for chain in chains))
    if len(due) <= at_once:
        return plan
    reason = f"the deletion costs of pods on {len(due) - at_once} more nodes"
    requeue = Requeue(step=Step.CONSOLIDATE, at=next_requeue(snapshot.now, poll), reason=reason)
    return plan + Plan(chains=(chain_of("requeues", requeue),))


def deletion_costs(
    snapshot: Snapshot,
    *,
    going_away: frozenset[str],
    drifted: Iterable[Candidate],
    others: Iterable[Candidate],
    remaining_for_drift: Mapping[NodePoolName, int],
    remaining: Mapping[NodePoolName, int],
) -> Mapping[str, int]:
    """Return the cost of the pods on a node, by its name, for the nodes whose pods get one.

    Args:
        snapshot: The cluster.
        going_away: Names of NodeClaims in commands that have started.
        drifted: Candidates of dynamic NodePools that have drifted.
        others: The candidates that consolidation may delete, those that have drifted included.
        remaining_for_drift: Nodes each NodePool may still lose for ``Drifted``.
        remaining: Nodes each NodePool may still lose for ``Underutilized``.
    """
    leaving = {
        node.name
        for node in snapshot.state_nodes
        if node.is_terminating
        or (node.claim is not None and node.claim.metadata.name in going_away)
        or (node.node is not None and (has_disrupted_taint(node.node) or has_leaving_taint(node.node)))
    }
    first = _ranked(snapshot, (c for c in drifted if c.node not in leaving), remaining_for_drift)
    with_cost = leaving | {c.node for c in first}
    ranked = (*first, *_ranked(snapshot, (c for c in others if c.node not in with_cost), remaining))
    costs = {candidate.node: place - len(ranked) for place, candidate in enumerate(ranked)}
    return {**costs, **dict.fromkeys(leaving, GOING_AWAY)}


def _ranked(
    snapshot: Snapshot, candidates: Iterable[Candidate], remaining: Mapping[NodePoolName, int]
) -> tuple[Candidate, ...]:
    usable = (c for c in candidates if c.instance_type and not _is_pinned(snapshot.state_nodes_by_claim[c.nodeclaim]))
    return within_budgets(sorted(usable, key=by_savings), remaining)


def _is_pinned(node: StateNode) -> bool:
    """Whether a pod there is created again nowhere else: one without a controller, or of a StatefulSet, whose volumes stay."""
    return any(
        _controller_kind(pod) not in _CREATED_AGAIN
        for pod in node.pods
        if pod.metadata.namespace != _NAMESPACE_OF_THE_CLUSTER
    )


def _written(pod: Pod, cost: int | None) -> Chain | None:
    """Return the chain that writes or removes (None) the pod's cost; None if the pod is as it should be, or not ours to write."""
    annotations = pod.metadata.annotations
    own, found = annotations.get(labels.OWN_POD_DELETION_COST), annotations.get(labels.POD_DELETION_COST)
    if _controller_kind(pod) != "ReplicaSet" or pod.metadata.deletion_timestamp is not None or found != own:
        return None
    text = None if cost is None else str(cost)
    if text == own:
        return None
    changes = {labels.POD_DELETION_COST: text, labels.OWN_POD_DELETION_COST: text}
    why = (
        "its node stays"
        if cost is None
        else "a ReplicaSet that scales in deletes it first, so that its node becomes empty"
    )
    return chain_of(
        f"Pod {pod.key}", PatchObject(ref=pod_ref(pod), patch={"metadata": {"annotations": changes}}, why=why)
    )


def _controller_kind(pod: Pod) -> str:
    return next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")
