"""How a NodeClaim's life is counted: Karpenter's metric names and labels.

Restates: karpenter pkg/metrics/metrics.go, pkg/controllers/nodeclaim/*/metrics.go.
"""

from __future__ import annotations

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.core.plan import Observation


def created(node_pool: str, reason: str, *, min_values_relaxed: str = "false") -> Observation:
    """One NodeClaim created. `reason`: provisioned, or the lower-case reason of a disruption."""
    values = {"reason": reason, "nodepool": node_pool, "min_values_relaxed": min_values_relaxed}
    return Observation(name="karpenter_nodeclaims_created_total", labels=values)


def disrupted(claim: NodeClaim, reason: str) -> Observation:
    """One NodeClaim whose deletion was decided, for this reason."""
    return Observation(
        name="karpenter_nodeclaims_disrupted_total",
        labels={
            "reason": reason,
            "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
            "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
            "consolidation_policy": "",
            "termination_mode": termination_mode(claim),
        },
    )


def terminated(claim: NodeClaim) -> Observation:
    """One NodeClaim gone, its instance with it."""
    return Observation(
        name="karpenter_nodeclaims_terminated_total",
        labels={
            "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
            "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
            "zone": claim.metadata.labels.get(labels.ZONE, ""),
        },
    )


def node_event(name: str, claim: NodeClaim) -> Observation:
    """One sample of a node counter (nodes created, terminated, drained)."""
    values = {"nodepool": claim.metadata.labels.get(labels.NODEPOOL, "")}
    if name != "karpenter_nodes_drained_total":
        values["zone"] = claim.metadata.labels.get(labels.ZONE, "")
    return Observation(name=name, labels=values)


def termination_mode(claim: NodeClaim) -> str:
    """Graceful without a terminationGracePeriod, forceful with one of zero, eventual otherwise."""
    period = claim.spec.termination_grace_period
    if period is None:
        return "graceful"
    return "eventual" if period.strip("0smh") else "forceful"
