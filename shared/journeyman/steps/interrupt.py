"""Interrupt: an instance of ours goes away, or might. Delete its NodeClaim, cordon its node, wake who goes on.

A notice is an event, not a wish to look again: nobody repeats it once it is acknowledged. So whatever is not carried
out in full is raised, and the queue delivers the notice again. Many notices arrive at once when Spot capacity is taken
back, and must not wait for each other: this step runs without a fence, as each of its writes is safe to repeat and
safe beside any other step's.

A notice may name an instance that was launched a moment ago, so that no claim knows it yet: while claims await theirs, the
cloud is asked for whom it was launched.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue
from journeyman.core.lifecycle.interruption import InterruptionKind, awaits_instances, interrupt_claims
from journeyman.core.plan import Step
from journeyman.errors import JourneymanError, MalformedEventError
from journeyman.ports import Interruption, Trigger
from journeyman.steps.context import DONE, Outcome, RunContext
from journeyman.steps.executor import Applier, run_step
from journeyman.steps.load import FLEET, Scope, load
from journeyman.steps.scheduling_inputs import SchedulingInputs

ADVISED: Final = Scope(nodes=True, pools=True)
"""For recommendations: NodePools say whether they are acted upon."""


class Unfenced:
    """A `ports.Lease` that anybody may hold at any time."""

    def acquire(self) -> None:
        """Nothing to take."""

    def check(self) -> None:
        """Never lost."""

    def release(self) -> None:
        """Nothing to give back."""


def interrupt(run: RunContext, trigger: Trigger) -> Outcome:
    """Handle one notice for one cluster.

    Raises:
        MalformedEventError: The trigger is not an interruption.
        JourneymanError: Not all could be carried out; redelivery helps, and repeats nothing that was done.
    """
    if not isinstance(trigger, Interruption):
        raise MalformedEventError("the trigger is not an interruption", id=trigger.id, reason=trigger.reason)
    kind, instance_ids = trigger.kind, trigger.instance_ids

    def work(hand: Applier) -> None:
        snapshot = load(hand.run, ADVISED if kind is InterruptionKind.REBALANCE_RECOMMENDATION else FLEET)
        fresh = hand.run.cloud.list() if awaits_instances(snapshot, instance_ids) else ()
        plan = interrupt_claims(
            snapshot,
            kind=kind,
            instance_ids=instance_ids,
            event_time=trigger.time,
            unavailable_for=run.settings.unavailable_for,
            fresh=fresh,
        )
        hand.apply(plan, SchedulingInputs(snapshot=snapshot, catalogue=Catalogue({}), by_node_class={}))

    # What a conflict leaves undone is the cordon, and the drain does that too: it is terminate that is woken for it.
    outcome = replace(run_step(replace(run, lease=Unfenced()), Step.TERMINATE, work), step=Step.INTERRUPT)
    if outcome.status != DONE or outcome.counts.get("errors"):
        raise JourneymanError(
            "the interruption was not handled in full; the notice must come back",
            kind=kind.value,
            instances=", ".join(instance_ids),
            notes="; ".join(outcome.notes),
        )
    return outcome
