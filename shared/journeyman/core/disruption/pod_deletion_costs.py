"""Pod deletion costs: which pods a ReplicaSet that scales in deletes first, so that nodes become empty without evictions.

A ReplicaSet that scales in deletes pods of the lowest `controller.kubernetes.io/pod-deletion-cost` first. Without one it deletes
pods that share their node with others of the ReplicaSet, and so leaves the pod that a new node was launched for.

============  ==========================================================================  ============================
group         nodes                                                                       cost of their pods
============  ==========================================================================  ============================
going away    in a command, deleting, or with the taint of nodes that leave               -2^31
drifted       of dynamic NodePools, as many as budgets allow                              lower, the higher their
                                                                                          savings ratio, below -10,000
others        that consolidation may delete, as many as budgets allow                     lower, the higher their
                                                                                          savings ratio, above -10,000
the rest                                                                                  removed
============  ==========================================================================  ============================

This is what Karpenter 1.15 does with the gate PodDeletionCostManagement.
Differs: the gate is enabled unless it is disabled. A cost that someone else wrote is left as it is, and counts for consolidation
(`candidates.eviction_cost`); Karpenter overwrites and ignores it. A second annotation says which costs are Journeyman's, so they are
removed once the gate is disabled. Nodes with the taint of nodes that leave are going away, which Karpenter does not know. The cost
of a node depends on that node alone, in steps of 19 %, and 50 nodes have one; Karpenter numbers all, and a new pod on one node is
written to the pods of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.objects import Pod
from journeyman.core.disruption.candidates import Candidate, NodePoolName, by_savings, within_budgets
from journeyman.core.plan import Chain, PatchObject, Plan, chain_of, pod_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.disrupted_taint import has_disrupted_taint, has_leaving_taint

GOING_AWAY: Final = -(2**31)
"""The lowest cost that Kubernetes takes."""
MOST_NODES: Final = 50
"""Nodes whose pods have a cost, those going away not counted: about 1,500 pods."""
_DRIFTED: Final = -10_000  # below all costs of others
_STEPS_PER_DOUBLING: Final = 4  # of the savings ratio
_LEAST_RATIO: Final = 1e-9  # of the savings ratio: the cost is -1
_CREATED_AGAIN: Final = frozenset({"ReplicaSet", "Job", "DaemonSet"})
_NAMESPACE_OF_THE_CLUSTER: Final = "kube-system"


def write_deletion_costs(snapshot: Snapshot, costs: Mapping[str, int]) -> Plan:
    """Return the patches that give the pods of ReplicaSets the cost of their node.

    Args:
        snapshot: The cluster.
        costs: By name of a node; costs that Journeyman wrote to pods on other nodes are removed.
    """
    texts = {name: str(cost) for name, cost in costs.items()}
    return Plan(
        chains=tuple(
            _written(pod, texts.get(node.name))
            for node in snapshot.state_nodes
            if node.managed
            for pod in node.pods
            if _is_due(pod, texts.get(node.name))
        )
    )


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
        drifted: Candidates of dynamic NodePools that have drifted, any order.
        others: The candidates that consolidation may delete, those that have drifted included, any order.
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
    first = _chosen(snapshot, (c for c in drifted if c.node not in leaving), remaining_for_drift)
    with_cost = leaving | {c.node for c in first}
    second = _chosen(snapshot, (c for c in others if c.node not in with_cost), remaining)
    costs = {c.node: _DRIFTED + _cost(c) for c in first} | {c.node: _cost(c) for c in second}
    return dict(list(costs.items())[:MOST_NODES]) | dict.fromkeys(leaving, GOING_AWAY)


def _chosen(
    snapshot: Snapshot, candidates: Iterable[Candidate], remaining: Mapping[NodePoolName, int]
) -> tuple[Candidate, ...]:
    """Return the nodes to empty first, as many as the budgets allow."""
    usable = (c for c in candidates if c.instance_type and not _is_pinned(snapshot.state_nodes_by_claim[c.nodeclaim]))
    return within_budgets(sorted(usable, key=by_savings), remaining)


def _cost(candidate: Candidate) -> int:
    """Return a negative cost, lower with a higher savings ratio."""
    return -1 - round(_STEPS_PER_DOUBLING * log2(max(candidate.savings_ratio / _LEAST_RATIO, 1.0)))


def _is_pinned(node: StateNode) -> bool:
    """Whether a pod there is created again nowhere else: one without a controller, or of a StatefulSet, whose volumes stay."""
    return any(
        _controller_kind(pod) not in _CREATED_AGAIN
        for pod in node.pods
        if pod.metadata.namespace != _NAMESPACE_OF_THE_CLUSTER
    )


def _is_due(pod: Pod, cost: str | None) -> bool:
    """Whether the pod's cost must be written or, if None, removed: not one of someone else."""
    annotations = pod.metadata.annotations
    own = annotations.get(labels.OWN_POD_DELETION_COST)
    return (
        own != cost
        and own == annotations.get(labels.POD_DELETION_COST)
        and _controller_kind(pod) == "ReplicaSet"
        and pod.metadata.deletion_timestamp is None
    )


def _written(pod: Pod, cost: str | None) -> Chain:
    annotations = {labels.POD_DELETION_COST: cost, labels.OWN_POD_DELETION_COST: cost}
    why = "a ReplicaSet deletes it first, so that its node becomes empty" if cost is not None else "its node stays"
    patch = PatchObject(ref=pod_ref(pod), patch={"metadata": {"annotations": annotations}}, why=why)
    return chain_of(f"Pod {pod.key}", patch)


def _controller_kind(pod: Pod) -> str:
    controller = pod.metadata.controller
    return controller.kind if controller is not None else ""
