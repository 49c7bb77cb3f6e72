"""Runs a step: load once, then each reconciler in order: decide, execute, and carry what was written forward.

::

    load ─► inputs ─► reconciler: inputs → Plan ─► execute ─► carry_forward ─► inputs ─► next reconciler …

A reconciler is a pure function of `StepInputs`: it reads no clock and calls nothing outside. Plans of the scheduler and of
disruption are verified before they are returned. Only `carry_forward` makes the next snapshot of what was written.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile` (the ordered reconcilers).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.catalogue import Unavailable
from journeyman.core.plan import Failure, LogLine, Observation, Plan, Step
from journeyman.errors import JourneymanError, LeaseLostError
from journeyman.ports import Trigger
from journeyman.steps.actions import WrittenObjects
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.executor import PlanExecutor
from journeyman.steps.recorder import RunRecorder
from journeyman.steps.scheduling_inputs import SchedulingInputs, StepInputs, scheduling_inputs_of

Plans = Generator[Plan, bool, None]
"""Several plans of one reconciler, each executed before the next is made; `yield` returns whether the run's time is up."""


class Reconciler(Struct, frozen=True):
    """One decision of a step."""

    decide: Callable[[StepInputs], Plan | Plans]
    needs_catalogue: bool = True  # it decides on instance types, or launches


class StepDefinition(Struct, frozen=True, kw_only=True):
    """What a step loads and decides, in order.

    A step that is not `fenced` runs without the Lease, beside other runs. `requeues` is the step that runs again after a
    conflict, a passing error or the deadline; None: the sweep finds what is left.
    """

    name: Step
    load: Callable[[RunContext, Trigger], StepInputs]
    reconcilers: tuple[Reconciler, ...]
    requeues: Step | None
    fenced: bool = True


def run_step(run: RunContext, definition: StepDefinition, trigger: Trigger) -> Outcome:
    """Run a step once for one cluster.

    Returns:
        "busy" if another run holds the Lease (its trigger must come again: the other run may not have seen the reason for
        it), "partial" if the deadline or a passing error stopped this run, with a requeue for the rest.

    Raises:
        JourneymanError: An error that a retry cannot mend; what was done stays done, and requeues are sent all the same.
    """
    run.telemetry.log(
        "debug", f"running {definition.name.value}", trigger=type(trigger).__name__, reason=trigger.reason
    )
    recorder = RunRecorder(run, definition.name, definition.requeues)
    executor = PlanExecutor(run, definition.name, recorder, run.lease if definition.fenced else None)
    try:
        if definition.fenced:
            run.lease.acquire()
        _reconcile(run, definition, trigger, recorder, executor)
    except LeaseLostError as error:
        recorder.record_busy(error)
    except JourneymanError as error:
        if not error.retryable:
            raise
        recorder.record_partial(error)
    finally:
        recorder.send_requeues()
        if definition.fenced:
            run.lease.release()
    return recorder.outcome()


def _reconcile(
    run: RunContext, definition: StepDefinition, trigger: Trigger, recorder: RunRecorder, executor: PlanExecutor
) -> None:
    inputs = definition.load(run, trigger)
    recorder.record_plan(Plan(failures=inputs.failures))
    for reconciler in definition.reconcilers:
        if reconciler.needs_catalogue and inputs.scheduling is None:
            inputs = replace(inputs, scheduling=scheduling_inputs_of(run, inputs.snapshot))
            recorder.record_plan(_unlisted_types(inputs.catalogued, run.cloud.node_class.kind))
        started = run.clock.now()
        with closing(_plans(run, reconciler.decide(inputs), recorder, started)) as plans:
            for plan in plans:
                executor.execute(plan, inputs.snapshot, inputs.scheduling)
        inputs = carry_forward(run, inputs, executor.written)


def _plans(
    run: RunContext, decided: Plan | Plans, recorder: RunRecorder, started: datetime
) -> Generator[Plan, None, None]:
    """Yield the plans of one reconciler; record how long the decisions took once all are made, or the run stops."""
    durations: dict[tuple[str, tuple[tuple[str, str], ...]], Observation] = {}

    def measure(plan: Plan) -> None:
        seconds = (run.clock.now() - started).total_seconds()
        for sample in plan.durations:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            earlier = durations[key].value if key in durations else 0.0
            durations[key] = replace(sample, value=earlier + seconds)

    try:
        if isinstance(decided, Plan):
            measure(decided)
            yield decided
            return
        with closing(decided):
            plan = next(decided, None)
            while plan is not None:
                measure(plan)
                yield plan
                started = run.clock.now()
                try:
                    plan = decided.send(run.out_of_time)
                except StopIteration:
                    plan = None
    finally:
        recorder.observe(durations.values())


def carry_forward(run: RunContext, inputs: StepInputs, written: WrittenObjects) -> StepInputs:
    """Return the inputs of the next reconciler: the snapshot with what this run has written so far.

    NodeClaims are as they are stored now, deleted ones are left out; NodeClasses have the status that was resolved; offerings
    that were refused are unavailable.
    """
    if written == inputs.written:
        return inputs
    loaded = inputs.loaded
    claims = {**loaded.claims_by_name, **written.claims}
    refused = tuple(
        Unavailable(instance_type=t, zone=z, capacity_type=c, until=action.soonest_end, reason=action.reason)
        for action in written.unavailable
        for t, z, c in action.offerings
    )
    snapshot = loaded
    if written.node_classes:
        node_classes = tuple(written.node_classes.get(c.name, c) for c in loaded.node_classes)
        snapshot = replace(snapshot, node_classes=node_classes)
    if written.claims:
        snapshot = snapshot.with_claims(c for c in claims.values() if c is not None)
    if refused:
        snapshot = replace(snapshot, unavailable=tuple(dict.fromkeys((*snapshot.unavailable, *refused))))
    scheduling = scheduling_inputs_of(run, snapshot) if inputs.scheduling is not None else None
    return replace(inputs, snapshot=snapshot, scheduling=scheduling, written=written.copy())


def _unlisted_types(scheduling: SchedulingInputs, kind: str) -> Plan:
    """Report NodeClasses whose instance types the cloud does not list; their NodePools are left out of this run."""
    failures, logs = [], []
    for name, error in sorted(scheduling.failures.items()):
        if error.retryable:
            failures.append(Failure(subject=f"instance types of {kind} {name}", error=error))
        else:
            text = f"instance types of {kind} {name} are not known, its NodePools are left out of this run: {error}"
            logs.append(LogLine(level="warning", message=text, fields={kind: {"name": name}}))
    return Plan(failures=tuple(failures), logs=tuple(logs))
