"""Liveness: deletes NodeClaims that do not launch or register in time, or whose instance ends before they register.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `Reconcile`, `LaunchTimeout`.
Differs: an Event on the NodeClaim says why it was deleted; a NodeClaim whose instance has ended is deleted without waiting for
the timeout; the registration timeout starts at the launch. The API server's clock sets the creation time, and ours the
launch: if ours were ahead by more than the timeout, every NodeClaim would be deleted as soon as it is launched.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.duration import time_after
from journeyman.core.api.objects import NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.progress import delete_nodeclaim
from journeyman.core.plan import Event, Plan, Requeue, Step, chain_of, claim_ref
from journeyman.core.state import Snapshot
from journeyman.core.state.guard import plan_for_each
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted

LAUNCH_TIMEOUT: Final = "launch_timeout"
REGISTRATION_TIMEOUT: Final = "registration_timeout"
INSTANCE_GONE: Final = "instance_gone"

_EVENTS: Final = {
    LAUNCH_TIMEOUT: "LaunchTimedOut",
    REGISTRATION_TIMEOUT: "RegistrationTimedOut",
    INSTANCE_GONE: "InstanceNotFound",
}


class LivenessTimeouts(Struct, frozen=True, kw_only=True):
    """How long a NodeClaim may take from its creation to its launch, and from its launch to its registration."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)


def timeout_reason(claim: NodeClaim, timeouts: LivenessTimeouts, now: datetime) -> str:
    """Return the timeout that the NodeClaim has exceeded, as the metric's reason; empty if there is none."""
    if is_true(claim.status.conditions, "Registered"):
        return ""
    if not is_true(claim.status.conditions, "Launched") and now >= time_after(
        _since(claim, "Launched", now), timeouts.launch
    ):
        return LAUNCH_TIMEOUT
    if now >= time_after(_registration_start(claim, now), timeouts.registration):
        return REGISTRATION_TIMEOUT
    return ""


def is_awaiting_node(claim: NodeClaim) -> bool:
    """Whether the NodeClaim has an instance whose node has not registered, and no deletionTimestamp."""
    registered = is_true(claim.status.conditions, "Registered")
    return claim.metadata.deletion_timestamp is None and bool(claim.status.provider_id) and not registered


def delete_claims_of_ended_instances(snapshot: Snapshot, ended: Collection[str]) -> Plan:
    """Delete unregistered NodeClaims whose instance has ended; their pods are scheduled again.

    Args:
        snapshot: The NodeClaims.
        ended: Provider ids of instances that the cloud does not find or that are stopped. Each was looked up by its id: a list
            of instances may lag behind.
    """
    ended_claims = (c for c in snapshot.claims if is_awaiting_node(c) and c.status.provider_id in ended)
    return plan_for_each(ended_claims, lambda claim: delete_unregistered(claim, INSTANCE_GONE, snapshot.now))


def delete_unregistered(claim: NodeClaim, reason: str, now: datetime) -> Plan:
    """Delete a NodeClaim that did not register. Its finalizer terminates the instance, and its pods are scheduled again.

    Args:
        claim: The NodeClaim.
        reason: `LAUNCH_TIMEOUT`, `REGISTRATION_TIMEOUT` or `INSTANCE_GONE`, the metric's reason.
        now: The time.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `deleteNodeClaimForTimeout`.
    """
    name, ref = claim.metadata.name, claim_ref(claim)
    event = Event(ref=ref, reason=_EVENTS[reason], message=_message(claim, reason, now), type="Warning")
    chain = chain_of(
        f"NodeClaim {name}",
        delete_nodeclaim(claim, reason),
        Requeue(step=Step.TERMINATE, at=now, reason=f"NodeClaim {name}: {reason}"),
        Requeue(step=Step.PROVISION, at=now, reason=f"NodeClaim {name}: {reason}"),
    )
    chain = replace(chain, events=(event,), observations=(nodeclaim_disrupted(claim, reason),))
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {name}: {reason}",))


def _message(claim: NodeClaim, reason: str, now: datetime) -> str:
    """Return the Event's message: what did not happen, the condition's message, and what is deleted."""
    instance = claim.status.provider_id
    if reason == INSTANCE_GONE:
        return f"Instance {instance} ended before its node registered; the NodeClaim is deleted, its pods are scheduled again"
    if reason == LAUNCH_TIMEOUT:
        type_, since = "Launched", _since(claim, "Launched", now)
    else:
        type_, since = "Registered", _registration_start(claim, now)
    condition = condition_of(claim.status.conditions, type_)
    cause = f", {condition.reason}: {condition.message}" if condition is not None and condition.message else ""
    minutes = (now - since) // timedelta(minutes=1)
    terminated = f", and instance {instance} is terminated" if instance else ""
    return f"Not {type_.lower()} after {minutes} min{cause}; the NodeClaim is deleted{terminated}, its pods are scheduled again"


def _registration_start(claim: NodeClaim, now: datetime) -> datetime:
    """Return when the registration timeout started: at the launch, or before it when Registered took its status."""
    since = _since(claim, "Registered", now)
    return max(since, _since(claim, "Launched", now)) if is_true(claim.status.conditions, "Launched") else since


def _since(claim: NodeClaim, type_: str, now: datetime) -> datetime:
    """Return when the condition took its status; the NodeClaim's creation if it was never set."""
    condition = condition_of(claim.status.conditions, type_)
    if condition is not None and condition.last_transition_time is not None:
        return condition.last_transition_time
    return claim.metadata.creation_timestamp or now
