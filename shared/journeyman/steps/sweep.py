"""Sweep: every minute, look at little and send messages only. What any lost message would have done is found here.

It also hands on wake-ups that waited in a delay queue: a message whose step is another one is sent to that step's lane.
It takes no fence: two sweeps at once send a few messages twice, and those are harmless.
"""

from __future__ import annotations

from datetime import datetime

from journeyman.core.plan import Step
from journeyman.ports import Message, Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.due import due_steps
from journeyman.steps.executor import Applier
from journeyman.steps.load import GLANCE, load


def sweep(run: RunContext, trigger: Trigger) -> Outcome:
    """Send a message to every step that is due, or hand a wake-up on.

    Args:
        run: The cluster's connections.
        trigger: A schedule's, or a wake-up for another step; then `details` may have `step`, and `at` if it is not due.

    Raises:
        KubeAPIError: The cluster could not be read; the next sweep looks again.
        CloudProviderError: A wake-up could not be handed on; it comes back.
    """
    step = Step(trigger.details.get("step", trigger.step))
    if trigger.source == "wake" and step is not Step.SWEEP:
        return _hand_on(run, trigger, step)
    hand = Applier(run, Step.SWEEP)
    static_capacity = run.settings.feature_gates.static_capacity
    for wake in due_steps(load(run, GLANCE), static_capacity=static_capacity):
        hand.wake(wake.step, wake.at, wake.reason)
        hand.note(f"{wake.step.value} is due: {wake.reason}")
    hand.send_wakes()
    return hand.outcome()


def _hand_on(run: RunContext, trigger: Trigger, step: Step) -> Outcome:
    at = trigger.details.get("at")
    late = isinstance(at, datetime) and at > run.clock.now()
    run.queue.send([Message(cluster=run.cluster, step=step, reason=trigger.reason, at=at if late else None)])
    return Outcome(step=Step.SWEEP, cluster=run.cluster, notes=(f"handed on: {step.value}, {trigger.reason}",))
