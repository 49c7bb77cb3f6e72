"""Runs Lambda functions in this process, and the event source mappings that poll SQS for them.

This module does not need moto: it reaches the queue through any boto3 client.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.trace_header import (
    MAX_RUNS,
    MESSAGE_ATTRIBUTE,
    header_of_invocation,
    runs_in_lineage,
    traced,
)

LambdaHandler = Callable[[dict[str, Any], Any], Any]


class InvocationOutcome(str, Enum):
    """How an invocation ended."""

    SUCCEEDED = "succeeded"
    PARTLY = "partly"  # the handler returned, but messages of the batch stay in the queue
    FAILED = "failed"  # the handler raised
    TIMED_OUT = "timed out"  # the handler took longer than the function's timeout
    CRASHED = "crashed"  # the sandbox crashed


class LambdaInvocation(Struct, frozen=True, kw_only=True):
    """An invocation of a function, with its outcome and duration."""

    function: str
    request_id: str
    started_at: datetime  # virtual
    duration_ms: float  # real
    outcome: InvocationOutcome
    event: Mapping[str, Any]
    response: Any = None
    error: str = ""

    @property
    def billed_ms(self) -> int:
        """Return the duration that Lambda bills: milliseconds, rounded up."""
        return math.ceil(self.duration_ms)


class LambdaContext:
    """The context object that Lambda passes as the handler's second argument."""

    log_group_name = ""
    log_stream_name = ""
    identity = None
    client_context = None

    def __init__(self, function: LambdaFunction, request_id: str) -> None:
        self.aws_request_id = request_id
        self.function_name = function.name
        self.function_version = "$LATEST"
        self.invoked_function_arn = function.arn
        self.memory_limit_in_mb = function.memory_mb
        self.log_group_name = f"/aws/lambda/{function.name}"
        self._deadline = time.monotonic() + function.timeout_seconds

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds of real time until the timeout; virtual time does not advance while a function runs."""
        return max(0, int((self._deadline - time.monotonic()) * 1000))


class LambdaFunction(Struct, kw_only=True):
    """A Lambda function whose code is a Python callable in this process.

    The simulation cannot stop a handler that exceeds its timeout; when the handler returns, its outcome is TIMED_OUT. The
    exceptions in `fatal` simulate a crash of the sandbox; unlike errors, any call may raise them. A reproducible simulation
    passes `new_id`, which returns request ids, and a `context` with the remaining virtual time.

    `allows_loops` is the property RecursiveLoop. `stopped` counts the messages that Lambda did not pass to the function because
    it ran too often in their lineage (the metric RecursiveInvocationsDropped). While it `is_throttled`, received messages stay in
    their queue, and their receives count.
    """

    name: str
    handler: LambdaHandler
    clock: Clock
    memory_mb: int = 512
    timeout_seconds: float = 60
    region: str = "us-east-1"
    account: str = "123456789012"
    fatal: tuple[type[BaseException], ...] = ()
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    context: Callable[[LambdaFunction, str], LambdaContext] = LambdaContext
    allows_loops: bool = False
    invocations: list[LambdaInvocation] = field(default_factory=list)
    stopped: int = 0
    is_throttled: bool = False

    @property
    def arn(self) -> str:
        """Return the function's ARN."""
        return f"arn:aws:lambda:{self.region}:{self.account}:function:{self.name}"

    def invoke(self, event: dict[str, Any], traces: Sequence[str] = ()) -> LambdaInvocation:
        """Run the handler and return the invocation; an exception of the handler becomes its outcome.

        Args:
            event: The handler's first argument.
            traces: The trace headers of the event's messages.
        """
        request_id = self.new_id()
        started_at, started = self.clock.now(), time.monotonic()
        with traced(header_of_invocation(traces, self.arn, request_id), self.name):
            outcome, response, error = self._run(event, self.context(self, request_id))
        duration = time.monotonic() - started
        if outcome is InvocationOutcome.SUCCEEDED and duration > self.timeout_seconds:
            outcome, error = InvocationOutcome.TIMED_OUT, f"Task timed out after {self.timeout_seconds:.2f} seconds"
        invocation = LambdaInvocation(
            function=self.name,
            request_id=request_id,
            started_at=started_at,
            duration_ms=duration * 1000,
            outcome=outcome,
            event=event,
            response=response,
            error=error,
        )
        self.invocations.append(invocation)
        return invocation

    def _run(self, event: dict[str, Any], context: LambdaContext) -> tuple[InvocationOutcome, Any, str]:
        try:
            return InvocationOutcome.SUCCEEDED, self.handler(event, context), ""
        except self.fatal as error:
            return InvocationOutcome.CRASHED, None, f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - Lambda reports every exception of a handler
            return InvocationOutcome.FAILED, None, f"{type(error).__name__}: {error}"


def initialized(handler: LambdaHandler, initializer: Callable[[Any], object] | None) -> LambdaHandler:
    """Return a handler before whose first event the initializer runs, which gets the context; again if it failed."""
    done: list[bool] = []

    def handle(event: Any, context: Any) -> Any:
        if initializer is not None and not done:
            initializer(context)
            done.append(True)
        return handler(event, context)

    return handle


class EventSourceMapping:
    """Polls a queue for a function, as Lambda does. An `Actor` of a simulated `World`.

    Args:
        sqs: A boto3 SQS client.
        queue_url: The queue to poll.
        function: The function to invoke.
        due: Returns when the next message can be received (`due` of a simulated queue), so that an empty queue needs no
            request. Without it every `act` polls.
        batch_size: The maximum number of messages per event; FIFO queues allow 10.
        report_batch_item_failures: Whether to keep the messages that the handler's `batchItemFailures` names.

    Raises:
        ServiceError: The queue's visibility timeout is shorter than the function's timeout.
    """

    def __init__(
        self,
        sqs: Any,
        queue_url: str,
        function: LambdaFunction,
        *,
        due: Callable[[], datetime | None] | None = None,
        batch_size: int = 10,
        report_batch_item_failures: bool = True,
    ) -> None:
        self._sqs = sqs
        self._url = queue_url
        self.function = function
        self._due = due
        self._batch_size = batch_size
        self._report = report_batch_item_failures
        names = ["QueueArn", "VisibilityTimeout"]
        attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
        self._arn = attributes["QueueArn"]
        visible_after, timeout = int(attributes["VisibilityTimeout"]), function.timeout_seconds
        if visible_after < timeout:
            message = (
                f"Queue visibility timeout: {visible_after} seconds is less than Function timeout: {timeout:g} seconds"
            )
            raise ServiceError("InvalidParameterValueException", message)

    def act(self) -> bool:
        """Receive a batch, invoke the function and delete the processed messages; return whether there was a message."""
        if self._due and ((due := self._due()) is None or due > self.function.clock.now()):
            return False
        stopped = self.function.stopped
        return self.poll() is not None or self.function.stopped > stopped

    def due(self) -> datetime | None:
        """Return when the next message can be received, if known."""
        return self._due() if self._due else None

    def poll(self) -> LambdaInvocation | None:
        """Receive a batch and invoke the function; None if the queue returned no message."""
        received = self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=min(self._batch_size, 10),
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages = [] if self.function.is_throttled else self._without_loops(received.get("Messages", []))
        if not messages:
            return None
        invocation = self.function.invoke(
            {"Records": [self._record(message) for message in messages]}, [_trace(message) for message in messages]
        )
        failed = self._failed(invocation, {message["MessageId"] for message in messages})
        self._delete([message for message in messages if message["MessageId"] not in failed])
        if failed and invocation.outcome is InvocationOutcome.SUCCEEDED:
            invocation = self._with_partial_outcome(invocation)
        return invocation

    def _without_loops(self, messages: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages that Lambda passes to the function; the others go to the dead-letter queue.

        Lambda stops a function that ran 16 times in a message's lineage, unless the function allows loops.
        """
        if self.function.allows_loops:
            return messages
        looping = [m for m in messages if runs_in_lineage(_trace(m), self.function.arn) >= MAX_RUNS]
        self.function.stopped += len(looping)
        for message in looping:
            self._send_to_dead_letters(message)
        self._delete(looping)
        return [message for message in messages if message not in looping]

    def _send_to_dead_letters(self, message: Mapping[str, Any]) -> None:
        wanted = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["RedrivePolicy"])
        policy = wanted.get("Attributes", {}).get("RedrivePolicy")
        if policy is None:
            return
        name = json.loads(policy)["deadLetterTargetArn"].rsplit(":", 1)[-1]
        system = message["Attributes"]
        fifo = {key: system[key] for key in ("MessageGroupId", "MessageDeduplicationId") if key in system}
        url = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]
        self._sqs.send_message(QueueUrl=url, MessageBody=message["Body"], **fifo)

    def _record(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": dict(message["Attributes"]),
            "messageAttributes": {
                name: {_camel(key): value for key, value in attribute.items()}
                for name, attribute in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self._arn,
            "awsRegion": self.function.region,
        }

    def _failed(self, invocation: LambdaInvocation, ids: set[str]) -> set[str]:
        """Return the ids of messages that stay in the queue: all if the handler or its report failed, else the reported ones."""
        if invocation.outcome is not InvocationOutcome.SUCCEEDED:
            return ids
        if not self._report or not invocation.response:
            return set()
        try:
            items = invocation.response.get("batchItemFailures") or []
            named = {item["itemIdentifier"] for item in items}
        except (AttributeError, KeyError, TypeError):
            return ids
        return named if named.issubset(ids) else ids

    def _delete(self, messages: list[Mapping[str, Any]]) -> None:
        if messages:
            entries = [
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]} for index, message in enumerate(messages)
            ]
            self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)

    def _with_partial_outcome(self, invocation: LambdaInvocation) -> LambdaInvocation:
        partial = replace(invocation, outcome=InvocationOutcome.PARTLY)
        self.function.invocations[-1] = partial
        return partial


def _trace(message: Mapping[str, Any]) -> str:
    return str(message["Attributes"].get(MESSAGE_ATTRIBUTE, ""))


def _camel(name: str) -> str:
    return name[0].lower() + name[1:]
