"""Liveness: deletes NodeClaims that do not launch, register or initialize in time, or whose instance ends before they register.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `Reconcile`, `LaunchTimeout`.
Differs: an Event on the NodeClaim says why it was deleted; a NodeClaim whose instance has ended is deleted without waiting for
the timeout; the registration timeout starts at the launch. The API server's clock sets the creation time, and ours the
launch: if ours were ahead by more than the timeout, every NodeClaim would be deleted as soon as it is launched. Karpenter keeps
a node that never initializes for ever; here one without pods is deleted.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import INITIALIZED, REGISTERED
from journeyman.core.api.duration import time_after
from journeyman.core.api.objects import NodeClaim, condition_of, is_true
from journeyman.core.lifecycle.failed_launches import registered_at
from journeyman.core.lifecycle.progress import delete_nodeclaim
from journeyman.core.plan import Event, Plan, Requeue, Step, chain_of, claim_ref
from journeyman.core.state import BuildFailure, Snapshot, StateNode
from journeyman.core.state.instances import CloudInstances
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted
from journeyman.core.state.pod_predicates import is_disruptable, is_reschedulable
from journeyman.core.state.skipped_objects import plan_for_each

LAUNCH_TIMEOUT: Final = "launch_timeout"
REGISTRATION_TIMEOUT: Final = "registration_timeout"
INITIALIZATION_TIMEOUT: Final = "initialization_timeout"
INSTANCE_GONE: Final = "instance_gone"

_EVENTS: Final = {
    LAUNCH_TIMEOUT: "LaunchTimedOut",
    REGISTRATION_TIMEOUT: "RegistrationTimedOut",
    INITIALIZATION_TIMEOUT: "InitializationTimedOut",
    INSTANCE_GONE: "InstanceNotFound",
}


EARLY_END: Final = timedelta(minutes=5)
"""An instance that ends within this time of its node's registration counts as one that failed to join."""


class LivenessTimeouts(Struct, frozen=True, kw_only=True):
    """How long a NodeClaim may take: from creation to launch, from there to registration, from there to initialization.

    An `initialization` of zero is no limit.
    """

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)
    initialization: timedelta = timedelta(minutes=30)


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


def is_initialization_overdue(state: StateNode, timeouts: LivenessTimeouts, now: datetime) -> bool:
    """Whether a registered node without pods has not been initialized in time; DaemonSet pods and static pods do not count.

    A node stays if it or one of its pods has `karpenter.sh/do-not-disrupt`.
    """
    claim, node = state.claim, state.node
    if claim is None or node is None or state.is_terminating or not timeouts.initialization:
        return False
    if not is_true(claim.status.conditions, REGISTERED) or is_true(claim.status.conditions, INITIALIZED):
        return False
    if now < time_after(_since(claim, REGISTERED, now), timeouts.initialization):
        return False
    is_protected = node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"
    return not is_protected and all(is_disruptable(pod, now) and not is_reschedulable(pod) for pod in state.pods)


def is_awaiting_node(claim: NodeClaim) -> bool:
    """Whether the NodeClaim has an instance whose node has not registered, and no deletionTimestamp."""
    registered = is_true(claim.status.conditions, "Registered")
    return claim.metadata.deletion_timestamp is None and bool(claim.status.provider_id) and not registered


def ends_early(claim: NodeClaim, now: datetime) -> bool:
    """Whether an instance that ends now ends before its node has joined, or soon after that."""
    return bool(describe_early_end(claim, now))


def describe_early_end(claim: NodeClaim, now: datetime) -> str:
    """Return how the instance ended, if that is before its node has joined, or soon after that; else empty."""
    instance = claim.status.provider_id
    if is_awaiting_node(claim):
        return f"Instance {instance} ended before its node registered"
    since = registered_at(claim)
    if claim.metadata.deletion_timestamp is not None or since is None or now >= time_after(since, EARLY_END):
        return ""
    return f"Instance {instance} ended {int((now - since).total_seconds())} s after its node registered"


def delete_claims_of_ended_instances(snapshot: Snapshot, cloud: CloudInstances) -> Plan:
    """Delete unregistered NodeClaims whose instance has ended; their pods are scheduled again.

    Args:
        snapshot: The NodeClaims.
        cloud: The instances. Each that was not listed was looked up by its id: a list may lag behind.
    """

    def decide(claim: NodeClaim) -> Plan:
        failure = cloud.failure_of(claim.status.provider_id)
        return delete_unregistered(claim, INSTANCE_GONE, snapshot.now, failure)

    return plan_for_each(claims_of_ended_instances(snapshot, cloud), decide)


def claims_of_ended_instances(snapshot: Snapshot, cloud: CloudInstances) -> tuple[NodeClaim, ...]:
    """Return the unregistered NodeClaims whose instance has ended."""
    return tuple(c for c in snapshot.claims if is_awaiting_node(c) and c.status.provider_id in cloud.ended)


def delete_unregistered(claim: NodeClaim, reason: str, now: datetime, failure: BuildFailure | None = None) -> Plan:
    """Delete a NodeClaim that did not register, or not initialize. Its finalizer terminates the instance, and its pods are scheduled again.

    Args:
        claim: The NodeClaim.
        reason: `LAUNCH_TIMEOUT`, `REGISTRATION_TIMEOUT`, `INITIALIZATION_TIMEOUT` or `INSTANCE_GONE`, the metric's reason.
        now: The time.
        failure: Why the cloud could not build the instance, if it could not.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/liveness.go `deleteNodeClaimForTimeout`.
    """
    name, ref = claim.metadata.name, claim_ref(claim)
    event = Event(ref=ref, reason=_EVENTS[reason], message=_message(claim, reason, now, failure), type="Warning")
    chain = chain_of(
        f"NodeClaim {name}",
        delete_nodeclaim(claim, reason),
        Requeue(step=Step.TERMINATE, at=now, reason=f"NodeClaim {name}: {reason}"),
        Requeue(step=Step.PROVISION, at=now, reason=f"NodeClaim {name}: {reason}"),
    )
    chain = replace(chain, events=(event,), observations=(nodeclaim_disrupted(claim, reason),))
    return Plan(chains=(chain,), notes=(f"deleted NodeClaim {name}: {reason}",))


def _message(claim: NodeClaim, reason: str, now: datetime, failure: BuildFailure | None) -> str:
    """Return the Event's message: what did not happen, the condition's message, and what is deleted."""
    instance = claim.status.provider_id
    if failure is not None:
        remedy = f" ({failure.remedy})" if failure.remedy else ""
        return f"Instance {instance} could not be built, {failure.message}{remedy}; the NodeClaim is deleted, its pods are scheduled again"
    if reason == INSTANCE_GONE:
        return f"{describe_early_end(claim, now)}; the NodeClaim is deleted, its pods are scheduled again"
    terminated = f", and instance {instance} is terminated" if instance else ""
    return f"{describe_timeout(claim, reason, now)}; the NodeClaim is deleted{terminated}, its pods are scheduled again"


def describe_timeout(claim: NodeClaim, reason: str, now: datetime) -> str:
    """Return what did not happen in time, and the condition's message.

    Args:
        claim: The NodeClaim.
        reason: `LAUNCH_TIMEOUT`, `REGISTRATION_TIMEOUT` or `INITIALIZATION_TIMEOUT`.
        now: The time.
    """
    if reason == LAUNCH_TIMEOUT:
        type_, since = "Launched", _since(claim, "Launched", now)
    elif reason == INITIALIZATION_TIMEOUT:
        type_, since = INITIALIZED, _since(claim, REGISTERED, now)
    else:
        type_, since = "Registered", _registration_start(claim, now)
    condition = condition_of(claim.status.conditions, type_)
    cause = f", {condition.reason}: {condition.message}" if condition is not None and condition.message else ""
    return f"Not {type_.lower()} after {(now - since) // timedelta(minutes=1)} min{cause}"


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
