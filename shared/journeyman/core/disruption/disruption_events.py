"""Kubernetes Events of disruption, with Karpenter's reasons and messages.

Restates: karpenter pkg/controllers/disruption/events/events.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.core.api.node_disruption import NodeDisruption
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


def consolidation_candidate(candidate: Candidate, explanation: str) -> tuple[Event, ...]:
    """Return the events on a candidate of a proposed consolidation."""
    message = f"Consolidation candidate: {explanation}"
    return candidate_events(candidate, "ConsolidationCandidate", message, key=explanation)


def consolidation_rejected(refs: Iterable[ObjectRef], explanation: str, why: str) -> tuple[Event, ...]:
    """Return the events on a candidate of a consolidation that failed validation."""
    message = f"Consolidation rejected: {explanation}, reason: {why}"
    return tuple(Event(ref=ref, reason="ConsolidationRejected", message=message, key=message) for ref in refs)
