"""Sweep: every minute, find the steps that are due from a few objects, and send messages only.

What any lost message would have started is found here. It takes no Lease: two sweeps at once send a few messages twice, and
those are harmless.
"""

from __future__ import annotations

from journeyman.core.plan import Step
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.due import due_steps
from journeyman.steps.executor import Applier
from journeyman.steps.load import GLANCE, load


def sweep(run: RunContext, trigger: Trigger) -> Outcome:
    """Send a message to every step that is due.

    Raises:
        KubeAPIError: The cluster could not be read; the next sweep tries again.
    """
    hand = Applier(run, Step.SWEEP)
    static_capacity = run.settings.feature_gates.static_capacity
    for requeue in due_steps(load(run, GLANCE), static_capacity=static_capacity):
        hand.requeue(requeue.step, requeue.at, requeue.reason)
        hand.note(f"{requeue.step.value} is due: {requeue.reason}")
    hand.send_requeues()
    return hand.outcome()
