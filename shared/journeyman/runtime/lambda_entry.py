"""What stands between Lambda and a step: logging, tracing, batches. Handlers are one call into here.

Nothing is made at import: the logger, the tracer and the composition appear with the first invocation, so that
importing a handler reads no environment and opens no connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from aws_lambda_powertools import Tracer

from journeyman.core.plan import Step
from journeyman.events import parse_trigger
from journeyman.observe.logs import SERVICE
from journeyman.runtime.aws import logger, runtime
from journeyman.runtime.batch import DueRequeues, Event, StepFunction, StepRunner, reported, run_records
from journeyman.runtime.composition import Context

Answer = dict[str, Any]
Handler = Callable[[Any, Any], Any]

CORRELATION_ID = "id || requestContext.requestId || Records[0].messageId"
"""Where Lambda's event carries what ties log lines together; each record's own id goes onto its run's lines."""


def entry_point(handler: Handler) -> Handler:
    """The handler with Powertools' Logger context and Tracer around it, set up at its first invocation."""
    observed: list[Handler] = []

    @wraps(handler)
    def entry(event: Any, context: Any) -> Any:
        if not observed:
            observed.append(_observed(handler))
        return observed[0](event, context)

    return entry


def _observed(handler: Handler) -> Handler:
    logged: Handler = logger().inject_lambda_context(_traced(handler), correlation_id_path=CORRELATION_ID)
    return logged


def _traced(handler: Handler) -> Handler:
    """Powertools turns tracing off outside Lambda and where it is told to; then its SDK is not even imported (0.3 s)."""
    told_not_to = os.environ.get("POWERTOOLS_TRACE_DISABLED", "false").lower() in {"1", "true"}
    if told_not_to or "LAMBDA_TASK_ROOT" not in os.environ:
        return handler
    tracer = Tracer(service=SERVICE, patch_modules=["botocore"])
    traced: Handler = tracer.capture_lambda_handler(handler, capture_response=False)
    return traced


def run_batch(step: str, function: StepFunction, event: Event, context: Context) -> Answer:
    """Run the step for a batch of SQS records; answers which of them failed."""
    serving = runtime()
    runner = StepRunner(serving, Step(step), function, context)
    return run_records(serving, runner.run, event, ahead=runner.run_ahead)


def run_sweep(function: StepFunction, event: Event, context: Context) -> Answer:
    """Sweep when the schedule says so; hand requeues on to their queues when they are due.

    Raises:
        MalformedEventError: The schedule's own event cannot be read.
        JourneymanError: The sweep of a cluster failed; the others were swept.
    """
    serving = runtime()
    runner = StepRunner(serving, Step.SWEEP, function, context)
    if "Records" in event:
        return run_records(serving, DueRequeues(serving, runner).handle, event)
    with reported(serving):
        trigger = parse_trigger(event)
    return {"clusters": [{"cluster": o.cluster, "status": o.status, **o.counts} for o in runner.run(trigger)]}
