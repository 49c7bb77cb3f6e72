"""Launch: requests the instance of a NodeClaim, and records the cloud provider's answer in it.

A NodeClaim carries the termination finalizer before its instance is launched, so no instance can leak. The NodeClaim's UID
is the idempotency token of the launch, so a repeated launch returns the same instance.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/launch.go `Reconcile`, `launchNodeClaim`.
Differs: a launch is an action that the executor carries out; the NodeClaim's annotation `launch-retry` counts failed
launches and has the time of the next one, since no work queue outlives the run. A NodeClaim of a user that does not validate is
not launched: a node with such labels or taints could not register.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.conditions import parse_time
from journeyman.core.api.duration import doubled
from journeyman.core.api.launch_faults import FaultScope, LaunchFault
from journeyman.core.api.model import parse
from journeyman.core.api.nodeclaim_schema import NodeClaimSchema
from journeyman.core.api.objects import NodeClaim, OfferingKey, condition_of
from journeyman.core.lifecycle.failed_launches import LAUNCH_FAILED, FailureReport, report_failure
from journeyman.core.lifecycle.hydration import with_finalizer_and_labels
from journeyman.core.lifecycle.progress import NodeClaimProgress, delete_nodeclaim, with_metadata
from journeyman.core.plan import (
    Action,
    Chain,
    ClearOfferingFailures,
    Event,
    LaunchInstance,
    MarkOfferingUnavailable,
    Plan,
    Requeue,
    Step,
    chain_of,
    claim_ref,
)
from journeyman.core.state import Snapshot
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted
from journeyman.core.state.skipped_objects import SkippedObject, evaluate
from journeyman.errors import (
    CreateError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
    RateLimitedError,
)

_MAX_MESSAGE_LENGTH: Final = 1024  # as Karpenter 1.15
# errors that no other launch of the NodeClaim can mend: the reason of the Event, and of the metric
_FINAL_ERRORS: Final[Mapping[type[Exception], tuple[str, str]]] = {
    InsufficientCapacityError: ("InsufficientCapacityError", "insufficient_capacity"),
    NodeClassNotReadyError: ("NodeClassNotReady", "nodeclass_not_ready"),
    NodeClaimNotFoundError: ("InstanceNotFound", "garbage_collected"),
}
_OBJECT_FAULT: Final = (LAUNCH_FAILED, "launch_failed")
MIN_RETRY_DELAY: Final = timedelta(seconds=1)  # controller.go: exponential 1 s to 1 min
MAX_RETRY_DELAY: Final = timedelta(minutes=1)

Offerings = tuple[OfferingKey, ...]


class LaunchedInstance(Struct, frozen=True, kw_only=True):
    """An instance that the cloud launched for a NodeClaim, as the cloud describes it."""

    provider_id: str
    image_id: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    offering: OfferingKey = OfferingKey("", "", "")
    launched_at: datetime | None = None  # earlier than this launch if that returned an instance of an earlier run
    unavailable: Offerings = ()
    unavailable_for_class: Offerings = ()
    faults: tuple[LaunchFault, ...] = ()  # of subnets that refused it before
    is_confirmed: bool = True  # False if the cloud may still fail to build it


class OfferingBackoff(Struct, frozen=True, kw_only=True):
    """How long an unavailable offering is skipped: after its first failure, and at most after repeated failures.

    `first_of_object` is how long a NodeClass, NodePool, subnet or account is skipped after the first launch that failed through
    its fault. `longest_outside` is the longest back-off of a fault that is mended outside the cluster: no change of an object says
    when that is done, only the next launch does, and a launch that the account refuses costs one request.
    `previously_failed`: offerings with a failure count in OfferingState, whether they are still skipped or not.
    """

    first_of_object: timedelta = timedelta(seconds=30)
    first: timedelta = timedelta(minutes=3)  # karpenter-provider-aws pkg/cache/cache.go `UnavailableOfferingsTTL`
    longest: timedelta = timedelta(hours=1)
    longest_outside: timedelta = timedelta(minutes=5)
    previously_failed: frozenset[OfferingKey] = frozenset()

    def longest_of(self, fault: LaunchFault) -> timedelta:
        """Return the longest back-off after failures with this fault."""
        return min(self.longest, self.longest_outside) if fault.is_mended_outside else self.longest


class FailedLaunch(Struct, frozen=True, kw_only=True):
    """A launch without an instance: its error and the offerings without capacity.

    `answered`: the cloud answered this launch with the failure, so it surely launched nothing. Without an answer (a lost
    connection, a time-out) an instance may exist. `faults`: the objects whose fault it is; none if it is no object's, as of a
    throttled request. `unavailable_for_class`: offerings that only this NodeClass's settings make unavailable.
    """

    error: Exception
    unavailable: Offerings = ()
    unavailable_for_class: Offerings = ()
    faults: tuple[LaunchFault, ...] = ()
    answered: bool = False
    retry_after: timedelta = timedelta(0)  # the shortest wait until the next launch


def is_pending(claim: NodeClaim) -> bool:
    """Whether the NodeClaim is to be launched: no deletionTimestamp, no provider id, and Launched missing or Unknown."""
    launched = condition_of(claim.status.conditions, "Launched")
    undecided = launched is None or launched.status == "Unknown"
    return claim.metadata.deletion_timestamp is None and not claim.status.provider_id and undecided


def launch_nodeclaims(claims: Iterable[NodeClaim], now: datetime) -> Plan:
    """Launch every pending NodeClaim whose back-off is over; requeue for the others.

    These are retries, NodeClaims that a user created, and NodeClaims whose run crashed before their launch.
    """
    plan = Plan()
    for claim in claims:
        if not is_pending(claim):
            continue
        due = retry_at(claim)
        if due is not None and due > now:
            plan += Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", _requeue_launch(claim, due)),))
            continue
        if problem := _validation_error(claim):
            refused = NodeClaimProgress.of(claim, now).with_condition("Launched", "False", "InvalidSpec", problem)
            plan += Plan(chains=(refused.chain(why="it does not validate"),))
            continue
        launch = LaunchInstance(claim=claim.metadata.name, why="the NodeClaim has no instance yet")
        progress = replace(NodeClaimProgress.of(claim, now), claim=with_finalizer_and_labels(claim))
        plan += Plan(chains=(progress.chain(launch, why="add the finalizer before the launch"),))
    return plan


def _validation_error(claim: NodeClaim) -> str:
    """Return the error of a NodeClaim without a NodePool, which a user created; empty if it validates, or has a NodePool."""
    if labels.NODEPOOL in claim.metadata.labels:
        return ""
    wire = {"metadata": {"name": claim.metadata.name}, "spec": msgspec.to_builtins(claim.spec)}
    validated = evaluate(claim, parse, NodeClaimSchema, wire)
    return validated.why if isinstance(validated, SkippedObject) else ""


def withdraw_nodeclaim(claim: NodeClaim, reason: str, why: str, now: datetime) -> Chain:
    """Delete a NodeClaim before its launch, record why in an Event with this reason, and requeue provisioning for its pods."""
    name = claim.metadata.name
    chain = chain_of(
        f"NodeClaim {name}",
        delete_nodeclaim(claim, why),
        *(
            Requeue(step=step, at=now, reason=f"NodeClaim {name} was withdrawn")
            for step in (Step.TERMINATE, Step.PROVISION)
        ),
    )
    text = f"{why}; the NodeClaim is deleted before it is launched"
    return replace(chain, events=(Event(ref=claim_ref(claim), reason=reason, message=text, type="Warning"),))


def answered_failures(claim: NodeClaim) -> int:
    """Return how many launches of the NodeClaim the cloud answered with a failure; each makes a new idempotency token.

    A launch without an answer may have made an instance. The next one repeats its token, so that the cloud returns that
    instance instead of launching another.
    """
    return _launch_retry(claim).answered


def failures(claim: NodeClaim) -> int:
    """Return how many launches of the NodeClaim failed, those without an answer included."""
    return _launch_retry(claim).failed


def retry_at(claim: NodeClaim) -> datetime | None:
    """Return when the NodeClaim may be launched again; None if no launch failed or its annotation does not parse."""
    return _launch_retry(claim).due


def record_launch(
    claim: NodeClaim,
    outcome: LaunchedInstance | FailedLaunch,
    now: datetime,
    backoff: OfferingBackoff,
    snapshot: Snapshot | None = None,
) -> Plan:
    """Record the outcome of a launch in the NodeClaim and in OfferingState.

    Args:
        claim: The NodeClaim as it is stored now.
        outcome: The instance, or why there is none.
        now: The time.
        backoff: How long unavailable offerings and objects at fault are skipped.
        snapshot: The objects that may be at fault, for Events; needed only for an outcome with faults.

    Returns:
        Launched True with the instance's details; or the deletion of the NodeClaim, if there is no capacity, its NodeClass is
        not ready, the instance of an earlier launch ended, or an object is at fault; or Launched Unknown and a requeue for the
        next launch. In each case also the unavailable offerings and the objects at fault.

    Restates: karpenter pkg/controllers/nodeclaim/lifecycle/launch.go `launchNodeClaim`.
    Differs: a NodeClaim of a NodePool whose launch is refused for another reason than capacity is deleted, so that another
    NodePool can serve its pods; Karpenter launches it again and again for five minutes.
    """
    unavailable = _mark_unavailable(claim, outcome, now, backoff)
    reports = [
        report_failure(claim, fault, snapshot, now, backoff, counts=fault.scope is not FaultScope.SUBNET)
        for fault in outcome.faults
        if snapshot is not None
    ]
    if isinstance(outcome, LaunchedInstance):
        updates: tuple[Action, ...] = (*_clear_failures(claim, outcome, now, backoff), *unavailable)
        return _record_instance(claim, outcome, now, updates) + Plan(chains=tuple(r.chain for r in reports))
    if is_deleted(claim, outcome):
        return _delete_unlaunchable(claim, outcome.error, now, unavailable, reports)
    return _retry_later(claim, outcome, now, unavailable) + Plan(chains=tuple(r.chain for r in reports))


def is_deleted(claim: NodeClaim, outcome: FailedLaunch) -> bool:
    """Whether a launch with this outcome is not repeated, but its NodeClaim deleted.

    If an object is at fault, another NodePool may serve the pods; a user's own NodeClaim is launched again.
    """
    return type(outcome.error) in _FINAL_ERRORS or (bool(outcome.faults) and labels.NODEPOOL in claim.metadata.labels)


def _record_instance(
    claim: NodeClaim, instance: LaunchedInstance, now: datetime, offering_updates: tuple[Action, ...]
) -> Plan:
    """Restates: karpenter pkg/controllers/nodeclaim/lifecycle/launch.go `PopulateNodeClaimDetails`."""
    status = msgspec.structs.replace(
        claim.status,
        provider_id=instance.provider_id,
        image_id=instance.image_id,
        capacity=dict(instance.capacity),
        allocatable=dict(instance.allocatable),
    )
    annotations = {**claim.metadata.annotations, **instance.annotations}
    annotations.pop(labels.LAUNCH_RETRY, None)
    launched = with_metadata(claim, labels={**instance.labels, **claim.metadata.labels}, annotations=annotations)
    progress = replace(NodeClaimProgress.of(claim, now), claim=msgspec.structs.replace(launched, status=status))
    progress = progress.with_condition("Launched", "True")
    return Plan(
        chains=(
            progress.chain(why="its instance was launched"),
            *_separate_chains(claim.metadata.name, offering_updates),
        )
    )


def _delete_unlaunchable(
    claim: NodeClaim,
    error: Exception,
    now: datetime,
    offering_updates: tuple[Action, ...],
    reports: Sequence[FailureReport],
) -> Plan:
    """Delete a NodeClaim that cannot be launched; its pods are scheduled again."""
    reason, metric = _FINAL_ERRORS.get(type(error), _OBJECT_FAULT)
    name, text = claim.metadata.name, _truncate_message(error)
    actions: tuple[Action, ...] = (
        *offering_updates,
        *(report.action for report in reports),
        delete_nodeclaim(claim, f"launch failed: {text}"),
        Requeue(step=Step.TERMINATE, at=now, reason=f"NodeClaim {name} was deleted"),
    )
    if not isinstance(error, NodeClassNotReadyError):  # else the next plan would only make it again
        actions += (Requeue(step=Step.PROVISION, at=now, reason=f"NodeClaim {name} was not launched: {reason}"),)
    event = Event(ref=claim_ref(claim), reason=reason, message=f"NodeClaim {name} event: {text}", type="Warning")
    samples = (nodeclaim_disrupted(claim, metric), *(report.observation for report in reports))
    return Plan(
        chains=(replace(chain_of(f"NodeClaim {name}", *actions), observations=samples),),
        events=(event, *(event for report in reports for event in report.events)),
    )


def _retry_later(claim: NodeClaim, failed: FailedLaunch, now: datetime, offering_updates: tuple[Action, ...]) -> Plan:
    """Record why the launch failed, and when and under which token the next one happens."""
    error, count = failed.error, failures(claim) + 1
    wait = max(doubled(MIN_RETRY_DELAY, count, MAX_RETRY_DELAY), failed.retry_after)
    if isinstance(error, RateLimitedError):
        wait = max(wait, timedelta(seconds=error.retry_after_seconds))
    due = now + wait
    reason = _condition_reason(error)
    text = str(error) if isinstance(error, CreateError) else _truncate_message(error)
    answered = answered_failures(claim) + failed.answered
    retry = {labels.LAUNCH_RETRY: f"{count} {due.isoformat(timespec='milliseconds')} {answered}"}
    annotated = with_metadata(claim, annotations={**claim.metadata.annotations, **retry})
    progress = replace(NodeClaimProgress.of(claim, now), claim=annotated).with_condition(
        "Launched", "Unknown", reason, text
    )
    name = claim.metadata.name
    requeue = chain_of(f"NodeClaim {name}", _requeue_launch(claim, due))
    return Plan(
        chains=(progress.chain(why=f"launch failed: {reason}"), requeue, *_separate_chains(name, offering_updates))
    )


def _condition_reason(error: Exception) -> str:
    """Return the reason of Launched; throttling has Karpenter's reason on every cloud."""
    if isinstance(error, CreateError):
        return error.condition_reason
    return "RequestLimitExceeded" if isinstance(error, RateLimitedError) else "LaunchFailed"


def _mark_unavailable(
    claim: NodeClaim, outcome: LaunchedInstance | FailedLaunch, now: datetime, backoff: OfferingBackoff
) -> tuple[MarkOfferingUnavailable, ...]:
    offerings = set(outcome.unavailable)
    if isinstance(outcome, FailedLaunch) and isinstance(outcome.error, InsufficientCapacityError):
        offerings |= {OfferingKey(*offering) for offering in outcome.error.offerings}
    of_class = set(outcome.unavailable_for_class) - offerings
    return tuple(
        MarkOfferingUnavailable(
            node_class=claim.spec.node_class_ref.name,
            offerings=tuple(sorted(keys)),
            at=now,
            first=backoff.first,
            longest=backoff.longest,
            reason=reason,
            node_class_only=node_class_only,
        )
        for keys, reason, node_class_only in (
            (offerings, "InsufficientCapacity", False),
            (of_class, "NodeClassUnsupported", True),
        )
        if keys
    )


def _clear_failures(
    claim: NodeClaim, instance: LaunchedInstance, now: datetime, backoff: OfferingBackoff
) -> Iterator[ClearOfferingFailures]:
    """Yield the reset of the offering's failure count, if it has one: the instance was launched from it."""
    if instance.is_confirmed and backoff.previously_failed.intersection(instance.offering.meant_by):
        at = instance.launched_at or now
        yield ClearOfferingFailures(node_class=claim.spec.node_class_ref.name, offering=instance.offering, at=at)


def _separate_chains(name: str, actions: tuple[Action, ...]) -> tuple[Chain, ...]:
    """Return a chain for each action, so that a conflict on the NodeClaim does not stop them."""
    return tuple(chain_of(f"offerings of NodeClaim {name}", action) for action in actions)


def _truncate_message(error: Exception) -> str:
    """Restates: karpenter pkg/controllers/nodeclaim/lifecycle/launch.go `truncateMessage`."""
    text = str(error)
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[: _MAX_MESSAGE_LENGTH - 3]}..."


def _requeue_launch(claim: NodeClaim, due: datetime) -> Requeue:
    return Requeue(step=Step.PROVISION, at=due, reason=f"retry the launch of NodeClaim {claim.metadata.name}")


class _LaunchRetry(NamedTuple):
    """The annotation `launch-retry`: the number of failed launches, when the next is due, and how many the cloud answered."""

    failed: int = 0
    due: datetime | None = None
    answered: int = 0


def _launch_retry(claim: NodeClaim) -> _LaunchRetry:
    """Return the annotation; no failures if it does not parse. Without the third number the cloud answered all of them."""
    fields = claim.metadata.annotations.get(labels.LAUNCH_RETRY, "").split()
    failed, due, answered = (*fields, "", "", "")[:3]
    at = parse_time(due)
    try:
        return _LaunchRetry(int(failed), at, int(answered or failed)) if at is not None else _LaunchRetry()
    except ValueError:
        return _LaunchRetry()
