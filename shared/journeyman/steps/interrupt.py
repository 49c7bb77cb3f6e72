"""Interrupt: deletes the NodeClaim of an instance that the cloud interrupts, cordons its node, and requeues other steps.

The cloud does not repeat an interruption that was acknowledged. So the step raises an error unless it handled the
interruption in full, and the queue delivers the message again. Many interruptions arrive at once when Spot capacity is
reclaimed, and must not wait for each other: the step runs without a Lease, because each of its writes is safe to repeat,
also in parallel with other steps.

The event may name an instance that was just launched and that is in no NodeClaim's status yet. While NodeClaims without an
instance exist, the step lists the cloud's instances, whose tags name their NodeClaims.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.lifecycle.interruption import (
    InterruptionKind,
    handle_interruption,
    may_concern_unrecorded_instance,
)
from journeyman.core.plan import Plan, Step
from journeyman.errors import JourneymanError, MalformedEventError
from journeyman.ports import Interruption, Trigger
from journeyman.steps.context import DONE, Outcome, RunContext
from journeyman.steps.load import NODES_AND_CLAIMS, Scope, load
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Reconciler, StepDefinition, run_step

WITH_NODEPOOLS: Final = Scope(nodes=True, pools=True)
"""For rebalance recommendations: an annotation of the NodePool says whether its nodes are replaced."""


def interrupt(run: RunContext, trigger: Trigger) -> Outcome:
    """Handle one interruption for one cluster.

    Raises:
        MalformedEventError: The trigger is not an interruption.
        JourneymanError: The interruption was not handled in full; the message must be delivered again.
    """
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


def _interruption(trigger: Trigger) -> Interruption:
    if not isinstance(trigger, Interruption):
        raise MalformedEventError("the trigger is not an interruption", id=trigger.id, reason=trigger.reason)
    return trigger


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    interruption = _interruption(trigger)
    is_recommendation = interruption.kind is InterruptionKind.REBALANCE_RECOMMENDATION
    snapshot = load(run, WITH_NODEPOOLS if is_recommendation else NODES_AND_CLAIMS)
    instances = run.cloud.list() if may_concern_unrecorded_instance(snapshot, interruption.instance_ids) else ()
    return StepInputs.of(run, trigger, snapshot, instances=instances)


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
    reconcilers=(Reconciler(_delete_claims, needs_catalogue=False),),
    requeues=Step.TERMINATE,  # only the cordon can meet a conflict, and terminate cordons as well
    fenced=False,
)
