"""Expiration: deletes NodeClaims that are older than their expireAfter, regardless of disruption budgets.

Restates: karpenter pkg/controllers/nodeclaim/expiration/controller.go `Reconcile`.
Differs: Events on NodeClaim and Node record it, since a clock that is ahead lets many NodeClaims expire at once.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from journeyman.core.api.duration import NEVER, parse_duration, time_after
from journeyman.core.api.objects import NodeClaim
from journeyman.core.plan import DeleteObject, Event, Plan, chain_of, claim_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.guard import plan_for_each
from journeyman.core.state.nodeclaim_metrics import disruption_started
from journeyman.errors import ConfigurationError


def expire_nodeclaims(snapshot: Snapshot) -> Plan:
    """Delete every expired NodeClaim; the terminate step drains its node. The pods of those nodes are counted."""
    states, now = snapshot.state_nodes_by_claim, snapshot.now
    return plan_for_each(
        snapshot.claims, lambda c: _expire(c, states[c.metadata.name]) if is_expired(c, now) else Plan()
    )


def is_expired(claim: NodeClaim, now: datetime) -> bool:
    """Whether the NodeClaim has reached its expireAfter and has no deletionTimestamp."""
    if claim.metadata.deletion_timestamp is not None:
        return False
    at = expires_at(claim)
    return at is not None and now >= at


def expires_at(claim: NodeClaim) -> datetime | None:
    """Return when the NodeClaim expires; None for ``Never``, and for an expireAfter that does not parse."""
    if claim.spec.expire_after == NEVER or claim.metadata.creation_timestamp is None:
        return None
    try:
        return time_after(claim.metadata.creation_timestamp, parse_duration(claim.spec.expire_after))
    except ConfigurationError:
        return None


def _expire(claim: NodeClaim, state: StateNode) -> Plan:
    name, why = claim.metadata.name, f"Expired (older than {claim.spec.expire_after})"
    chain = chain_of(
        f"NodeClaim {name}", DeleteObject(ref=claim_ref(claim), why=f"older than {claim.spec.expire_after}")
    )
    events = tuple(
        Event(ref=ref, reason="DisruptionTerminating", message=f"Disrupting {ref.resource.kind}: {why}", key="Expired")
        for ref in state.object_refs
    )
    return Plan(
        chains=(replace(chain, events=events, observations=disruption_started(claim, "expired", state.pods)),),
        notes=(f"NodeClaim {name} expired after {claim.spec.expire_after}",),
    )
