"""Runs a step: loads the cluster, then lets each reconciler decide, executes its plan, and carries forward what was written.

::

    load ─► inputs ─► reconciler: inputs → Plan ─► execute ─► carry_forward ─► inputs ─► next reconciler …

A reconciler is a pure function of `StepInputs`: it does no I/O and reads no clock. Reconcilers verify the plans of the
scheduler and of disruption before they return them. Only `carry_forward` merges what was written into the next snapshot.

Restates: karpenter pkg/controllers/nodeclaim/lifecycle/controller.go `Reconcile` (the ordered reconcilers).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.launch_faults import LaunchBackoff
from journeyman.core.catalogue import Unavailable
from journeyman.core.plan import Failure, LogLine, Observation, Plan, Requeue, Step
from journeyman.core.scheduling.results import CachedResults, Results
from journeyman.errors import JourneymanError, LeaseLostError
from journeyman.ports import Message, Trigger
from journeyman.steps.actions import WrittenObjects
from journeyman.steps.context import Outcome, RunContext
from journeyman.steps.executor import PlanExecutor
from journeyman.steps.recorder import RunRecorder, log_fields
from journeyman.steps.scheduling_inputs import SchedulingInputs, StepInputs, scheduling_inputs_of

MERGED_WITHIN: Final = timedelta(minutes=1)
"""A requeue is merged into the message of an earlier run only if that is due so soon: if it is lost, the sweep is as late."""


class ScheduledPlan(Struct, frozen=True):
    """A plan, with the scheduler's results that are kept for later runs, and those that later reconcilers of this run explain."""

    plan: Plan
    cached_results: CachedResults
    results: Results = Results()


Plans = Generator[Plan | ScheduledPlan, bool, None]
"""Several plans of one reconciler. Each is executed before the next is computed; `yield` returns whether the time is up."""


class Reconciler(Struct, frozen=True):
    """A pure function from a step's inputs to a plan."""

    decide: Callable[[StepInputs], Plan | ScheduledPlan | Plans]
    needs_catalogue: bool = True  # it reads instance types, or launches instances


class StepDefinition(Struct, frozen=True, kw_only=True):
    """A step's load function and its reconcilers, in order.

    A `fenced` step runs only while it holds the Lease; others run in parallel. `requeues` is the step that is requeued after
    a conflict, a retryable error or the deadline; None if the sweep finds the remaining work.
    """

    name: Step
    load: Callable[[RunContext, Trigger], StepInputs]
    reconcilers: tuple[Reconciler, ...]
    requeues: Step | None
    fenced: bool = True


def run_step(run: RunContext, definition: StepDefinition, trigger: Trigger) -> Outcome:
    """Run a step once for one cluster.

    Returns:
        "busy" if another run holds the Lease: the trigger must be delivered again, because the other run may have loaded
        the cluster before the change. "partial" if the deadline or a retryable error stopped this run; the step is requeued, or
        its message must be delivered again.

    Raises:
        JourneymanError: An error that no retry can solve. Executed actions stay, and requeues are sent.
    """
    run.telemetry.log(
        "debug", f"running {definition.name.value}", trigger=type(trigger).__name__, reason=trigger.reason
    )
    recorder = RunRecorder(run, definition.name, definition.requeues, hops=trigger.hops)
    executor = PlanExecutor(run, definition.name, recorder, run.lease if definition.fenced else None)
    try:
        if definition.fenced:
            run.lease.acquire()
            recorder.record_acquired()
        _reconcile(run, definition, trigger, recorder, executor)
    except LeaseLostError as error:
        recorder.record_busy(error)
    except JourneymanError as error:
        if not error.retryable:
            raise
        recorder.record_partial(error)
    finally:
        recorder.record_chain_end()
        next_run = send_requeues(run, definition.name, trigger, recorder.requeues)
        if definition.fenced:
            run.lease.release(next_run, recorder.examined_until)
    return recorder.outcome()


def send_requeues(run: RunContext, step: Step, trigger: Trigger, requeues: Sequence[Requeue]) -> datetime | None:
    """Send a run's requeues; if that fails, the sweep finds the due work.

    Chains of messages of one step are merged: a requeue is not sent if an earlier run's message starts the step before it.
    Without that, each message that arrives while a step polls would start a chain of its own.

    Returns:
        When a message starts the step again, for the Lease; None if that is not known, or not soon.
    """
    now = run.clock.now()
    pending = _soon(run.lease.next_run, now)
    if pending is not None and trigger.at is not None and pending <= trigger.at:
        pending = None  # that message started this run, whose clock is behind that of the run that sent it
    sent = [r for r in requeues if not (r.step is step and pending is not None and pending <= r.at)]
    if not sent:
        return pending
    try:
        run.queue.send(
            [
                Message(
                    cluster=run.cluster,
                    step=requeue.step,
                    reason=requeue.reason,
                    at=requeue.at if requeue.at > now else None,
                    hops=trigger.hops + 1,
                )
                for requeue in sent
            ]
        )
    except JourneymanError as error:
        run.telemetry.log("warning", f"requeues were not sent: {error.message}", **log_fields(error))
        return pending
    own = next((_soon(requeue.at, now) for requeue in sent if requeue.step is step), None)
    return min((at for at in (own, pending) if at is not None), default=None)


def _soon(at: datetime | None, now: datetime) -> datetime | None:
    """Return a time within the next minute; None for any other."""
    return at if at is not None and now < at <= now + MERGED_WITHIN else None


def _reconcile(
    run: RunContext, definition: StepDefinition, trigger: Trigger, recorder: RunRecorder, executor: PlanExecutor
) -> None:
    inputs = definition.load(run, trigger)
    unread = (Failure(subject=f"list of {kind}", error=error) for kind, error in inputs.loaded.unread.items())
    recorder.record_plan(Plan(failures=(*inputs.failures, *unread)))
    for reconciler in definition.reconcilers:
        if reconciler.needs_catalogue and inputs.scheduling is None:
            inputs = replace(inputs, scheduling=scheduling_inputs_of(run, inputs.snapshot))
            recorder.record_plan(_unlisted_types(inputs.catalogued, run.cloud.node_class.kind))
        inputs = replace(inputs, effort=run.effort)
        started = run.clock.now()
        with closing(_plans(run, reconciler.decide(inputs), recorder, started)) as plans:
            for decision in plans:
                if isinstance(decision, ScheduledPlan):
                    run.memory.cached_results = decision.cached_results
                    inputs = replace(inputs, scheduled=decision.results)
                executor.execute(_plan_of(decision), inputs.snapshot, inputs.scheduling)
        inputs = replace(inputs, cached_results=run.memory.cached_results)
        inputs = carry_forward(run, inputs, executor.written)


def _plan_of(decision: Plan | ScheduledPlan) -> Plan:
    return decision.plan if isinstance(decision, ScheduledPlan) else decision


def _plans(
    run: RunContext, result: Plan | ScheduledPlan | Plans, recorder: RunRecorder, started: datetime
) -> Generator[Plan | ScheduledPlan, None, None]:
    """Yield the plans of one reconciler; record the duration of its decisions when it ends or the run stops."""
    durations: dict[tuple[str, tuple[tuple[str, str], ...]], Observation] = {}

    def measure(decision: Plan | ScheduledPlan) -> None:
        seconds = (run.clock.now() - started).total_seconds()
        for sample in _plan_of(decision).durations:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            earlier = durations[key].value if key in durations else 0.0
            durations[key] = replace(sample, value=earlier + seconds)

    try:
        if isinstance(result, Plan | ScheduledPlan):
            measure(result)
            yield result
            return
        with closing(result):
            plan = next(result, None)
            while plan is not None:
                measure(plan)
                yield plan
                started = run.clock.now()
                try:
                    plan = result.send(run.is_out_of_time)
                except StopIteration:
                    plan = None
    finally:
        recorder.observe(durations.values())


def carry_forward(run: RunContext, inputs: StepInputs, written: WrittenObjects) -> StepInputs:
    """Return the inputs of the next reconciler: the snapshot with what this run has written so far.

    It contains the NodeClaims as stored now, without deleted ones; the resolved statuses of NodeClasses; the offerings that
    the cloud refused, as unavailable; and the objects whose fault failed launches are.
    """
    if written == inputs.written:
        return inputs
    loaded = inputs.loaded
    claims = {**loaded.claims_by_name, **written.claims}
    refused = tuple(
        Unavailable(
            **offering._asdict(),
            until=action.soonest_end,
            reason=action.reason,
            node_class=action.node_class if action.node_class_only else "",
        )
        for action in written.unavailable
        for offering in action.offerings
    )
    snapshot = loaded
    if written.node_classes:
        node_classes = tuple(written.node_classes.get(c.name, c) for c in loaded.node_classes)
        snapshot = replace(snapshot, node_classes=node_classes)
    if written.claims:
        snapshot = snapshot.with_claims(c for c in claims.values() if c is not None)
    if refused:
        snapshot = replace(snapshot, unavailable=tuple(dict.fromkeys((*snapshot.unavailable, *refused))))
    if written.launch_faults:
        snapshot = replace(snapshot, launch_backoffs=(*snapshot.launch_backoffs, *_backoffs(written)))
    scheduling = scheduling_inputs_of(run, snapshot) if inputs.scheduling is not None else None
    return replace(inputs, snapshot=snapshot, scheduling=scheduling, written=written.copy())


def _backoffs(written: WrittenObjects) -> Iterator[LaunchBackoff]:
    """Yield the back-offs that this run has recorded, as far as it knows them: the OfferingState counts the failures."""
    for action in written.launch_faults:
        yield LaunchBackoff(
            fault=action.fault,
            failures=1,
            until=action.soonest_end,
            generations=action.generations,
            node_class=action.node_class,
        )


def _unlisted_types(scheduling: SchedulingInputs, kind: str) -> Plan:
    """Return a plan that reports the NodeClasses whose instance types could not be listed; this run skips their NodePools."""
    failures, logs = [], []
    for name, error in sorted(scheduling.failures.items()):
        if error.retryable:
            failures.append(Failure(subject=f"instance types of {kind} {name}", error=error))
        else:
            text = f"cannot list the instance types of {kind} {name}, so this run skips its NodePools: {error}"
            logs.append(LogLine(level="warning", message=text, fields={kind: {"name": name}}))
    return Plan(failures=tuple(failures), logs=tuple(logs))
