"""Kubernetes Events of disruption, with Karpenter's reasons and messages.

Restates: karpenter pkg/controllers/disruption/events/events.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.core.api.node_disruption import NodeDisruption
from journeyman.core.api.nodepool import NodePool
from journeyman.core.api.objects import NODE, NODECLAIM, NODEPOOL, NodeClaim
from journeyman.core.disruption.candidates import BLOCKED, Candidate, DisruptionReason
from journeyman.core.plan import Event, ObjectRef, claim_ref
from journeyman.core.state import Snapshot

UNCONSOLIDATABLE = "Unconsolidatable"
"""Event reason for nodes that consolidation can neither delete nor replace."""


def candidate_events(candidate: Candidate, reason: str, message: str, *, key: str = "") -> tuple[Event, ...]:
    """Return the same event on the candidate's NodeClaim and Node."""
    claim = ObjectRef(resource=NODECLAIM, name=candidate.nodeclaim, uid=candidate.nodeclaim_uid)
    node = ObjectRef(resource=NODE, name=candidate.node, uid=candidate.node_uid)
    return tuple(Event(ref=ref, reason=reason, message=message, key=key) for ref in (claim, node))


def nodepool_blocked(pools: Iterable[str], reason: DisruptionReason, snapshot: Snapshot) -> tuple[Event, ...]:
    """Return an event on each NodePool whose budgets allow no disruption for this reason.

    Restates: karpenter pkg/controllers/disruption/events/events.go `NodePoolBlockedForDisruptionReason`.
    """
    return tuple(
        Event(
            ref=ObjectRef(resource=NODEPOOL, name=pool, uid=snapshot.node_pools_by_name[pool].metadata.uid),
            reason=BLOCKED,
            message=f"No allowed disruptions for disruption reason {reason.value} due to blocking budget",
            key=reason.value,
        )
        for pool in sorted(pools)
    )


def launching(disruption: NodeDisruption, name: str) -> Event:
    """Return the event on a replacement NodeClaim that is created.

    Restates: karpenter pkg/controllers/disruption/events/events.go `Launching`.
    """
    reason = disruption.spec.reason
    ref = ObjectRef(resource=NODECLAIM, name=name)
    return Event(ref=ref, reason="DisruptionLaunching", message=f"Launching NodeClaim: {reason}", key=reason)


def waiting_on_readiness(claim: NodeClaim) -> Event:
    """Return the event on a replacement NodeClaim that is not initialized yet.

    Restates: karpenter pkg/controllers/disruption/events/events.go `WaitingOnReadiness`.
    """
    return Event(
        ref=claim_ref(claim),
        reason="DisruptionWaitingReadiness",
        message="Waiting on readiness to continue disruption",
    )


def terminating(refs: Iterable[ObjectRef], reason: str) -> tuple[Event, ...]:
    """Return the events on the NodeClaim and Node of a candidate that is deleted.

    Restates: karpenter pkg/controllers/disruption/events/events.go `Terminating`.
    """
    return tuple(
        Event(ref=ref, reason="DisruptionTerminating", message=f"Disrupting {ref.resource.kind}: {reason}", key=reason)
        for ref in refs
    )


def consolidation_candidate(candidate: Candidate, disruption: NodeDisruption) -> tuple[Event, ...]:
    """Return the events on a candidate of a proposed consolidation.

    Restates: karpenter pkg/controllers/disruption/events/events.go `ConsolidationCandidate`.
    """
    command = _command_for(candidate.node, disruption)
    message = f"Consolidation candidate: {command} ({_savings(disruption)})"
    return candidate_events(candidate, "ConsolidationCandidate", message, key=command)


def consolidation_rejected(
    node: str, refs: Iterable[ObjectRef], disruption: NodeDisruption, why: str
) -> tuple[Event, ...]:
    """Return the events on a candidate of a consolidation that failed validation.

    Args:
        node: Name of the Node.
        refs: The candidate's NodeClaim and Node.
        disruption: The proposal.
        why: Karpenter's kind of failure (churn, budget or scheduling), a colon, and the details.

    Restates: karpenter pkg/controllers/disruption/events/events.go `ConsolidationRejected`.
    """
    command = _command_for(node, disruption)
    message = f"Consolidation rejected: {command}, reason: {why} ({_savings(disruption)})"
    key = f"{command} {why.partition(':')[0]}"
    return tuple(Event(ref=ref, reason="ConsolidationRejected", message=message, key=key) for ref in refs)


def consolidation_approved(candidate: Candidate, score: str) -> tuple[Event, ...]:
    """Return the events on the only candidate of a consolidation that its NodePool's policy Balanced approves.

    Restates: karpenter pkg/controllers/disruption/events/events.go `ConsolidationApproved`.
    """
    return candidate_events(candidate, "ConsolidationApproved", score)


def consolidation_approved_in_nodepool(pool: NodePool, score: str) -> Event:
    """Return the event on a NodePool whose policy Balanced approves a consolidation of several nodes.

    Restates: karpenter pkg/controllers/disruption/events/events.go `ConsolidationApprovedMultiNode`.
    """
    ref = ObjectRef(resource=NODEPOOL, name=pool.metadata.name, uid=pool.metadata.uid)
    return Event(ref=ref, reason="ConsolidationApproved", message=score)


def _command_for(node: str, disruption: NodeDisruption) -> str:
    """Return the command from the perspective of one of its candidates; of several it names only this one.

    Restates: karpenter pkg/controllers/disruption/types.go `StringForNode`.
    """
    spec = disruption.spec
    if len(spec.candidates) > 1:
        return f"{spec.decision}: [{node}] (part of {len(spec.candidates)}-node consolidation)"
    return f"{spec.decision}: [{node}]{launched(len(spec.replacements))}"


def launched(replacements: int) -> str:
    """Return how many replacements a command launches, as it stands behind its nodes; empty if it launches none."""
    return f" -> [{replacements} replacement{'s' if replacements > 1 else ''}]" if replacements else ""


def _savings(disruption: NodeDisruption) -> str:
    """Return the savings as text, without a currency sign: prices are in the provider's currency."""
    return f"savings: {disruption.spec.saving:.2f} per hour"
