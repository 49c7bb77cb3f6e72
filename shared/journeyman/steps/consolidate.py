"""Consolidate: give nodes back that are not needed, one careful command after another.

::

    heal marks nobody answers for ─► move Executing commands on ─► who is consolidatable now
       ─► are all claims launched? ─no─► look again later
          └yes─► a Proposed command? ─yes─► 15 s old? validate, then execute or reject
                                      └no─► rebalance, emptiness, single-node consolidation ─► propose

One command at most is being proposed at a time; commands that execute go on beside it, and their nodes count against
the budgets. A rebalance is validated without delay, as its nodes may be taken back at any time. Every run says when to
look next: at validation, at the end of a consolidateAfter, at the edge of a budget window, and while a command executes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import timedelta

from msgspec.structs import replace

from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.disruption.budgets import next_window_change, schedule_error
from journeyman.core.disruption.commands import (
    EXECUTING,
    PROPOSED,
    Command,
    claims_in_commands,
    proposal_plan,
    to_node_disruption,
    unfinished_commands,
)
from journeyman.core.disruption.consolidatable import assess_consolidatable
from journeyman.core.disruption.consolidation_backoff import find_reversed, record_reversed
from journeyman.core.disruption.controller import DisruptionController, Evaluation
from journeyman.core.disruption.disruption_metrics import evaluation_duration
from journeyman.core.disruption.orchestration import reject_command, start_command, wait_or_terminate
from journeyman.core.disruption.rebalance import METHOD as REBALANCE
from journeyman.core.disruption.rebalance import offerings_at_risk
from journeyman.core.disruption.stale_taints import (
    claims_with_stale_taints,
    delete_old_commands,
    remove_stale_taints,
)
from journeyman.core.plan import Observation, Plan, Step, merge_plans, next_requeue
from journeyman.core.state import Snapshot
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.executor import Applier, run_step
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.node_classes import catalogued
from journeyman.steps.scheduling_inputs import SchedulingInputs
from journeyman.steps.verification import tell_defects


def consolidate(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    return run_step(run, Step.CONSOLIDATE, _consolidate)


def _consolidate(hand: Applier) -> None:
    loaded = load(hand.run, EVERYTHING)
    world = catalogued(hand, replace(loaded, unavailable=loaded.unavailable + offerings_at_risk(loaded)))
    snapshot, settings = world.snapshot, hand.run.settings
    reversed_now = record_reversed(find_reversed(snapshot))
    hand.apply(remove_stale_taints(snapshot) + delete_old_commands(snapshot) + reversed_now, world)
    executing = (d for d in unfinished_commands(snapshot) if d.status.phase == EXECUTING)
    hand.apply(merge_plans(wait_or_terminate(d, snapshot, settings.disruption_poll) for d in executing), world)
    without_writes = claims_in_commands(snapshot) | claims_with_stale_taints(snapshot)
    consolidatability = assess_consolidatable(snapshot, without_writes)
    hand.apply(consolidatability.plan, world)
    if consolidatability.next_at is not None:
        hand.requeue(Step.CONSOLIDATE, consolidatability.next_at, "a node's consolidateAfter ends")
    _watch_windows(hand, snapshot)
    if not _all_launched(hand, snapshot):
        return
    controller = DisruptionController(
        snapshot,
        world.catalogue,
        consolidatability,
        spot_to_spot=settings.feature_gates.spot_to_spot_consolidation,
        options=settings.scheduling,
        results=hand.run.memory.answers.results_for(snapshot, world.catalogue, settings.scheduling),
    )
    proposed = [d for d in unfinished_commands(snapshot) if d.status.phase == PROPOSED]
    for disruption in proposed:
        _decide_on(hand, controller, disruption, world)
    if not proposed:
        _evaluate(hand, controller, world)


def _all_launched(hand: Applier, snapshot: Snapshot) -> bool:
    """Karpenter's synced gate: a claim that is not launched yet is capacity that nobody can count on."""
    waiting = [
        c.metadata.name for c in snapshot.claims if not c.status.provider_id and c.metadata.deletion_timestamp is None
    ]
    if waiting:
        hand.note(f"not disrupting while NodeClaim {waiting[0]} and {len(waiting) - 1} others are not launched")
        hand.requeue(
            Step.CONSOLIDATE,
            next_requeue(snapshot.now, hand.run.settings.disruption_poll),
            "claims are not launched yet",
        )
    return not waiting


def _watch_windows(hand: Applier, snapshot: Snapshot) -> None:
    """Come back when a budget window of a pool that has nodes opens or closes."""
    in_use = {node.node_pool for node in snapshot.state_nodes}
    for pool in snapshot.node_pools:
        budgets = pool.spec.disruption.budgets
        for budget in budgets:
            if why := schedule_error(budget):
                hand.run.telemetry.log("warning", why, NodePool={"name": pool.metadata.name})
        if pool.metadata.name in in_use and (at := next_window_change(budgets, snapshot.now)) is not None:
            hand.requeue(Step.CONSOLIDATE, at, f"a budget window of NodePool {pool.metadata.name} opens or closes")


def _decide_on(
    hand: Applier, controller: DisruptionController, disruption: NodeDisruption, world: SchedulingInputs
) -> None:
    """Validate a proposal that is old enough, and carry it out or drop it."""
    snapshot, settings = controller.snapshot, hand.run.settings
    due = (disruption.since or snapshot.now) + _delay(hand, disruption.spec.method)
    if snapshot.now < due:
        hand.requeue(Step.CONSOLIDATE, due, f"validate {disruption.metadata.name}")
        return
    command = controller.revalidate(disruption)
    if not command.candidates:
        hand.apply(reject_command(disruption, command.why_not, snapshot), world)
    elif _is_sound(hand, controller, command, disruption.metadata.name):
        hand.apply(start_command(disruption, command, snapshot, settings.disruption_poll), world)
    else:
        hand.apply(reject_command(disruption, "defect: the plan does not pass the independent check", snapshot), world)


def _evaluate(hand: Applier, controller: DisruptionController, world: SchedulingInputs) -> None:
    """Propose the first command found, as long as there is time."""
    with closing(_timed(hand, controller.evaluate_methods())) as evaluations:
        for evaluation in evaluations:
            hand.apply(evaluation.plan, world)
            if evaluation.command.candidates and _is_sound(hand, controller, evaluation.command, evaluation.method):
                _propose(hand, controller, evaluation, world)
                return
            if hand.run.out_of_time:
                hand.apply(_timed_out(), world)
                return


def _timed(hand: Applier, evaluations: Iterator[Evaluation]) -> Generator[Evaluation, None, None]:
    """Yield the evaluations, and record the duration of each method once all are done or the caller stops."""
    clock = hand.run.clock
    durations: dict[tuple[str, str], timedelta] = {}
    try:
        started = clock.now()
        for evaluation in evaluations:
            key = (evaluation.method, evaluation.command.reason.value)
            durations[key] = durations.get(key, timedelta(0)) + (clock.now() - started)
            yield evaluation
            started = clock.now()
    finally:
        samples = (evaluation_duration(*key, spent.total_seconds()) for key, spent in durations.items())
        hand.tell(Plan(observations=tuple(samples)))


def _propose(hand: Applier, controller: DisruptionController, evaluation: Evaluation, world: SchedulingInputs) -> None:
    """Create the NodeDisruption; later if the same one was rejected in this very second, as its name exists."""
    made_at = controller.snapshot.now
    disruption = to_node_disruption(evaluation.command, evaluation.method, made_at)
    name = disruption.metadata.name
    if any(known.metadata.name == name for known in controller.snapshot.node_disruptions):
        later = next_requeue(made_at, hand.run.settings.disruption_poll)
        hand.requeue(Step.CONSOLIDATE, later, f"{name} was rejected in this second")
        return
    hand.apply(proposal_plan(disruption, evaluation.command, made_at + _delay(hand, evaluation.method)), world)


def _delay(hand: Applier, method: Method) -> timedelta:
    """How long a proposal must hold before it is validated."""
    return timedelta(0) if method == REBALANCE else hand.run.settings.validation_delay


def _is_sound(hand: Applier, controller: DisruptionController, command: Command, subject: str) -> bool:
    """The second opinion; what it rejects is never applied, and is a defect of ours."""
    defects = controller.simulation.verify(command)
    if defects:
        tell_defects(hand, subject, "a disruption does not pass verify", defects)
    return not defects


def _timed_out() -> Plan:
    sample = Observation(
        name="karpenter_voluntary_disruption_consolidation_timeouts_total", labels={"consolidation_type": "single"}
    )
    return Plan(observations=(sample,), notes=("ran out of time looking for nodes to consolidate",))
