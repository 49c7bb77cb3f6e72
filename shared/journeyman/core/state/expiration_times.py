"""When a NodeClaim expires: when its node is replaced, and from when until when it is deleted.

Restates: karpenter pkg/controllers/nodeclaim/expiration/controller.go `Reconcile`.
Differs: a NodeClaim is deleted within the last tenth of its expireAfter, so that nodes of one burst do not go together; and not
before its node has registered, so that an expireAfter shorter than a launch, or a clock that is ahead, does not make a NodePool launch
instances without end.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from journeyman.core.api.conditions import INITIALIZED, REGISTERED
from journeyman.core.api.duration import NEVER, parse_duration, time_after
from journeyman.core.api.objects import NodeClaim, is_true
from journeyman.errors import ConfigurationError

LONGEST_LEAD: Final = timedelta(minutes=10)
"""How long before its deletion, at most, a node is replaced: a launch that is tried twice takes less."""
_SWEEP_PERIOD: Final = timedelta(minutes=1)
"""The sweep finds within it that a node expires soon."""


class ExpirationTimes(Struct, frozen=True, kw_only=True):
    """When a NodeClaim is replaced, and from when until when it is deleted: within the last tenth of its expireAfter."""

    replaced_from: datetime
    deleted_from: datetime
    deleted_by: datetime


def expiration_times(claim: NodeClaim) -> ExpirationTimes | None:
    """Return when the NodeClaim expires; None for ``Never``, and for an expireAfter that does not parse."""
    created = claim.metadata.creation_timestamp
    if claim.spec.expire_after == NEVER or created is None:
        return None
    try:
        lifetime = parse_duration(claim.spec.expire_after)
    except ConfigurationError:
        return None
    window = lifetime / 10
    lead = min(window * 2 / 3, LONGEST_LEAD)
    deleted_by = lifetime - window + lead + (window - lead) * _share(claim.metadata.uid)
    return ExpirationTimes(
        replaced_from=time_after(created, max(deleted_by - lead - _SWEEP_PERIOD, lifetime / 2)),
        deleted_from=time_after(created, lifetime - window),
        deleted_by=time_after(created, deleted_by),
    )


def _share(uid: str) -> float:
    """Return a number from 0 up to 1 that differs between NodeClaims and stays the same for each."""
    return int.from_bytes(blake2b(uid.encode(), digest_size=6).digest(), "big") / 2**48


def is_expired(claim: NodeClaim, now: datetime) -> bool:
    """Whether the NodeClaim must be deleted now for its age, is registered, and has no deletionTimestamp.

    Those that do not register end by the registration timeout.
    """
    if claim.metadata.deletion_timestamp is not None or not is_true(claim.status.conditions, REGISTERED):
        return False
    times = expiration_times(claim)
    return times is not None and now >= times.deleted_by


def expires_soon(claim: NodeClaim, now: datetime) -> bool:
    """Whether the NodeClaim is initialized and is to be replaced now, since it expires soon."""
    if claim.metadata.deletion_timestamp is not None or not is_true(claim.status.conditions, INITIALIZED):
        return False
    times = expiration_times(claim)
    return times is not None and now >= times.replaced_from
