"""Expiration: a node that is older than its claim's expireAfter goes, whatever the budgets say.

Restates: karpenter pkg/controllers/nodeclaim/expiration/controller.go `Reconcile`.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from journeyman.core.api.duration import NEVER, parse_duration
from journeyman.core.api.objects import NodeClaim
from journeyman.core.lifecycle.explain import disrupted
from journeyman.core.lifecycle.progress import claim_ref
from journeyman.core.plan import DeleteObject, Plan, merged, one
from journeyman.core.state import Snapshot
from journeyman.errors import ConfigurationError


def expire(snapshot: Snapshot) -> Plan:
    """Delete every claim that has reached its age; drain and termination follow from the deletion."""
    return merged(_expire(claim) for claim in snapshot.claims if is_expired(claim, snapshot.now))


def is_expired(claim: NodeClaim, now: datetime) -> bool:
    """Whether the claim has reached its age and is not on its way out already."""
    if claim.metadata.deletion_timestamp is not None:
        return False
    at = expires_at(claim)
    return at is not None and now >= at


def expires_at(claim: NodeClaim) -> datetime | None:
    """When it expires; None for ``Never``, and for a text that does not parse (better kept than deleted)."""
    if claim.spec.expire_after == NEVER or claim.metadata.creation_timestamp is None:
        return None
    try:
        return claim.metadata.creation_timestamp + parse_duration(claim.spec.expire_after)
    except ConfigurationError:
        return None


def _expire(claim: NodeClaim) -> Plan:
    name = claim.metadata.name
    chain = one(f"NodeClaim {name}", DeleteObject(ref=claim_ref(claim), why=f"older than {claim.spec.expire_after}"))
    return Plan(
        chains=(replace(chain, observations=(disrupted(claim, "expired"),)),),
        notes=(f"NodeClaim {name} expired after {claim.spec.expire_after}",),
    )
