"""Liveness: a claim that does not become a node in time is given up, and at once if its instance is gone before that.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `Reconcile`. There is no time-out after registration.
Differs: an Event says that a claim was given up and why; a claim whose instance has ended does not wait for its time-out;
registration has its time from the launch on. Claims are created by the API server's clock and launched by ours: if ours is
ahead by more than the time-out, every claim would be too old from its first moment, and launched and given up in a circle.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.objects import NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.progress import claim_ref, delete_nodeclaim
from journeyman.core.plan import Event, Plan, Requeue, Step, chain_of, merge_plans
from journeyman.core.state import Snapshot
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
    """How long a claim may take to be launched from its creation, and to be registered from its launch."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)


def timeout_reason(claim: NodeClaim, timeouts: LivenessTimeouts, now: datetime) -> str:
    """The metric reason of the time-out that has passed, empty if the claim may go on."""
    if is_true(claim.status.conditions, "Registered"):
        return ""
    if not is_true(claim.status.conditions, "Launched") and now >= _since(claim, "Launched", now) + timeouts.launch:
        return LAUNCH_TIMEOUT
    if now >= _node_awaited_since(claim, now) + timeouts.registration:
        return REGISTRATION_TIMEOUT
    return ""


def awaits_node(claim: NodeClaim) -> bool:
    """Whether it has an instance that is to join the cluster yet."""
    joined = is_true(claim.status.conditions, "Registered")
    return claim.metadata.deletion_timestamp is None and bool(claim.status.provider_id) and not joined


def delete_claims_of_ended_instances(snapshot: Snapshot, ended: Collection[str]) -> Plan:
    """Give up the claims that await the node of an instance that has ended; their pods are planned again.

    Args:
        snapshot: The claims.
        ended: Provider ids of instances that the cloud, asked for each of them, says are gone, and of those that it says
            stand still: nothing starts them again.
    """
    abandoned = (claim for claim in snapshot.claims if awaits_node(claim) and claim.status.provider_id in ended)
    return merge_plans(delete_unregistered(claim, INSTANCE_GONE, snapshot.now) for claim in abandoned)


def delete_unregistered(claim: NodeClaim, reason: str, now: datetime) -> Plan:
    """Delete it. Its pods are planned again as soon as it is gone; its finalizer terminates the instance, if any.

    Args:
        claim: The claim.
        reason: The metric's reason: a time-out, or that its instance is gone.
        now: The time.
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
    """What kept it, as its conditions say, and what becomes of it."""
    instance = claim.status.provider_id
    if reason == INSTANCE_GONE:
        return f"Instance {instance} ended before its node registered; the NodeClaim is deleted, its pods are scheduled again"
    type_, what = ("Launched", "launched") if reason == LAUNCH_TIMEOUT else ("Registered", "registered")
    condition = condition_of(claim.status.conditions, type_)
    said = f", {condition.reason}: {condition.message}" if condition is not None and condition.message else ""
    since = _since(claim, type_, now) if reason == LAUNCH_TIMEOUT else _node_awaited_since(claim, now)
    minutes = (now - since) // timedelta(minutes=1)
    ends = f", and instance {instance} is terminated" if instance else ""
    return f"Not {what} after {minutes} min{said}; the NodeClaim is deleted{ends}, its pods are scheduled again"


def _node_awaited_since(claim: NodeClaim, now: datetime) -> datetime:
    """Since when its node is awaited: its launch, if it was launched."""
    since = _since(claim, "Registered", now)
    return max(since, _since(claim, "Launched", now)) if is_true(claim.status.conditions, "Launched") else since


def _since(claim: NodeClaim, type_: str, now: datetime) -> datetime:
    """When the condition took its status: the claim's creation, as long as it was never set."""
    condition = condition_of(claim.status.conditions, type_)
    if condition is not None and condition.last_transition_time is not None:
        return condition.last_transition_time
    return claim.metadata.creation_timestamp or now
