"""Connects Lambda to a step: logging, tracing, SQS batches, the sweep. Each handler is one call to this module.

The first invocation creates the logger, the tracer and the composition, so that importing a handler reads no environment
and opens no connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from aws_lambda_powertools import Tracer

from journeyman.core.lifecycle.interruption import deleted_message_metrics, received_message_metrics
from journeyman.core.plan import Observation, Step
from journeyman.errors import JourneymanError
from journeyman.events import parse_trigger
from journeyman.observe.logs import SERVICE
from journeyman.ports import EVERY_CLUSTER, Interruption, Message, RequeueDue, Trigger
from journeyman.runtime import aws
from journeyman.runtime.batch import LambdaEvent, Result, SqsBatch, StepFunction, StepRunner, log_errors
from journeyman.runtime.composition import Context, Runtime
from journeyman.steps.context import Outcome
from journeyman.steps.recorder import CHAIN_ENDS, chain_end_metric

Answer = dict[str, Any]
Handler = Callable[[Any, Any], Any]

CORRELATION_ID = "id || requestContext.requestId || Records[0].messageId"
"""JMESPath of the invocation's correlation id in Lambda's event; a run's log lines have the id of its record."""


def entry_point(handler: Handler) -> Handler:
    """Return the handler with Powertools' Logger and Tracer, which its first invocation sets up."""
    observed: list[Handler] = []

    @wraps(handler)
    def entry(event: Any, context: Any) -> Any:
        if not observed:
            observed.append(_observed(handler))
        return observed[0](event, context)

    return entry


def _observed(handler: Handler) -> Handler:
    logged: Handler = aws.logger().inject_lambda_context(_traced(handler), correlation_id_path=CORRELATION_ID)
    return logged


def _traced(handler: Handler) -> Handler:
    """Return the handler with tracing; unchanged if tracing is disabled, which saves importing its SDK (0.3 s)."""
    is_disabled = os.environ.get("POWERTOOLS_TRACE_DISABLED", "false").lower() in {"1", "true"}
    if is_disabled or "LAMBDA_TASK_ROOT" not in os.environ:
        return handler
    tracer = Tracer(service=SERVICE, patch_modules=["botocore"])
    traced: Handler = tracer.capture_lambda_handler(handler, capture_response=False)
    return traced


def run_batch(step: str, function: StepFunction, event: LambdaEvent, context: Context) -> Answer:
    """Run the step for a batch of SQS records; return which of them failed.

    A record of several clusters is repeated for those that failed only. Interruptions name no cluster, so they are counted here, once for all clusters.
    """
    runtime = aws.runtime()
    batch = SqsBatch.read(runtime, event)
    with batch.held(runtime):
        runner = StepRunner(runtime, Step(step), function, context, runtime.route(batch.triggers.values()))
        accepted: dict[str, tuple[Trigger, ...]] = {}
        for message_id, trigger in batch.triggers.items():
            triggers = _accepted(runtime, runner, trigger)
            if isinstance(triggers, JourneymanError):
                batch.failures[message_id] = triggers
            else:
                accepted[message_id] = triggers
        results = iter(runner.run([trigger for triggers in accepted.values() for trigger in triggers]))
        for message_id, triggers in accepted.items():
            _record_results(runtime, batch, message_id, [(trigger, next(results)) for trigger in triggers])
    return batch.answer(runtime)


def _record_results(
    runtime: Runtime, batch: SqsBatch, message_id: str, results: Sequence[tuple[Trigger, Result]]
) -> None:
    """Record whether a record failed, and count it; repeat a record of several clusters for those that failed."""
    failures = [(trigger, result) for trigger, result in results if isinstance(result, Exception)]
    is_partial = 0 < len(failures) < len(results)
    is_repeated = is_partial and batch.repeat_alone(runtime, message_id, [trigger for trigger, _ in failures])
    if failures and not is_repeated:
        batch.failures[message_id] = failures[0][1]
    _count_interruption(runtime, batch.triggers[message_id], is_handled=not failures)


def _accepted(runtime: Runtime, runner: StepRunner, trigger: Trigger) -> tuple[Trigger, ...] | JourneymanError:
    try:
        with log_errors(runtime):
            return runner.accept(trigger)
    except JourneymanError as error:
        return error


def _count_interruption(runtime: Runtime, trigger: Trigger, *, is_handled: bool) -> None:
    if isinstance(trigger, Interruption):
        if trigger.cluster == EVERY_CLUSTER:  # otherwise it was received before, for several clusters
            runtime.observe(*received_message_metrics(trigger.kind.value))
        if is_handled:
            runtime.observe(*deleted_message_metrics(trigger.time, runtime.clock.now()))


def run_sweep(function: StepFunction, event: LambdaEvent, context: Context) -> Answer:
    """Sweep all clusters for an event of the schedule; forward requeue messages of the requeue queue.

    Raises:
        MalformedEventError: The schedule's event does not parse.
        JourneymanError: The sweep of a cluster failed; the others were swept.
    """
    runtime = aws.runtime()
    runner = StepRunner(runtime, Step.SWEEP, function, context)
    if "Records" in event:
        return _forward_requeues(runtime, runner, SqsBatch.read(runtime, event))
    with log_errors(runtime):
        triggers = runner.accept(parse_trigger(event))
    results = runner.run(triggers)
    if any(isinstance(result, Outcome) for result in results):
        runtime.observe(Observation(name="journeyman_sweeps_total"))
    for result in results:
        if isinstance(result, Exception):
            raise result
    outcomes = [result for result in results if isinstance(result, Outcome)]
    return {"clusters": [{"cluster": o.cluster, "status": o.status, **o.counts} for o in outcomes]}


def _forward_requeues(runtime: Runtime, runner: StepRunner, batch: SqsBatch) -> Answer:
    """Send each requeue message to its step's queue if it is due, or else back to the requeue queue.

    The sweep has no queue of its own, so its requeues run here. Equal messages of a batch are sent once. Each message that is
    sent back is one more hop of its chain, which ends at the limit: the sweep finds the due work.
    """
    sent: set[Message] = set()
    with batch.held(runtime):
        for message_id, trigger in batch.triggers.items():
            failure = _forward(runtime, runner, trigger, sent)
            if failure is not None:
                batch.failures[message_id] = failure
    return batch.answer(runtime)


def _forward(runtime: Runtime, runner: StepRunner, trigger: Trigger, sent: set[Message]) -> Exception | None:
    at = trigger.at if isinstance(trigger, RequeueDue) else None
    is_due = at is None or at <= runtime.clock.now()
    if trigger.step is Step.SWEEP and is_due:
        accepted = _accepted(runtime, runner, trigger)
        results = [accepted] if isinstance(accepted, JourneymanError) else runner.run(accepted)
        return next((result for result in results if isinstance(result, Exception)), None)
    try:
        with log_errors(runtime):
            for each in runtime.triggers_by_cluster(trigger):
                if not is_due and each.hops >= runtime.settings_of(each.cluster).max_hops:
                    runtime.log("info", CHAIN_ENDS, hops=str(each.hops), cluster=each.cluster, reason=each.reason)
                    runtime.observe(chain_end_metric(each.step))
                    continue
                message = Message(
                    cluster=each.cluster,
                    step=each.step,
                    reason=each.reason,
                    at=None if is_due else at,
                    hops=each.hops if is_due else each.hops + 1,
                )
                if message not in sent:
                    runtime.queue.send([message])
                    sent.add(message)
    except JourneymanError as error:
        return error
    return None
