"""Connects Lambda to a step: logging, tracing, SQS batches, the sweep. Each handler is one call to this module.

The first invocation creates the logger, the tracer and the composition, so that importing a handler reads no environment
and opens no connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

from aws_lambda_powertools import Tracer
from msgspec.structs import replace

from journeyman.core.plan import Step
from journeyman.errors import JourneymanError
from journeyman.observe.logs import SERVICE
from journeyman.ports import Message, ReceivedMessage, Trigger
from journeyman.runtime import aws
from journeyman.runtime.adapters import logger
from journeyman.runtime.batch import (
    Answer,
    MessageBatch,
    StepFunction,
    StepRunner,
    accept_or_fail,
    log_errors,
    logged,
    process_batch,
    sweep_clusters,
)
from journeyman.runtime.composition import Context, Runtime
from journeyman.steps.recorder import CHAIN_ENDS, chain_end_metric

Handler = Callable[[Any, Any], Any]
LambdaEvent = Mapping[str, Any]

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
    logged: Handler = logger().inject_lambda_context(_traced(handler), correlation_id_path=CORRELATION_ID)
    return logged


def _traced(handler: Handler) -> Handler:
    """Return the handler with tracing; unchanged if tracing is disabled, which saves importing its SDK (0.3 s)."""
    is_disabled = os.environ.get("POWERTOOLS_TRACE_DISABLED", "false").lower() in {"1", "true"}
    if is_disabled or "LAMBDA_TASK_ROOT" not in os.environ:
        return handler
    tracer = Tracer(service=SERVICE, patch_modules=["botocore"])
    traced: Handler = tracer.capture_lambda_handler(handler, capture_response=False)
    return traced


class SqsBatch(MessageBatch):
    """The records of a batch that Lambda received from SQS.

    Failed records are reported individually. Powertools' FIFO processor would report all records from the first failure on, and
    move valid messages of the group to the dead-letter queue.
    """

    @classmethod
    def read(cls, _step: Step, event: LambdaEvent) -> SqsBatch:
        """Return the batch with every record parsed. The triggers of one batch may share their hops (`_with_shared_hops`)."""
        records = event["Records"]
        batch = cls(runtime=aws.runtime(), messages=[_received(record) for record in records])
        batch.parse(records)
        batch.triggers = _with_shared_hops(batch.triggers, batch.runtime.max_hops)
        return batch

    def answer(self) -> Answer:
        """Return the failed records as `batchItemFailures`, after setting when each is delivered again.

        Records that can never succeed go to the dead-letter queue instead. Where SQS refuses that, they are retried as well. If
        SQS refuses the retries, the messages are delivered again after their visibility timeout.
        """
        sent = self.send_dead_letters()
        failed = [message for message in self.failed() if message.id not in sent]
        with logged(self.runtime):
            self.retry(failed)
        return {"batchItemFailures": [{"itemIdentifier": message.id} for message in failed]}


def _received(record: Mapping[str, Any]) -> ReceivedMessage:
    """Return the message of a record; without its queue if the record cannot be changed there, as in a hand-written event."""
    attributes = record.get("attributes", {})
    receipt = record.get("receiptHandle", "")
    return ReceivedMessage(
        id=record["messageId"],
        body=record.get("body", ""),
        queue=record.get("eventSourceARN", "") if receipt else "",
        receipt=receipt,
        group=attributes.get("MessageGroupId", ""),
        receives=int(attributes.get("ApproximateReceiveCount", 1)),
    )


_LAMBDA_STOPS_AFTER: Final = 16  # runs of a function in a chain, unless its property RecursiveLoop is Allow


def _with_shared_hops(triggers: Mapping[str, Trigger], limit: int) -> dict[str, Trigger]:
    """Return the triggers with the hops that count for their chains.

    While Lambda may stop chains, every trigger has the hops of the longest chain, because Lambda takes what the invocation sends for
    a part of all chains of its batch. Otherwise each keeps its own. No message of ours has more hops than the limit: one
    that does is forged or faulty, and ends its own chain only.
    """
    if limit >= _LAMBDA_STOPS_AFTER:
        return dict(triggers)
    longest = max((t.hops for t in triggers.values() if t.hops <= limit), default=0)
    return {key: replace(t, hops=max(t.hops, longest)) for key, t in triggers.items()}


run_batch: Callable[[str, StepFunction, LambdaEvent, Context], Answer] = partial(process_batch, SqsBatch.read)
"""Runs a step, given by its name, for an event of SQS records; returns which of them failed (`process_batch`)."""


def run_sweep(function: StepFunction, event: LambdaEvent, context: Context) -> Answer:
    """Sweep all clusters for an event of the schedule; forward requeue messages of the requeue queue.

    Raises:
        MalformedEventError: The schedule's event does not parse.
        JourneymanError: The sweep of a cluster failed; the others were swept.
    """
    runtime = aws.runtime()
    runner = StepRunner(runtime, Step.SWEEP, function, context)
    if "Records" in event:
        return _forward_requeues(runner, SqsBatch.read(Step.SWEEP, event))
    return sweep_clusters(runtime, runner, event)


def _forward_requeues(runner: StepRunner, batch: SqsBatch) -> Answer:
    """Send each requeue message to its step's queue if it is due, or else back to the requeue queue.

    The sweep has no queue of its own, so its requeues run here. Equal messages of a batch are sent once. Each message that is
    sent back is one more hop of its chain, which ends at the limit: the sweep finds the due work.
    """
    sent: set[Message] = set()
    with batch.held():
        for message_id, trigger in batch.triggers.items():
            failure = _forward(batch.runtime, runner, trigger, sent)
            if failure is not None:
                batch.failures[message_id] = failure
    return batch.answer()


def _forward(runtime: Runtime, runner: StepRunner, trigger: Trigger, sent: set[Message]) -> Exception | None:
    is_due = trigger.at is None or trigger.at <= runtime.clock.now()
    if trigger.step is Step.SWEEP and is_due:
        accepted = accept_or_fail(runtime, runner, trigger)
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
                    at=each.at,
                    hops=each.hops if is_due else each.hops + 1,
                )
                if message not in sent:
                    runtime.queue.send([message])
                    sent.add(message)
    except JourneymanError as error:
        return error
    return None
