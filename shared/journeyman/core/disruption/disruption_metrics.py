"""Metric samples of disruption, with Karpenter's names and labels.

Restates: karpenter pkg/controllers/disruption/metrics.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NodeClaim
from journeyman.core.disruption.budgets import BudgetStatus
from journeyman.core.disruption.candidates import Candidate, NodePoolName
from journeyman.core.plan import Observation
from journeyman.core.state.nodeclaim_metrics import nodeclaim_created, termination_mode

CONSOLIDATION_TYPES: Final = {
    "emptiness": "empty",
    "fleet-plan": "fleet",
    "multi-node": "multi",
    "single-node": "single",
}
"""The `consolidation_type` label of each method that is a kind of consolidation, `fleet` for our own; other methods have none."""


def consolidation_type(disruption: NodeDisruption) -> str:
    """Return the `consolidation_type` label of a command; empty if its method is not consolidation."""
    return CONSOLIDATION_TYPES.get(disruption.spec.method, "")


def command_started(disruption: NodeDisruption) -> tuple[Observation, ...]:
    """Count a command that starts, once in all and once for each NodePool of its candidates."""
    values = _command_labels(disruption)
    pools = sorted({c.node_pool for c in disruption.spec.candidates})
    by_pool = (
        Observation(
            name="karpenter_voluntary_disruption_decisions_by_nodepool_total", labels={**values, "nodepool": pool}
        )
        for pool in pools
    )
    return (Observation(name="karpenter_voluntary_disruption_decisions_total", labels=values), *by_pool)


def evaluation_duration(method: str, reason: str, seconds: float) -> Observation:
    """Return how long one method searched for a command."""
    return Observation(
        name="karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
        value=max(seconds, 0.0),
        labels={"reason": reason.lower(), "consolidation_type": CONSOLIDATION_TYPES.get(method, "")},
        kind="histogram",
    )


def failed_validation(disruption: NodeDisruption, candidates: int) -> tuple[Observation, ...]:
    """Count the candidates that failed validation; nothing if none did."""
    labels_ = {"consolidation_type": consolidation_type(disruption)}
    sample = Observation(
        name="karpenter_voluntary_disruption_failed_validations_total", value=float(candidates), labels=labels_
    )
    return (sample,) if candidates else ()


def consolidation_timeout(method: str) -> tuple[Observation, ...]:
    """Count a pass of multi-node or single-node consolidation that reached its deadline; nothing for other methods."""
    type_ = CONSOLIDATION_TYPES.get(method, "")
    name = "karpenter_voluntary_disruption_consolidation_timeouts_total"
    return (Observation(name=name, labels={"consolidation_type": type_}),) if type_ in {"multi", "single"} else ()


def consolidation_move(
    pool: NodePool, *, approved: bool, score: float | None, score_approved: bool
) -> Iterator[Observation]:
    """Count a consolidation of nodes of a NodePool, and record its score, if it has one.

    Args:
        pool: The NodePool of candidates.
        approved: Whether all NodePools approve the command.
        score: The command's score in this NodePool; None if its policy is not Balanced.
        score_approved: Whether this NodePool approves it.

    Restates: karpenter pkg/controllers/disruption/balanced.go `ApproveCommand`, `EmitMultiNodeEvents`.
    """
    values = {"nodepool": pool.metadata.name, "policy": pool.spec.disruption.consolidation_policy}
    yield Observation(name="karpenter_consolidation_moves_total", labels={**values, "decision": _approval(approved)})
    if score is not None:
        name = "karpenter_consolidation_score"
        decision = _approval(score_approved)
        yield Observation(name=name, value=score, labels={**values, "decision": decision}, kind="histogram")


def queue_failure(disruption: NodeDisruption) -> Observation:
    """Count a command that was rolled back."""
    return Observation(name="karpenter_voluntary_disruption_queue_failures_total", labels=_command_labels(disruption))


def replacement_created(node_pool: str, disruption: NodeDisruption) -> Observation:
    """Count a replacement NodeClaim."""
    return nodeclaim_created(node_pool, disruption.spec.reason.lower())


def nodeclaim_disrupted(
    disruption: NodeDisruption, claim: NodeClaim, pool: NodePool | None, pods: int
) -> tuple[Observation, ...]:
    """Count a NodeClaim that a command deletes, and its reschedulable pods."""
    policy = pool.spec.disruption.consolidation_policy if pool is not None and consolidation_type(disruption) else ""
    values = _disrupted_labels(disruption.spec.reason.lower(), claim, policy)
    return (
        Observation(name="karpenter_nodeclaims_disrupted_total", labels=values),
        Observation(name="karpenter_pods_disruption_initiated_total", value=float(pods), labels=values),
    )


def overprovisioned(claim: NodeClaim) -> Observation:
    """Count a NodeClaim that is deleted because its static NodePool has more than `replicas`.

    Restates: karpenter pkg/controllers/static/deprovisioning/controller.go `TerminationReason`.
    """
    return Observation(name="karpenter_nodeclaims_disrupted_total", labels=_disrupted_labels("overprovisioned", claim))


def eligible_nodes(candidates: Iterable[Candidate], reason: str) -> Observation:
    """Return the number of nodes that are eligible for disruption for this reason."""
    return Observation(
        name="karpenter_voluntary_disruption_eligible_nodes",
        value=float(sum(1 for _ in candidates)),
        labels={"reason": reason.lower()},
        kind="gauge",
    )


def budget_gauges(budgets: Mapping[NodePoolName, BudgetStatus], reason: str) -> tuple[Observation, ...]:
    """Return what the budgets allow, whether or not it is used, and how many nodes use it, for each NodePool."""
    samples = []
    for pool, status in sorted(budgets.items()):
        values = {"nodepool": pool, "reason": reason.lower()}
        for name, value in (
            ("karpenter_nodepools_allowed_disruptions", status.allowed),
            ("karpenter_nodepools_nodes_consuming_budgets", status.disrupting),
        ):
            samples.append(Observation(name=name, value=float(value), labels=values, kind="gauge"))
    return tuple(samples)


def _command_labels(disruption: NodeDisruption) -> dict[str, str]:
    return {
        "decision": disruption.spec.decision,
        "reason": disruption.spec.reason.lower(),
        "consolidation_type": consolidation_type(disruption),
    }


def _disrupted_labels(reason: str, claim: NodeClaim, policy: str = "") -> dict[str, str]:
    return {
        "reason": reason,
        "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
        "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
        "consolidation_policy": _snake(policy),
        "termination_mode": termination_mode(claim),
    }


def _approval(approved: bool) -> str:
    return "approved" if approved else "rejected"


def _snake(policy: str) -> str:
    """Return the policy in snake case: when_empty_or_underutilized for WhenEmptyOrUnderutilized."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in policy).lstrip("_")
