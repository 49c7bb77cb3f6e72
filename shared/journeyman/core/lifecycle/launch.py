"""Launch: from a NodeClaim to an instance, and from what the cloud answered to what the claim says.

Intent before effect: a claim carries the termination finalizer before its instance exists, so no instance can leak.
The claim's UID is the client token, so launching twice makes one instance.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/launch.go, pkg/controllers/nodeclaim/lifecycle/controller.go
`finalize`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, condition_of
from journeyman.core.lifecycle.hydration import with_finalizer_and_labels
from journeyman.core.lifecycle.progress import NodeClaimProgress, claim_ref, delete_nodeclaim, with_metadata
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
)
from journeyman.core.state.nodeclaim_metrics import nodeclaim_disrupted
from journeyman.errors import (
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    RateLimitedError,
)

MAX_MESSAGE: Final = 300  # launch.go `truncateMessage`
MIN_RETRY_DELAY: Final = timedelta(seconds=1)  # controller.go: exponential 1 s to 1 min
MAX_RETRY_DELAY: Final = timedelta(minutes=1)

Offerings = tuple[tuple[str, str, str], ...]


class LaunchedInstance(Struct, frozen=True, kw_only=True):
    """What the cloud says of an instance that it launched for a claim."""

    provider_id: str
    image_id: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    offering: tuple[str, str, str] = ("", "", "")  # instance type, zone, capacity type
    launched_at: datetime | None = None  # long ago if an earlier run launched it
    unavailable: Offerings = ()


class OfferingBackoff(Struct, frozen=True, kw_only=True):
    """How long an offering that was refused is avoided: the first time, and at most if it is refused again and again.

    `remembered` are the offerings whose failures are remembered, whether they are avoided now or not any more.
    """

    first: timedelta = timedelta(minutes=3)  # karpenter-provider-aws pkg/cache/cache.go `UnavailableOfferingsTTL`
    longest: timedelta = timedelta(hours=1)
    remembered: frozenset[tuple[str, str, str]] = frozenset()


class FailedLaunch(Struct, frozen=True, kw_only=True):
    """Why the cloud launched nothing, the offerings it refused, and whether that is its answer to this very launch."""

    error: Exception
    unavailable: Offerings = ()
    answered: bool = False
    retry_after: timedelta = timedelta(0)  # at least


def is_pending(claim: NodeClaim) -> bool:
    """Whether the claim still needs its instance."""
    launched = condition_of(claim.status.conditions, "Launched")
    undecided = launched is None or launched.status == "Unknown"
    return claim.metadata.deletion_timestamp is None and not claim.status.provider_id and undecided


def launch_nodeclaims(claims: Iterable[NodeClaim], now: datetime) -> Plan:
    """Launch every claim that has no instance yet and whose back-off is over; wake up for those that wait.

    Covers claims whose run was cut off between create and launch, hand-made ones, and retries.
    """
    plan = Plan()
    for claim in claims:
        if not is_pending(claim):
            continue
        due = retry_at(claim)
        if due is not None and due > now:
            plan += Plan(chains=(chain_of(f"NodeClaim {claim.metadata.name}", _requeue_launch(claim, due)),))
            continue
        launch = LaunchInstance(claim=claim.metadata.name, why="the claim has no instance yet")
        progress = replace(NodeClaimProgress.of(claim, now), claim=with_finalizer_and_labels(claim))
        plan += Plan(chains=(progress.chain(launch, why="protect the claim before its launch"),))
    return plan


def withdraw_nodeclaim(claim: NodeClaim, reason: str, why: str, now: datetime) -> Chain:
    """Delete a claim that is not to be launched any more. Its pods are planned again; an Event says `reason` and why."""
    name = claim.metadata.name
    chain = chain_of(
        f"NodeClaim {name}",
        delete_nodeclaim(claim, why),
        *(
            Requeue(step=step, at=now, reason=f"NodeClaim {name} was withdrawn")
            for step in (Step.TERMINATE, Step.PROVISION)
        ),
    )
    text = f"{why}; the claim is deleted before it is launched"
    return replace(chain, events=(Event(ref=claim_ref(claim), reason=reason, message=text, type="Warning"),))


def answered_failures(claim: NodeClaim) -> int:
    """How many launches of the claim the cloud has answered with a failure; a new attempt needs a new token each time.

    A launch without an answer may have happened, so the attempts after it must ask with the same token until there is one.
    """
    return _retry_state(claim)[2]


def failures(claim: NodeClaim) -> int:
    """How many attempts to launch the claim have failed, whether answered or not."""
    return _retry_state(claim)[0]


def retry_at(claim: NodeClaim) -> datetime | None:
    """When a failed launch may be tried again; None if it never failed or its annotation does not parse."""
    return _retry_state(claim)[1]


def record_launch(
    claim: NodeClaim, outcome: LaunchedInstance | FailedLaunch, now: datetime, avoidance: OfferingBackoff
) -> Plan:
    """What to write once the cloud has answered.

    Args:
        claim: The claim as it is stored now.
        outcome: The instance, or why there is none.
        now: The time.
        avoidance: How long refused offerings are avoided.

    Returns:
        The claim's new status and labels, or its deletion with the offerings to avoid and a requeue of provisioning.
    """
    remember = _mark_unavailable(claim, outcome, now, avoidance)
    if isinstance(outcome, LaunchedInstance):
        return _succeeded(claim, outcome, now, (*_clear_failures(claim, outcome, now, avoidance), *remember))
    if isinstance(outcome.error, InsufficientCapacityError | NodeClassNotReadyError):
        return _delete_unlaunchable(claim, outcome.error, now, remember)
    return _retry_later(claim, outcome, now, remember)


def _succeeded(claim: NodeClaim, instance: LaunchedInstance, now: datetime, remember: tuple[Action, ...]) -> Plan:
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
        chains=(progress.chain(why="its instance was launched"), *_separate_chains(claim.metadata.name, remember))
    )


def _delete_unlaunchable(claim: NodeClaim, error: Exception, now: datetime, remember: tuple[Action, ...]) -> Plan:
    """No capacity, or a NodeClass that cannot be used: drop the claim, so that its pods are planned again."""
    no_capacity = isinstance(error, InsufficientCapacityError)
    reason = "InsufficientCapacityError" if no_capacity else "NodeClassNotReady"
    metric = "insufficient_capacity" if no_capacity else "nodeclass_not_ready"
    name, text = claim.metadata.name, str(error)[:MAX_MESSAGE]
    actions: tuple[Action, ...] = (
        *remember,
        delete_nodeclaim(claim, f"launch failed: {text}"),
        Requeue(step=Step.TERMINATE, at=now, reason=f"NodeClaim {name} was deleted"),
    )
    if no_capacity:
        actions += (Requeue(step=Step.PROVISION, at=now, reason=f"no capacity for NodeClaim {name}"),)
    event = Event(ref=claim_ref(claim), reason=reason, message=f"NodeClaim {name} event: {text}", type="Warning")
    return Plan(
        chains=(replace(chain_of(f"NodeClaim {name}", *actions), observations=(nodeclaim_disrupted(claim, metric),)),),
        events=(event,),
    )


def _retry_later(claim: NodeClaim, failed: FailedLaunch, now: datetime, remember: tuple[Action, ...]) -> Plan:
    error, count = failed.error, failures(claim) + 1
    wait = max(min(MIN_RETRY_DELAY * 2 ** min(count - 1, 10), MAX_RETRY_DELAY), failed.retry_after)
    if isinstance(error, RateLimitedError):
        wait = max(wait, timedelta(seconds=error.retry_after_seconds))
    due = now + wait
    reason = _condition_reason(error)
    text = str(error)[:MAX_MESSAGE]
    answered = answered_failures(claim) + failed.answered
    mark = {labels.LAUNCH_RETRY: f"{count} {due.isoformat(timespec='milliseconds')} {answered}"}
    noted = with_metadata(claim, annotations={**claim.metadata.annotations, **mark})
    progress = replace(NodeClaimProgress.of(claim, now), claim=noted).with_condition(
        "Launched", "Unknown", reason, text
    )
    name = claim.metadata.name
    wake = chain_of(f"NodeClaim {name}", _requeue_launch(claim, due))
    return Plan(chains=(progress.chain(why=f"launch failed: {reason}"), wake, *_separate_chains(name, remember)))


def _condition_reason(error: Exception) -> str:
    """Throttling keeps the name that Karpenter has for it, whatever the cloud calls it."""
    if isinstance(error, CreateError):
        return error.condition_reason
    return "RequestLimitExceeded" if isinstance(error, RateLimitedError) else "LaunchFailed"


def _mark_unavailable(
    claim: NodeClaim, outcome: LaunchedInstance | FailedLaunch, now: datetime, avoidance: OfferingBackoff
) -> tuple[MarkOfferingUnavailable, ...]:
    offerings = set(outcome.unavailable)
    if isinstance(outcome, FailedLaunch) and isinstance(outcome.error, InsufficientCapacityError):
        offerings |= set(outcome.error.offerings)
    if not offerings:
        return ()
    return (
        MarkOfferingUnavailable(
            node_class=claim.spec.node_class_ref.name,
            offerings=tuple(sorted(offerings)),
            at=now,
            first=avoidance.first,
            longest=avoidance.longest,
            reason="InsufficientCapacity",
        ),
    )


def _clear_failures(
    claim: NodeClaim, instance: LaunchedInstance, now: datetime, avoidance: OfferingBackoff
) -> Iterator[ClearOfferingFailures]:
    """What it was launched as can be had again, should it have failed before."""
    _, zone, capacity_type = instance.offering
    if avoidance.remembered & {instance.offering, ("*", zone, capacity_type)}:
        at = instance.launched_at or now
        yield ClearOfferingFailures(node_class=claim.spec.node_class_ref.name, offering=instance.offering, at=at)


def _separate_chains(name: str, actions: tuple[Action, ...]) -> tuple[Chain, ...]:
    """In a chain of their own, so that a conflict on the claim does not lose them."""
    return tuple(chain_of(f"what NodeClaim {name} was offered", action) for action in actions)


def _requeue_launch(claim: NodeClaim, due: datetime) -> Requeue:
    return Requeue(step=Step.PROVISION, at=due, reason=f"retry the launch of NodeClaim {claim.metadata.name}")


def _retry_state(claim: NodeClaim) -> tuple[int, datetime | None, int]:
    """Failures so far, when the next attempt is due, and how many of the failures the cloud answered with.

    An annotation that does not parse counts as none; without the last number all failures were answers.
    """
    failures, due, answered = (*claim.metadata.annotations.get(labels.LAUNCH_RETRY, "").split(), "", "", "")[:3]
    try:
        at = datetime.fromisoformat(due.replace("Z", "+00:00"))
        return int(failures), at if at.tzinfo is not None else None, int(answered or failures)
    except ValueError:
        return 0, None, 0
