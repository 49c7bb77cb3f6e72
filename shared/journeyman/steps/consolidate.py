"""Consolidate: deletes or replaces nodes that are empty, drifted or replaceable by cheaper ones.

::

    load ─► stale taints, churn ledger, old commands and fleet plans; report windows and pauses
         ─► started commands
         ─► `Drifted` conditions ─► `Consolidatable` conditions
         ─► Proposed commands that are old enough: validate, verify, start or reject
         ─► if there are none: the methods of `core.disruption.controller`, in order, until one finds commands
              ─► verify ─► propose; if time is left, write why the other nodes stay
         ─► read on-demand prices, every 12 hours

Started commands continue beside proposed ones, and the nodes of both count against the budgets. Rebalance and drift are
validated without delay: Karpenter does not wait for them either. A NodeClaim without an instance stops nothing: pods of a
candidate may not go there, as to any node that is not initialized. Every run requeues the step for the next validation, end of a consolidateAfter,
and progress of a command. The cloud's scheduler and the sweep start it when a window opens or closes
(`core.disruption.calendar`). All reconcilers decide on the cluster as it was loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from journeyman.core.api.duration import time_after
from journeyman.core.api.node_disruption import Method, NodeDisruption
from journeyman.core.api.objects import CHURN_LEDGER, FLEET_PLAN
from journeyman.core.disruption.binding_orders import unbound_pod
from journeyman.core.disruption.calendar import report_invalid_windows
from journeyman.core.disruption.candidates import DisruptionReason
from journeyman.core.disruption.churn_counts import record_churn
from journeyman.core.disruption.churn_limits import ChurnLimits, ChurnSettings
from journeyman.core.disruption.circuit_breaker import report_pauses
from journeyman.core.disruption.cleanup import (
    claims_with_stale_taints,
    delete_old_commands,
    remove_stale_taints,
)
from journeyman.core.disruption.commands import (
    PROPOSED,
    Command,
    claims_in_commands,
    has_started,
    proposal_plan,
    to_node_disruption,
    unfinished_commands,
)
from journeyman.core.disruption.consolidatable import Consolidatability, assess_consolidatable
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.disruption.disruptable_condition import disruptable_conditions
from journeyman.core.disruption.disruption_events import UNCONSOLIDATABLE, candidate_events
from journeyman.core.disruption.disruption_metrics import consolidation_timeout, evaluation_duration
from journeyman.core.disruption.drifted_condition import DriftAssessment, assess_drift
from journeyman.core.disruption.fleet_moves import MoveCost
from journeyman.core.disruption.fleet_plan_progress import delete_old_plans, mark_leaving_nodes
from journeyman.core.disruption.orchestration import (
    expire_command,
    has_expired,
    reject_command,
    start_command,
    wait_or_terminate,
)
from journeyman.core.disruption.pod_deletion_costs import write_deletion_costs
from journeyman.core.disruption.rebalance import offerings_at_risk
from journeyman.core.plan import Failure, Plan, Requeue, Step, chain_of, merge_plans, next_requeue
from journeyman.core.state import Snapshot
from journeyman.core.state.skipped_objects import plan_for_each
from journeyman.errors import CloudProviderError
from journeyman.ports import Trigger
from journeyman.steps.context import Outcome, RunContext, Settings
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.node_classes import refresh_prices
from journeyman.steps.scheduling_inputs import StepInputs
from journeyman.steps.step import Plans, Reconciler, ScheduledPlan, StepDefinition, run_step
from journeyman.steps.verification import defects_plan

_WITHOUT_DELAY: Final[frozenset[Method]] = frozenset({"rebalance", "static-drift", "drift"})
"""Methods whose proposals the next run validates at once."""


def consolidate(run: RunContext, trigger: Trigger) -> Outcome:
    """Run the step once for one cluster.

    Raises:
        JourneymanError: As `run_step`.
    """
    return run_step(run, CONSOLIDATE, trigger)


def _load(run: RunContext, trigger: Trigger) -> StepInputs:
    snapshot = load(run, EVERYTHING)
    reasons, failures = _cloud_drift(run, snapshot)
    return StepInputs.of(
        run,
        trigger,
        replace(snapshot, unavailable=snapshot.unavailable + offerings_at_risk(snapshot)),
        drift_reasons=reasons,
        failures=failures,
    )


def _cloud_drift(run: RunContext, snapshot: Snapshot) -> tuple[Mapping[str, str], tuple[Failure, ...]]:
    """Return the cloud's answer about drift by NodeClaim; if it fails, conditions stay as they are, and the rest goes on.

    Every run asks; the adapter lists the instances anew only after some minutes, so that nothing about it needs to be stored.
    """
    launched = [c for c in snapshot.claims if c.status.provider_id and c.metadata.deletion_timestamp is None]
    try:
        return run.cloud.is_drifted(launched, snapshot.node_classes) if launched else {}, ()
    except CloudProviderError as error:
        return {}, (Failure(subject="drift of instances", error=error),)


# -- reconcilers, in order --------------------------------------------------------------------------------------------


def _clean_up(inputs: StepInputs) -> Plan:
    """Remove taints and conditions without a command, write the churn ledger, delete old commands; report windows and pauses."""
    snapshot, settings = inputs.loaded, inputs.settings
    churn = record_churn(snapshot, settings.reversal_window) if CHURN_LEDGER.kind not in snapshot.unread else Plan()
    soon_gone = ChurnLimits(snapshot, _churn_settings(settings)).nodes_soon_gone()
    old = delete_old_commands(snapshot, limit=settings.disruption_history_limit, age=settings.disruption_history_age)
    old += delete_old_plans(snapshot)
    reports = report_invalid_windows(snapshot) + report_pauses(snapshot)
    return reports + remove_stale_taints(snapshot) + mark_leaving_nodes(snapshot, soon_gone) + churn + old


def _advance_commands(inputs: StepInputs) -> Plan:
    snapshot, catalogue, poll = inputs.loaded, inputs.catalogued.catalogue, inputs.settings.disruption_poll
    started = (d for d in unfinished_commands(snapshot) if has_started(d, snapshot))
    return plan_for_each(started, lambda disruption: wait_or_terminate(disruption, snapshot, catalogue, poll))


def _write_conditions(inputs: StepInputs) -> Plan:
    """Write the `Drifted` and `Consolidatable` conditions that have changed."""
    drift, consolidatability = _assess(inputs)
    plan = drift.plan() + consolidatability.plan
    if consolidatability.next_at is None:
        return plan
    return plan + _requeue_at(consolidatability.next_at, "a node's consolidateAfter ends")


def _decide_on_proposals(inputs: StepInputs) -> Plan | ScheduledPlan:
    """Validate each command that is old enough and has not started, and start, reject or expire it."""
    undecided = _undecided(inputs.loaded)
    if not undecided:
        return Plan()
    controller = _controller(inputs)
    plan = plan_for_each(undecided, lambda disruption: _decide_on(inputs, controller, disruption))
    return ScheduledPlan(plan, controller.simulation.results)


def _propose(inputs: StepInputs) -> Plans:
    """Propose the first commands of the methods; then write why the other nodes stay, and which pods are to be deleted first."""
    if _undecided(inputs.loaded):
        return
    controller = _controller(inputs)
    is_time_up = yield from _first_commands(inputs, controller)
    if not is_time_up:
        stays = controller.why_nodes_stay()
        yield disruptable_conditions(inputs.snapshot, stays, inputs.settings.disruption_poll)
        costs = controller.deletion_costs() if inputs.settings.feature_gates.pod_deletion_cost_management else {}
        yield write_deletion_costs(inputs.loaded, costs)


def _first_commands(
    inputs: StepInputs, controller: DisruptionController
) -> Generator[Plan | ScheduledPlan, bool, bool]:
    """Evaluate the methods in order, and propose the first commands that pass verification; return whether the time is up."""
    examined = inputs.examined_until
    for evaluation in controller.evaluate_methods():
        examined = evaluation.examined or examined
        duration = evaluation_duration(evaluation.method, evaluation.reason.value, 0.0)
        plan = evaluation.plan + Plan(durations=(duration,))
        proposal, is_proposed = _proposals(inputs, controller, evaluation.method, evaluation.commands)
        is_time_up = yield ScheduledPlan(plan + proposal, controller.simulation.results)
        if is_proposed:
            return is_time_up
        if is_time_up:
            best = (evaluation.if_time_is_up,) if evaluation.if_time_is_up is not None else ()
            proposal, is_proposed = _proposals(inputs, controller, evaluation.method, best)
            timeout = Plan(observations=consolidation_timeout(evaluation.method))
            yield timeout + proposal + (Plan() if is_proposed else _continue_later(inputs, examined))
            return True
    return (yield Plan(examined_until=""))


CONSOLIDATE: Final = StepDefinition(
    name=Step.CONSOLIDATE,
    load=_load,
    reconcilers=(
        Reconciler(_clean_up),
        Reconciler(_advance_commands),
        Reconciler(_write_conditions),
        Reconciler(_decide_on_proposals),
        Reconciler(_propose),
        Reconciler(refresh_prices),
    ),
    requeues=Step.CONSOLIDATE,
)


# -- commands ---------------------------------------------------------------------------------------------------------


def _undecided(snapshot: Snapshot) -> list[NodeDisruption]:
    return [d for d in unfinished_commands(snapshot) if not has_started(d, snapshot)]


def _assess(inputs: StepInputs) -> tuple[DriftAssessment, Consolidatability]:
    """Return what has drifted and what is consolidatable; a NodeClaim's status is written once in a run."""
    snapshot = inputs.loaded
    written_elsewhere = claims_in_commands(snapshot) | claims_with_stale_taints(snapshot)
    drift = assess_drift(snapshot, inputs.catalogued.catalogue, inputs.drift_reasons, written_elsewhere)
    return drift, assess_consolidatable(snapshot, written_elsewhere | drift.changed)


def _controller(inputs: StepInputs) -> DisruptionController:
    snapshot, settings, catalogue = inputs.loaded, inputs.settings, inputs.catalogued.catalogue
    drift, consolidatability = _assess(inputs)
    cost = MoveCost(eviction=settings.eviction_cost, payback=settings.consolidation_payback)
    return DisruptionController(
        snapshot,
        catalogue,
        consolidatability,
        drifted=drift.since,
        spot_to_spot=settings.feature_gates.spot_to_spot_consolidation,
        churn=_churn_settings(settings),
        options=settings.scheduling,
        effort=inputs.effort,
        results=inputs.cached_results.valid_for(snapshot, catalogue, settings.scheduling),
        examined_until=inputs.examined_until,
        fleet_plans=cost if settings.fleet_plans and FLEET_PLAN.kind not in snapshot.unread else None,
        verify=inputs.verify,
    )


def _churn_settings(settings: Settings) -> ChurnSettings:
    return ChurnSettings(
        payback=settings.consolidation_payback,
        eviction_cost=settings.eviction_cost,
        reversal_window=settings.reversal_window,
    )


def _decide_on(inputs: StepInputs, controller: DisruptionController, disruption: NodeDisruption) -> Plan:
    snapshot, name = inputs.loaded, disruption.metadata.name
    delay = _validation_delay(inputs, disruption.spec.method)
    due = time_after(disruption.since or snapshot.now, delay)
    # A decision is dated later than now only by clocks that differ a little. One dated later than that is wrong, and would
    # keep all others waiting until then: it is validated at once.
    if disruption.status.phase == PROPOSED and snapshot.now < due <= time_after(snapshot.now, 2 * delay):
        return _requeue_at(due, f"validate {name}")
    if has_expired(disruption, due, snapshot.now):
        return expire_command(disruption, snapshot)
    command = controller.revalidate(disruption)
    if not command.candidates:
        return reject_command(disruption, command.why_not, snapshot)
    defects = _defects(controller, command, name)
    if defects is not None:
        return defects + reject_command(disruption, "defect: the command does not pass verification", snapshot)
    if why := _without_capacity(controller, command):
        return reject_command(disruption, f"scheduling: {why}", snapshot)
    budgets = controller.budgets(command.reason, without=disruption)
    return start_command(disruption, command, snapshot, inputs.settings.disruption_poll, budgets)


def _proposals(
    inputs: StepInputs, controller: DisruptionController, method: Method, commands: Iterable[Command]
) -> tuple[Plan, bool]:
    """Return the plan that proposes the commands, and whether any is proposed; the next run then starts with the first node."""
    proposals = [_proposal(inputs, controller, method, command) for command in commands]
    plan = merge_plans(proposal for proposal, _ in proposals)
    is_proposed = any(is_proposed for _, is_proposed in proposals)
    return (plan + Plan(examined_until="") if is_proposed else plan), is_proposed


def _proposal(
    inputs: StepInputs, controller: DisruptionController, method: Method, command: Command
) -> tuple[Plan, bool]:
    """Return the plan that creates the command's NodeDisruption, and whether it is proposed.

    It is not if it fails verification, or if kube-scheduler may leave one of its pods without capacity. If a NodeDisruption with
    its name exists, it was rejected in this second: the step is requeued.
    """
    defects = _defects(controller, command, method)
    if defects is not None:
        return defects, False
    if why := _without_capacity(controller, command):
        return Plan(
            events=tuple(e for c in command.candidates for e in candidate_events(c, UNCONSOLIDATABLE, why))
        ), False
    now = controller.snapshot.now
    disruption = to_node_disruption(command, method, now)
    name = disruption.metadata.name
    if any(existing.metadata.name == name for existing in controller.snapshot.node_disruptions):
        at = next_requeue(now, inputs.settings.disruption_poll)
        return _requeue_at(at, f"NodeDisruption {name} was rejected in this second"), True
    plan = proposal_plan(disruption, command, now + _validation_delay(inputs, method))
    return plan + controller.approval(command), True


def _validation_delay(inputs: StepInputs, method: Method) -> timedelta:
    """Return how long after its proposal a command is validated."""
    return timedelta(0) if method in _WITHOUT_DELAY else inputs.settings.validation_delay


def _defects(controller: DisruptionController, command: Command, subject: str) -> Plan | None:
    """Return a plan that reports the command's defects; None if it passes verification."""
    defects = controller.simulation.verify(command)
    return defects_plan(subject, "verification rejected a disruption command", defects) if defects else None


def _without_capacity(controller: DisruptionController, command: Command) -> str:
    """Return why a consolidation would launch a node again; empty if its pods find capacity in any order. Others must go anyway."""
    if command.reason is not DisruptionReason.UNDERUTILIZED:
        return ""
    pod = unbound_pod(command, controller.snapshot, controller.simulation.catalogue)
    return f"pod {pod} has no capacity left if kube-scheduler binds the evicted pods in another order" if pod else ""


def _requeue_at(at: datetime, reason: str) -> Plan:
    return Plan(chains=(chain_of("requeues", Requeue(step=Step.CONSOLIDATE, at=at, reason=reason)),))


def _continue_later(inputs: StepInputs, examined: str) -> Plan:
    """Return the plan at the end of a run's time: the next run continues behind the last node that was examined.

    It starts at once, unless this run examined none.
    """
    note = "ran out of time while evaluating nodes for consolidation"
    now = inputs.loaded.now
    at = next_requeue(now, inputs.settings.disruption_poll) if examined == inputs.examined_until else now
    plan = Plan(notes=(note,), examined_until=examined)
    return plan + _requeue_at(at, f"{note}; continuing after {examined}" if examined else note)
