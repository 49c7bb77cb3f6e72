"""Metrics of NodeClaims and nodes: created, disrupted, terminated, and how long termination took.

Restates: karpenter pkg/metrics/metrics.go, pkg/controllers/nodeclaim/lifecycle/metrics.go,
pkg/controllers/node/termination/controller.go, pkg/controllers/node/termination/metrics.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from journeyman.core.api import labels
from journeyman.core.api.conditions import INSTANCE_TERMINATING
from journeyman.core.api.objects import Node, NodeClaim, Pod, condition_of
from journeyman.core.plan import Observation
from journeyman.core.state.condition_transitions import termination_metrics
from journeyman.core.state.pod_predicates import is_reschedulable


def nodeclaim_created(node_pool: str, reason: str, *, min_values_relaxed: str = "false") -> Observation:
    """Count a created NodeClaim. `reason` is `provisioned`, or the reason of a disruption in lower case."""
    values = {"reason": reason, "nodepool": node_pool, "min_values_relaxed": min_values_relaxed}
    return Observation(name="karpenter_nodeclaims_created_total", labels=values)


def nodeclaim_disrupted(claim: NodeClaim, reason: str) -> Observation:
    """Count a NodeClaim that is deleted for this reason."""
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


def disruption_started(claim: NodeClaim, reason: str, pods: Iterable[Pod]) -> tuple[Observation, ...]:
    """Count a NodeClaim that is deleted for this reason, and those of its node's pods that need another node.

    Restates: karpenter pkg/metrics/metrics.go `PodsDisruptionInitiatedTotal`.
    """
    disrupted = nodeclaim_disrupted(claim, reason)
    moved = float(sum(is_reschedulable(pod) for pod in pods))
    initiated = Observation(
        name="karpenter_pods_disruption_initiated_total", value=moved, labels=dict(disrupted.labels)
    )
    return disrupted, initiated


def nodeclaim_terminated(claim: NodeClaim) -> Observation:
    """Count a NodeClaim whose instance is terminated."""
    return Observation(
        name="karpenter_nodeclaims_terminated_total",
        labels={
            "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
            "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
            "zone": claim.metadata.labels.get(labels.ZONE, ""),
        },
    )


def node_counter(name: str, claim: NodeClaim) -> Observation:
    """Return a sample of a counter of nodes: created, terminated or drained."""
    values = {"nodepool": claim.metadata.labels.get(labels.NODEPOOL, "")}
    if name != "karpenter_nodes_drained_total":
        values["zone"] = claim.metadata.labels.get(labels.ZONE, "")
    return Observation(name=name, labels=values)


def termination_mode(claim: NodeClaim) -> str:
    """Return graceful without a terminationGracePeriod, forceful if it is zero, eventual otherwise."""
    period = claim.spec.termination_grace_period
    if period is None:
        return "graceful"
    return "eventual" if period.strip("0smh") else "forceful"


def claim_termination_metrics(claim: NodeClaim, now: datetime) -> tuple[Observation, ...]:
    """Count a NodeClaim whose finalizer is removed, with the seconds since its deletion and since its instance's termination."""
    pool = claim.metadata.labels.get(labels.NODEPOOL, "")
    terminating = condition_of(claim.status.conditions, INSTANCE_TERMINATING)
    return (
        nodeclaim_terminated(claim),
        *_duration("karpenter_nodeclaims_termination_duration_seconds", claim.metadata.deletion_timestamp, now, pool),
        *_duration(
            "karpenter_nodeclaims_instance_termination_duration_seconds",
            terminating.last_transition_time if terminating is not None else None,
            now,
            pool,
        ),
        *termination_metrics("nodeclaim", claim.metadata.labels, claim.metadata.deletion_timestamp, now),
    )


def node_termination_metrics(node: Node, now: datetime) -> tuple[Observation, ...]:
    """Count a Node whose finalizer is removed, with the seconds since its deletion and since its creation."""
    pool, zone = (node.metadata.labels.get(label, "") for label in (labels.NODEPOOL, labels.ZONE))
    counted = Observation(name="karpenter_nodes_terminated_total", labels={"nodepool": pool, "zone": zone})
    return (
        counted,
        *_duration("karpenter_nodes_termination_duration_seconds", node.metadata.deletion_timestamp, now, pool),
        *_duration("karpenter_nodes_lifetime_duration_seconds", node.metadata.creation_timestamp, now, pool),
        *termination_metrics("node", node.metadata.labels, node.metadata.deletion_timestamp, now),
    )


def _duration(name: str, since: datetime | None, now: datetime, pool: str) -> Iterator[Observation]:
    if since is not None:
        seconds = max((now - since).total_seconds(), 0.0)
        yield Observation(name=name, value=seconds, labels={"nodepool": pool}, kind="histogram")
