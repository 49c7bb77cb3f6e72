"""Launch the instances of a plan together, and write what the cloud answers into each claim at once.

Claims of limited NodePools are launched only if all that were opened meanwhile stay within the limits (`lifecycle.room`).
Outcomes are written as they come: a run that dies in the middle leaves claims whose instances carry their name as a
tag and their UID as client token, so the next run finds them instead of launching twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NODECLAIM, NodeClaim
from journeyman.core.lifecycle.hydration import hydrated
from journeyman.core.lifecycle.launch import Avoidance, FailedLaunch, LaunchedInstance, after_launch
from journeyman.core.lifecycle.limits import room_for
from journeyman.core.lifecycle.progress import claim_patches
from journeyman.core.plan import Chain, Observation, Plan, Step, chain_of
from journeyman.core.state import Snapshot
from journeyman.errors import (
    DeadlineError,
    InsufficientCapacityError,
    JourneymanError,
    LeaseLostError,
    NodeClassNotReadyError,
)
from journeyman.ports import Launched, LaunchFailed, LaunchOutcome, LaunchRequest
from journeyman.steps.scheduling_inputs import SchedulingInputs

if TYPE_CHECKING:
    from journeyman.steps.executor import Applier


SETTLES: Final = timedelta(seconds=5)
"""By so much the cloud's clock may differ from ours."""


class PendingLaunch(Struct, frozen=True, kw_only=True):
    """A claim to launch, and what its chain does once it runs."""

    claim: str
    rest: Chain


def launch_together(hand: Applier, claims: Sequence[str], world: SchedulingInputs) -> Iterator[str]:
    """Launch the instances of these claims, and write each answer as it comes.

    Yields:
        The claims that have an instance now, as they get it.

    Raises:
        LeaseLostError: Another run holds the step. Instances that run already are found by its next run.
    """
    avoidance = _avoidance(hand, world)
    for outcome in _outcomes(hand, _with_room(hand, claims, world), world):
        claim = hand.claim(outcome.claim, world)
        try:
            if claim is not None:
                _answer(hand, claim, outcome, avoidance)
        finally:
            _look_after_unwritten(hand, outcome, world)
        if claim is not None and isinstance(outcome, Launched):
            yield outcome.claim


def _with_room(hand: Applier, names: Sequence[str], world: SchedulingInputs) -> Sequence[str]:
    """Those that may be launched as far as limits go; asks for the claims once more if one of their pools has any."""
    limited = {pool.metadata.name for pool in world.snapshot.node_pools if pool.spec.limits}
    asked = (claim for name in names if (claim := hand.claim(name, world)) is not None)
    if not any(_pool_of(claim) in limited for claim in asked):
        return names
    room = room_for(names, _looked_again(hand, world.snapshot, limited), world.catalogue)
    hand.carry_out(room.plan)
    return [name for name in names if name not in room.held]


def _looked_again(hand: Applier, snapshot: Snapshot, pools: Container[str]) -> Snapshot:
    """The snapshot with the claims of these pools as they are now; what this run itself wrote is among them for sure."""
    claims = {c.metadata.name: c for c in snapshot.claims if _pool_of(c) not in pools}
    claims |= {name: c for name, c in hand.effects.claims.items() if c is not None}
    claims |= {c.metadata.name: c for c in hand.run.store.list(NODECLAIM).items if _pool_of(c) in pools}
    deleted = {name for name, claim in hand.effects.claims.items() if claim is None}
    return snapshot.with_claims(c for name, c in claims.items() if name not in deleted)


def _pool_of(claim: NodeClaim) -> str:
    return claim.metadata.labels.get(labels.NODEPOOL, "")


def _outcomes(hand: Applier, names: Sequence[str], world: SchedulingInputs) -> Iterator[LaunchOutcome]:
    """One outcome for each claim that still exists, those that cannot be asked for first."""
    requests: list[LaunchRequest] = []
    for name in names:
        claim = _protected(hand, name, world)
        if claim is None:
            continue
        request = _request(claim, world)
        if isinstance(request, LaunchRequest):
            requests.append(request)
        else:
            yield request
    yield from _asked(hand, requests)


def _asked(hand: Applier, requests: Sequence[LaunchRequest]) -> Iterator[LaunchOutcome]:
    """What the cloud answers; if the call as a whole fails, that is the answer for every claim left.

    Raises:
        LeaseLostError: Another run holds the step; no further launch is begun.
        DeadlineError: Not enough time is left for further launches; the next run begins them.
    """
    waiting = {request.claim.metadata.name for request in requests}
    try:
        if waiting:
            _check(hand)
        for outcome in hand.run.cloud.launch(requests) if requests else ():
            waiting.discard(outcome.claim)
            yield outcome
            if waiting:
                _check(hand)
    except (LeaseLostError, DeadlineError):
        raise
    except JourneymanError as error:
        for name in sorted(waiting):
            yield LaunchFailed(claim=name, error=error)


def _check(hand: Applier) -> None:
    """Before another launch is begun: the cloud's answer will come in time, and nobody else has the step."""
    run = hand.run
    if run.deadline - run.settings.deadline_margin - run.clock.now() < run.settings.launch_patience:
        raise DeadlineError("the time that is left is too short for another launch", step=hand.step.value)
    run.lease.check()


def _protected(hand: Applier, name: str, world: SchedulingInputs) -> NodeClaim | None:
    """The claim with the finalizer that keeps its instance from leaking; None if it could not be protected."""
    claim = hand.claim(name, world)
    if claim is None or labels.TERMINATION_FINALIZER in claim.metadata.finalizers:
        return claim
    patches = claim_patches(claim, hydrated(claim), "protect the claim before its launch")
    hand.carry_out(Plan(chains=(chain_of(f"NodeClaim {name}", *patches),)))
    claim = hand.claim(name, world)
    protected = claim is not None and labels.TERMINATION_FINALIZER in claim.metadata.finalizers
    return claim if protected else None


def _request(claim: NodeClaim, world: SchedulingInputs) -> LaunchRequest | LaunchFailed:
    node_class = world.node_class(claim)
    name, ref = claim.metadata.name, claim.spec.node_class_ref
    if node_class is None or node_class.deleting:
        gone = NodeClassNotReadyError(f"{ref.kind} {ref.name} does not exist or is being deleted")
        return LaunchFailed(claim=name, error=gone)
    if not node_class.ready:
        why = node_class.message or node_class.reason
        return LaunchFailed(claim=name, error=NodeClassNotReadyError(f"{ref.kind} {ref.name} is not ready: {why}"))
    if node_class.name in world.failures:
        return LaunchFailed(claim=name, error=world.failures[node_class.name])
    types = world.catalogue.instance_types(claim.metadata.labels.get(labels.NODEPOOL, ""))
    return LaunchRequest(
        claim=claim, node_class=node_class, instance_types=types or world.by_node_class.get(node_class.name, ())
    )


def _avoidance(hand: Applier, world: SchedulingInputs) -> Avoidance:
    settings, snapshot = hand.run.settings, world.snapshot
    return Avoidance(
        first=settings.unavailable_for,
        longest=settings.unavailable_longest,
        remembered=frozenset((u.instance_type, u.zone, u.capacity_type) for u in snapshot.unavailable),
    )


def _answer(hand: Applier, claim: NodeClaim, outcome: LaunchOutcome, avoidance: Avoidance) -> None:
    now = hand.run.clock.now()
    hand.carry_out(after_launch(claim, _as_value(outcome), now, avoidance))
    if isinstance(outcome, Launched):
        hand.count("launched")
        made = outcome.instance
        offering = f"{made.instance_type} in {made.zone}, {made.capacity_type}, {outcome.price:.4f} per hour"
        hand.note(f"launched NodeClaim {outcome.claim}: {offering}", "launched nodeclaim", **_log_fields(outcome))
    else:
        hand.count("launches failed")
        _tell_failure(hand, outcome)
    for instance_type, zone, capacity_type in outcome.unavailable:
        values = {"instance_type": instance_type, "zone": zone, "capacity_type": capacity_type}
        hand.run.telemetry.observe(Observation(name="journeyman_offerings_refused_total", labels=values))


def _look_after_unwritten(hand: Applier, outcome: LaunchOutcome, world: SchedulingInputs) -> None:
    """If an instance could not be written down: its claim may have gone while it was launched, and it is nobody's.

    Who let the claim go found no instance yet; in a cluster without claims garbage is looked for rarely. So is it if
    another run has the step by now, since it may have given the claim up.
    """
    if not isinstance(outcome, Launched):
        return
    claim = hand.claim(outcome.claim, world)
    if claim is None or claim.status.provider_id != outcome.instance.provider_id:
        at = hand.run.clock.now() + hand.run.settings.orphan_age + SETTLES
        hand.requeue(Step.TERMINATE, at, f"instance {outcome.instance.provider_id} may be without a claim")


def _tell_failure(hand: Applier, outcome: LaunchFailed) -> None:
    """What, which claim, and what happens next; AWS's own code and the like are fields."""
    error, name = outcome.error, outcome.claim
    given_up = isinstance(error, InsufficientCapacityError | NodeClassNotReadyError)
    text = f"gave up NodeClaim {name}, its pods are planned anew" if given_up else f"NodeClaim {name} is launched again"
    message = error.message if isinstance(error, JourneymanError) else str(error)
    context = {key: str(value) for key, value in getattr(error, "context", {}).items()}
    fields: dict[str, Any] = {**context, "NodeClaim": {"name": name}, "error": type(error).__name__}
    hand.note(f"{text}: {error}", f"{text}: {message}", level="warning", **fields)


def _as_value(outcome: LaunchOutcome) -> LaunchedInstance | FailedLaunch:
    if isinstance(outcome, LaunchFailed):
        return FailedLaunch(
            error=outcome.error,
            unavailable=outcome.unavailable,
            answered=outcome.answered,
            retry_after=outcome.retry_after,
        )
    made = outcome.instance
    return LaunchedInstance(
        provider_id=made.provider_id,
        image_id=made.image_id,
        labels=outcome.labels,
        annotations=outcome.annotations,
        capacity=outcome.capacity,
        allocatable=outcome.allocatable,
        offering=(made.instance_type, made.zone, made.capacity_type),
        launched_at=made.launched_at,
        unavailable=outcome.unavailable,
    )


def _log_fields(outcome: Launched) -> dict[str, Any]:
    instance = outcome.instance
    return {
        "NodeClaim": {"name": outcome.claim},
        "provider-id": instance.provider_id,
        "instance-type": instance.instance_type,
        "zone": instance.zone,
        "capacity-type": instance.capacity_type,
        "allocatable": dict(outcome.allocatable),
        "price-per-hour": outcome.price,
    }
