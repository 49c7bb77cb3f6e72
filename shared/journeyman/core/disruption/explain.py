"""How disruption is counted and told: Karpenter's metric names, event reasons and texts.

Restates: karpenter pkg/controllers/disruption/metrics.go, pkg/controllers/disruption/events/events.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from journeyman.core.api import labels
from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODE, NODECLAIM, NodeClaim
from journeyman.core.disruption.budgets import Allowance
from journeyman.core.disruption.types import Candidate, NodePoolName
from journeyman.core.plan import Event, ObjectRef, Observation
from journeyman.core.state import StateNode

CONSOLIDATION_TYPES = {"emptiness": "empty", "multi-node": "multi", "single-node": "single"}
"""The `consolidation_type` label of each method that consolidates; the others have none."""


def refs(node: StateNode) -> tuple[ObjectRef, ...]:
    """Claim and node, as far as they exist: whom an event about the node is recorded on."""
    claim, host = node.claim, node.node
    both = ((NODECLAIM, claim.metadata if claim else None), (NODE, host.metadata if host else None))
    return tuple(ObjectRef(resource=kind, name=meta.name, uid=meta.uid) for kind, meta in both if meta is not None)


def about(candidate: Candidate, reason: str, message: str, *, key: str = "") -> tuple[Event, ...]:
    """The same event on the candidate's claim and node."""
    claim = ObjectRef(resource=NODECLAIM, name=candidate.nodeclaim, uid=candidate.nodeclaim_uid)
    node = ObjectRef(resource=NODE, name=candidate.node, uid=candidate.node_uid)
    return tuple(Event(ref=ref, reason=reason, message=message, key=key) for ref in (claim, node))


def terminating(refs_: Iterable[ObjectRef], reason: str) -> tuple[Event, ...]:
    """The event on claim and node that are disrupted now, and why."""
    return tuple(
        Event(ref=ref, reason="DisruptionTerminating", message=f"Disrupting {ref.resource.kind}: {reason}", key=reason)
        for ref in refs_
    )


def consolidation_type(disruption: NodeDisruption) -> str:
    """The metric label for the way the decision was found."""
    return CONSOLIDATION_TYPES.get(disruption.spec.method, "")


def decided(disruption: NodeDisruption) -> tuple[Observation, ...]:
    """One decision that goes ahead, in all and for each NodePool that loses nodes."""
    values = {
        "decision": disruption.spec.decision,
        "reason": disruption.spec.reason.lower(),
        "consolidation_type": consolidation_type(disruption),
    }
    pools = sorted({c.node_pool for c in disruption.spec.candidates})
    by_pool = (
        Observation(
            name="karpenter_voluntary_disruption_decisions_by_nodepool_total", labels={**values, "nodepool": pool}
        )
        for pool in pools
    )
    return (Observation(name="karpenter_voluntary_disruption_decisions_total", labels=values), *by_pool)


def evaluated(method: str, reason: str, seconds: float) -> Observation:
    """How long one method looked for something to disrupt; found or not."""
    return Observation(
        name="karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
        value=max(seconds, 0.0),
        labels={"reason": reason.lower(), "consolidation_type": CONSOLIDATION_TYPES.get(method, "")},
        kind="histogram",
    )


def failed_validation(disruption: NodeDisruption) -> Observation:
    """One decision that no longer held when it was looked at again."""
    return Observation(
        name="karpenter_voluntary_disruption_failed_validations_total",
        labels={"consolidation_type": consolidation_type(disruption)},
    )


def queue_failure(disruption: NodeDisruption) -> Observation:
    """One command that was undone."""
    return Observation(
        name="karpenter_voluntary_disruption_queue_failures_total",
        labels={
            "decision": disruption.spec.decision,
            "reason": disruption.spec.reason.lower(),
            "consolidation_type": consolidation_type(disruption),
        },
    )


def created(node_pool: str, disruption: NodeDisruption) -> Observation:
    """One replacement opened."""
    return Observation(
        name="karpenter_nodeclaims_created_total",
        labels={"reason": disruption.spec.reason.lower(), "nodepool": node_pool, "min_values_relaxed": "false"},
    )


def disrupted(
    disruption: NodeDisruption, claim: NodeClaim, pool: NodePool | None, pods: int
) -> tuple[Observation, ...]:
    """One NodeClaim deleted by a command, and how many pods have to move for it."""
    values = _of_disrupted(disruption.spec.reason.lower(), claim, pool)
    return (
        Observation(name="karpenter_nodeclaims_disrupted_total", labels=values),
        Observation(name="karpenter_pods_disruption_initiated_total", value=float(pods), labels=values),
    )


def overprovisioned(claim: NodeClaim, pool: NodePool) -> Observation:
    """One NodeClaim deleted because its static NodePool asks for fewer (static/deprovisioning `TerminationReason`)."""
    return Observation(
        name="karpenter_nodeclaims_disrupted_total", labels=_of_disrupted("overprovisioned", claim, pool)
    )


def _of_disrupted(reason: str, claim: NodeClaim, pool: NodePool | None) -> dict[str, str]:
    return {
        "reason": reason,
        "nodepool": claim.metadata.labels.get(labels.NODEPOOL, ""),
        "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
        "consolidation_policy": _snake(pool.spec.disruption.consolidation_policy) if pool is not None else "",
        "termination_mode": _termination_mode(claim),
    }


def eligible(candidates: Iterable[Candidate], reason: str) -> Observation:
    """How many nodes could be disrupted for that reason now."""
    return Observation(
        name="karpenter_voluntary_disruption_eligible_nodes",
        value=float(sum(1 for _ in candidates)),
        labels={"reason": reason.lower()},
        kind="gauge",
    )


def budgets(allowances: Mapping[NodePoolName, Allowance], reason: str) -> tuple[Observation, ...]:
    """How many nodes each NodePool may still lose, and how many count against its budgets."""
    samples = []
    for pool, allowance in sorted(allowances.items()):
        values = {"nodepool": pool, "reason": reason.lower()}
        for name, value in (
            ("karpenter_nodepools_allowed_disruptions", allowance.remaining),
            ("karpenter_nodepools_nodes_consuming_budgets", allowance.disrupting),
        ):
            samples.append(Observation(name=name, value=float(value), labels=values, kind="gauge"))
    return tuple(samples)


def in_words(disruption: NodeDisruption) -> str:
    """The command in one line, for a person."""
    spec = disruption.spec
    nodes = ", ".join(f"{c.node} ({c.instance_type}/{c.capacity_type})" for c in spec.candidates[:5])
    more = f" and {len(spec.candidates) - 5} more" if len(spec.candidates) > 5 else ""
    by = Counter(f"{r.instance_type}/{r.capacity_type}" for r in spec.replacements)
    instead = ", ".join(
        f"{n} of {name} or dearer" if n > 1 else f"{name} or the like" for name, n in sorted(by.items())
    )
    tail = f" by {instead}" if instead else ""
    return f"{spec.decision} {nodes}{more}{tail}, saving {spec.saving:.4f}/h ({spec.reason})"


def _snake(policy: str) -> str:
    """WhenEmptyOrUnderutilized becomes when_empty_or_underutilized."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in policy).lstrip("_")


def _termination_mode(claim: NodeClaim) -> str:
    """Graceful without a terminationGracePeriod, forceful with one of zero, eventual otherwise."""
    period = claim.spec.termination_grace_period
    if period is None:
        return "graceful"
    return "eventual" if period.strip("0smh") else "forceful"
