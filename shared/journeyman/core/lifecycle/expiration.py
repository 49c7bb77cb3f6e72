"""Expiration: deletes NodeClaims older than their expireAfter, or whose capacity block ends, regardless of budgets.

Restates: karpenter pkg/controllers/nodeclaim/expiration/controller.go `Reconcile`, karpenter-provider-aws
pkg/controllers/capacityreservation/expiration/controller.go `Reconcile`.
Differs: Events on NodeClaim and Node record it, since a clock that is ahead lets many NodeClaims expire at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.duration import NEVER, parse_duration, time_after
from journeyman.core.api.objects import NodeClaim
from journeyman.core.plan import DeleteObject, Event, Plan, chain_of, claim_ref
from journeyman.core.state import Snapshot, StateNode
from journeyman.core.state.guard import plan_for_each
from journeyman.core.state.nodeclaim_metrics import disruption_started
from journeyman.errors import ConfigurationError

DELETED_BEFORE_BLOCK_ENDS: Final = timedelta(minutes=40)
"""Ten minutes before EC2 starts to terminate the instances of a capacity block."""


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


def delete_claims_of_ending_blocks(snapshot: Snapshot) -> Plan:
    """Delete NodeClaims on a capacity block that ends soon, so that their nodes are drained before EC2 ends the instances."""
    states = snapshot.state_nodes_by_claim

    def decide(claim: NodeClaim) -> Plan:
        block = ending_block(claim, snapshot)
        return _deleted(claim, states[claim.metadata.name], f"capacity block {block} ends soon") if block else Plan()

    return plan_for_each(snapshot.claims, decide)


def ending_block(claim: NodeClaim, snapshot: Snapshot) -> str:
    """Return the id of the NodeClaim's capacity block if that ends soon; empty if not, or if the claim has a deletionTimestamp."""
    block = claim.metadata.labels.get(labels.RESERVATION_ID, "")
    if not block or claim.metadata.deletion_timestamp is not None:
        return ""
    ends = (node_class.block_ends.get(block) for node_class in snapshot.node_classes)
    return block if any(at is not None and at - snapshot.now <= DELETED_BEFORE_BLOCK_ENDS for at in ends) else ""


def _expire(claim: NodeClaim, state: StateNode) -> Plan:
    return _deleted(claim, state, f"older than {claim.spec.expire_after}")


def _deleted(claim: NodeClaim, state: StateNode, why: str) -> Plan:
    name = claim.metadata.name
    chain = chain_of(f"NodeClaim {name}", DeleteObject(ref=claim_ref(claim), why=why))
    events = tuple(
        Event(
            ref=ref,
            reason="DisruptionTerminating",
            message=f"Disrupting {ref.resource.kind}: Expired ({why})",
            key="Expired",
        )
        for ref in state.object_refs
    )
    return Plan(
        chains=(replace(chain, events=events, observations=disruption_started(claim, "expired", state.pods)),),
        notes=(f"NodeClaim {name} expired: {why}",),
    )
