"""Interrupt: deletes the NodeClaim of an instance that the cloud interrupts, cordons its node, and requeues other steps.

It also stores the state of an alarm that pauses disruption (`core.disruption.circuit_breaker`).

The cloud does not repeat an interruption that was acknowledged. So the step raises an error unless it handled the
interruption in full, and the queue delivers the message again. Many interruptions arrive at once when Spot capacity is
reclaimed, and must not wait for each other: the step runs without a Lease, because each of its writes is safe to repeat,
also in parallel with other steps.

The event may name an instance that was just launched and that is in no NodeClaim's status yet. While NodeClaims without an
instance exist, the step lists the cloud's instances, whose tags name their NodeClaims.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.lifecycle.failed_registrations import ended_registrations, record_failed_registrations
from journeyman.core.lifecycle.interruption import (
    InterruptionKind,
    handle_interruption,
    instance_id,
    may_concern_unrecorded_instance,
)
from journeyman.core.lifecycle.launch import OfferingBackoff
from journeyman.core.lifecycle.liveness import LivenessTimeouts, ends_early, is_awaiting_node
from journeyman.core.lifecycle.nodepool_status import registration_outcomes, update_nodepool_counts
from journeyman.core.plan import Plan, Step
from journeyman.core.state import Snapshot
from journeyman.errors import JourneymanError, MalformedEventError
from journeyman.ports import AlarmChanged, Interruption, Trigger
from journeyman.steps.context import DONE, Outcome, RunContext
from journeyman.steps.end_reasons import read_end_reasons
from journeyman.steps.load import NODES_AND_CLAIMS, Scope, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

WITH_NODEPOOLS: Final = Scope(nodes=True, pools=True)
"""For rebalance recommendations: an annotation of the NodePool says whether its nodes are replaced. For instances that end before
their node has joined: it is their NodePool's fault, unless the cloud says another reason."""
_ENDING: Final = (
    InterruptionKind.SCHEDULED_CHANGE,
    InterruptionKind.INSTANCE_STATUS,
    InterruptionKind.SYSTEM_STATUS,
    InterruptionKind.EVENT_STATUS,
)
_ENDED: Final = (InterruptionKind.INSTANCE_STOPPED, InterruptionKind.INSTANCE_TERMINATED)


def interrupt(run: RunContext, trigger: Trigger) -> Outcome:
    """Handle one interruption, or one state of an alarm, for one cluster.

    Raises:
        MalformedEventError: The trigger is neither.
        JourneymanError: The interruption was not handled in full; the message must be delivered again.
    """
    if isinstance(trigger, AlarmChanged):
        return _record_alarm(run, trigger)
    interruption = _interruption(trigger)
    outcome = run_step(run, INTERRUPT, interruption)
    if outcome.status != DONE or outcome.counts.get("errors"):
        raise JourneymanError(
            "the interruption was not handled in full; its message must be delivered again",
            kind=interruption.kind.value,
            instances=", ".join(interruption.instance_ids),
            notes="; ".join((*outcome.notes, *([str(outcome.error)] if outcome.error else []))),
        ) from outcome.error
    return outcome


def _record_alarm(run: RunContext, trigger: AlarmChanged) -> Outcome:
    outcome = run_step(run, RECORD_ALARM, trigger)
    if outcome.status != DONE or outcome.counts.get("errors") or outcome.counts.get("conflicts"):
        raise JourneymanError(
            "the alarm's state was not stored in every NodePool; its message must be delivered again",
            alarm=trigger.alarm,
            notes="; ".join(outcome.notes),
        ) from outcome.error
    return outcome


def _interruption(trigger: Trigger) -> Interruption:
    if not isinstance(trigger, Interruption):
        raise MalformedEventError("the trigger is not an interruption", id=trigger.id, reason=trigger.reason)
    return trigger


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    interruption = _interruption(trigger)
    needs_pools = interruption.kind in (InterruptionKind.REBALANCE_RECOMMENDATION, *_ENDED, *_ENDING)
    snapshot = load(run, WITH_NODEPOOLS if needs_pools else NODES_AND_CLAIMS)
    instances = run.cloud.list() if may_concern_unrecorded_instance(snapshot, interruption.instance_ids) else ()
    reasons = read_end_reasons(run, _ended_early(snapshot, interruption))
    return StepInputs.of(run, trigger, snapshot, instances=instances, end_reasons=reasons)


def _ended_early(snapshot: Snapshot, interruption: Interruption) -> frozenset[str]:
    """Return the provider ids of the message's instances that ended before their node joined, or soon after that.

    Some clouds announce the failure of a new instance as a system event.
    """
    ids = frozenset(interruption.instance_ids if interruption.kind in (*_ENDED, *_ENDING) else ())
    ended = (c for c in snapshot.claims if instance_id(c.status.provider_id) in ids)
    return frozenset(
        c.status.provider_id
        for c in ended
        if is_awaiting_node(c) or (interruption.kind in _ENDED and ends_early(c, snapshot.now))
    )


def _load_nodepools(run: RunContext, trigger: Trigger) -> StepInputs:
    return StepInputs.of(run, trigger, load(run, Scope(pools=True)))


def _store_alarm(inputs: StepInputs) -> Plan:
    from journeyman.core.disruption.circuit_breaker import Alarm, record_alarm  # noqa: PLC0415 - no interruption needs it

    trigger = inputs.trigger
    assert isinstance(trigger, AlarmChanged)  # noqa: S101 - only `_record_alarm` runs this definition
    return record_alarm(inputs.snapshot, Alarm(name=trigger.alarm, is_firing=trigger.is_firing, at=trigger.time))


def _record_failed_registrations(inputs: StepInputs) -> Plan:
    """Record whose fault it is that instances ended early, before their NodeClaims are deleted."""
    loaded, settings = inputs.loaded, inputs.settings
    ended = _ended_early(loaded, _interruption(inputs.trigger))
    backoff = OfferingBackoff(first=settings.unavailable_for, longest=settings.unavailable_longest)
    return record_failed_registrations(loaded, ended_registrations(loaded, ended, inputs.end_reasons), backoff)


def _count_failed_registrations(inputs: StepInputs) -> Plan:
    """Count the NodeClaims whose instances ended early for NodeRegistrationHealthy."""
    loaded = inputs.loaded
    ended = _ended_early(loaded, _interruption(inputs.trigger))
    if not ended:
        return Plan()
    written = inputs.written
    outcomes = registration_outcomes(loaded, written.claims, LivenessTimeouts(), ended, refused=written.launch_faults)
    return update_nodepool_counts(loaded, outcomes) if outcomes else Plan()


def _delete_claims(inputs: StepInputs) -> Plan:
    interruption = _interruption(inputs.trigger)
    return handle_interruption(
        inputs.snapshot,
        kind=interruption.kind,
        instance_ids=interruption.instance_ids,
        event_time=interruption.time,
        unavailable_for=inputs.settings.unavailable_for,
        launched=inputs.instances,
    )


INTERRUPT: Final = StepDefinition(
    name=Step.INTERRUPT,
    load=_load,
    reconcilers=tuple(
        Reconciler(decide, needs_catalogue=False)
        for decide in (_record_failed_registrations, _delete_claims, _count_failed_registrations)
    ),
    requeues=Step.TERMINATE,  # a conflict of the cordon is mended there; others only lose a count
    fenced=False,
)

RECORD_ALARM: Final = StepDefinition(
    name=Step.INTERRUPT,
    load=_load_nodepools,
    reconcilers=(Reconciler(_store_alarm, needs_catalogue=False),),
    requeues=None,  # the alarm's message is delivered again
    fenced=False,
)
