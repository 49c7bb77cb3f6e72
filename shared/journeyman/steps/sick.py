"""The sick: nodes whose conditions, and machines whose checks, say that they must be replaced. Part of the terminate step.

The cloud's checks are asked for once a minute at most. Who may not ask for them is told so once, and does without.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from journeyman.core.lifecycle.health import impaired, next_look, repair
from journeyman.core.plan import Plan, Step
from journeyman.core.state import InstanceStatus, Snapshot
from journeyman.errors import CloudProviderError
from journeyman.steps.context import RunContext
from journeyman.steps.executor import Applier

CHECKS_PERIOD: Final = timedelta(minutes=1)
"""karpenter-provider-aws pkg/controllers/interruption/instancestatus_controller.go `InstanceStatusInterval`."""


def look_after_the_sick(hand: Applier, snapshot: Snapshot) -> Plan:
    """What is to be done about sick nodes and machines now; the gate NodeRepair is for the former alone, as in Karpenter.

    A machine that is taken down wakes the step again at once; what its node's conditions ask for is left to that run, so
    that nobody is given up, and counted, twice.
    """
    run = hand.run
    statuses = _statuses(run, snapshot)
    if (at := next_look(statuses, snapshot.now, run.settings.impaired_for)) is not None:
        hand.requeue(Step.TERMINATE, at, "a check of an instance will have failed for too long")
    plan = impaired(snapshot, statuses, run.settings.impaired_for)
    if plan.chains or not run.settings.feature_gates.node_repair:
        return plan
    return repair(snapshot, run.cloud.repair_policies)


def _statuses(run: RunContext, snapshot: Snapshot) -> tuple[InstanceStatus, ...]:
    """What the cloud's checks find wrong with our instances; nothing if it was asked a moment ago."""
    memory, now = run.memory, snapshot.now
    ours = {n.provider_id for n in snapshot.state_nodes if n.claim is not None and n.provider_id}
    if not ours or memory.checks_refused or (memory.checks_due is not None and now < memory.checks_due):
        return ()
    memory.checks_due = now + CHECKS_PERIOD
    try:
        found = tuple(s for s in run.cloud.statuses() if s.provider_id in ours)
    except CloudProviderError as error:
        memory.checks_refused = not error.retryable
        later = "this process asks no more" if memory.checks_refused else "asked again in a minute"
        fields = {key: str(value) for key, value in error.context.items()}
        run.telemetry.log("warning", f"instances' checks are not known, {later}: {error.message}", **fields)
        return ()
    ends = next_look(found, now, run.settings.impaired_for)
    memory.checks_due = min(ends or memory.checks_due, memory.checks_due)
    return found
