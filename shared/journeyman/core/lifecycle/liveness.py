"""Liveness: a claim that does not become a node in time is given up.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `Reconcile`. There is no time-out after registration.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from journeyman.core.api.objects import NodeClaim, condition_of, is_true


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long a claim may take to be launched and to be registered, each from its creation."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)


def timed_out(claim: NodeClaim, timeouts: Timeouts, now: datetime) -> str:
    """The metric reason of the time-out that has passed, empty if the claim may go on."""
    if is_true(claim.status.conditions, "Registered"):
        return ""
    if not is_true(claim.status.conditions, "Launched") and now >= _since(claim, "Launched", now) + timeouts.launch:
        return "launch_timeout"
    if now >= _since(claim, "Registered", now) + timeouts.registration:
        return "registration_timeout"
    return ""


def _since(claim: NodeClaim, type_: str, now: datetime) -> datetime:
    """When the condition took its status: the claim's creation, as long as it was never set."""
    condition = condition_of(claim.status.conditions, type_)
    if condition is not None and condition.last_transition_time is not None:
        return condition.last_transition_time
    return claim.metadata.creation_timestamp or now
